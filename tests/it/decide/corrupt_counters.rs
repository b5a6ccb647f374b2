//! Promise "corrupt counters": Rust and Lua judge calls on corrupt counters alike.

use std::{cell::RefCell, sync::Arc};

use proptest::{prelude::*, test_runner::TestRunner};
use tollkeeper::engine::{
    algorithm::{AnyAccount, fixed_window},
    ledger::{self, Posting},
    rule::FailureMode,
};

use crate::support::{backends::ScriptInRedis, charges::prelude::*};
use tollkeeper::store::redis::script::ScriptVerdict;

/// The counters and their counts; `None` is a corrupt counter.
const COUNTERS: [(&str, Option<u64>); 4] =
    [("unused", Some(0)), ("full", Some(5)), ("bad", None), ("worse", None)];

fn any_charge() -> impl Strategy<Value = (usize, Charge)> {
    let hits = prop_oneof![
        3 => (1..4_u64).prop_map(Hits::Charge),
        1 => Just(Hits::Check),
        1 => (0..4_u64).prop_map(Hits::Refund),
    ];
    let mode = prop::sample::select(vec![Mode::Enforced, Mode::Shadow, Mode::Quota]);
    let failure = prop::sample::select(FailureMode::ALL.to_vec());
    let counted = prop::bool::weighted(0.3);
    (0..COUNTERS.len(), hits, mode, failure, counted).prop_map(
        |(counter, hits, mode, on_store_failure, counted)| {
            let when_denied = if counted { WhenDenied::Counted } else { WhenDenied::Free };
            let limit = Limit::new(5, Unit::Year, 1).unwrap();
            let limit = Limit { mode, on_store_failure, when_denied, ..limit };
            (counter, charge(COUNTERS[counter].0, hits, &Arc::new(limit)))
        },
    )
}

#[test]
fn corrupt_counters_are_judged_alike_in_rust_and_in_lua() {
    let redis = RefCell::new(ScriptInRedis::start());
    let limit = Limit::new(5, Unit::Year, 1).unwrap();
    let key = |user: &str| {
        let start = limit.window.at(BEGIN).start;
        charge(user, Hits::Check, &Arc::new(limit.clone())).counter.key(start)
    };
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() };
    let calls = prop::collection::vec(any_charge(), 1..4);
    let outcome = TestRunner::new(config).run(&calls, |call| {
        for (user, used) in COUNTERS {
            let value = used.map_or("planted".to_owned(), |used| used.to_string());
            redis.borrow().redis.query::<()>(&["SET", &key(user), &value, "EX", "1000"]);
        }
        let mut accounts = COUNTERS.map(|(_, used)| {
            AnyAccount::FixedWindow(fixed_window::FixedWindow { used: used.unwrap_or(0) })
        });
        let mut postings = Vec::new();
        for (counter, charge) in &call {
            let account = COUNTERS[*counter].1.map(|_| *counter);
            postings.push(Posting {
                account,
                hold: None,
                charge,
                reset: None,
                hits: charge.hits,
                terms: charge.counter.limit.terms(BEGIN),
            });
        }
        let judged = ledger::judge(&postings, &mut accounts);

        let charges: Vec<Charge> = call.iter().map(|(_, charge)| charge.clone()).collect();
        let outcome = redis.borrow_mut().answer_by_ledger(&charges, BEGIN);
        match outcome {
            ScriptVerdict::Decided(verdict) => prop_assert_eq!(Some(verdict), judged),
            ScriptVerdict::Corrupt(corrupt) => {
                prop_assert_eq!(judged, None);
                let is_corrupt = |index: &usize| COUNTERS[call[*index].0].1.is_none();
                let expected: Vec<usize> = (0..call.len()).filter(is_corrupt).collect();
                prop_assert_eq!(corrupt, expected);
            }
            other => panic!("{other:?}"),
        }
        for ((user, used), account) in COUNTERS.iter().zip(&accounts) {
            let AnyAccount::FixedWindow(account) = account else { unreachable!() };
            let value = used.map_or("planted".to_owned(), |_| account.used.to_string());
            prop_assert_eq!(redis.borrow().redis.query::<String>(&["GET", &key(user)]), value);
        }
        Ok(())
    });
    outcome.unwrap();
}
