//! Promise 6: a denial needs no write. A Redis that takes none still denies what is over its limit, and
//! only calls that would be admitted get an error, each for itself.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tollkeeper::{
    engine::{
        ledger::{Charge, Judgement},
        request::Hits,
        rule::{Algorithm, Limit, Unit, WhenDenied},
    },
    store::{StoreError, system_clock},
};

use crate::{
    algorithms::{LOG, charge},
    support::{redis_server::Redis, redis_store},
};

const REFUSALS: [&str; 4] = ["OOM", "NOREPLICAS", "MISCONF", "READONLY"];

/// Long enough that no test meets it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Hits of a limit of 5 in forty years.
fn charge_by(algorithm: Algorithm, when_denied: WhenDenied, user: &str, hits: Hits) -> Charge {
    let limit = Limit::new(5, Unit::Year, 40).unwrap();
    charge(user, hits, &Arc::new(Limit { algorithm, when_denied, ..limit }))
}

fn take(user: &str, hits: u64) -> Charge {
    charge_by(Algorithm::FixedWindow, WhenDenied::Free, user, Hits::Charge(hits))
}

/// `denied`, `admitted`, or the code of the refusal.
fn spell(answer: &Result<Judgement, StoreError>) -> String {
    match answer {
        Ok(Judgement { denied: true, .. }) => "denied".to_owned(),
        Ok(_) => "admitted".to_owned(),
        Err(error) => {
            let text = error.to_string();
            let code = REFUSALS.into_iter().find(|code| text.contains(&format!("({code})")));
            code.unwrap_or_else(|| panic!("{text}")).to_owned()
        }
    }
}

#[tokio::test]
async fn exhausted_limits_deny_and_calls_that_would_pass_fail_with_the_reason() {
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::store(&redis.url(), 0, system_clock, TIMEOUT);
        for call in [[take("full", 5)], [take("used", 3)]] {
            assert_eq!(spell(&store.charge(&call).await), "admitted");
        }
        redis.refuse_writes(code);
        let look = charge_by(Algorithm::FixedWindow, WhenDenied::Free, "new", Hits::Look);
        let debit = charge_by(Algorithm::FixedWindow, WhenDenied::Counted, "full", Hits::Charge(1));
        let refund = charge_by(Algorithm::FixedWindow, WhenDenied::Free, "full", Hits::Refund(1));
        let calls = [
            (vec![take("full", 1)], "denied"),
            (vec![take("new", 1)], code),
            (vec![take("used", 2)], code),
            (vec![take("used", 3)], "denied"),
            (vec![take("new", 1), take("full", 1)], "denied"),
            (vec![take("full", 1), take("new", 1)], "denied"),
            (vec![take("used", 1), take("new", 1)], code),
            // Equal calls are one item of the script: all of them would be admitted by themselves.
            (vec![take("used", 2)], code),
            (vec![take("used", 2)], code),
            // The ledger's.
            (vec![look], "admitted"),
            (vec![debit], "denied"),
            (vec![take("new", 6)], "denied"),
            (vec![refund], code),
        ];
        let answers = join_all(calls.iter().map(|(call, _)| store.charge(call))).await;
        for ((call, expected), answer) in calls.iter().zip(&answers) {
            assert_eq!(spell(answer), *expected, "{code}: {call:?}");
        }
        redis.accept_writes();
        assert_eq!(spell(&store.charge(&[take("used", 2)]).await), "admitted", "{code}");
        assert_eq!(redis.query::<String>(&["GET", &redis.key("used")]), "5", "{code}");
        assert_eq!(redis.query::<String>(&["GET", &redis.key("full")]), "5", "{code}");
        redis.assert_no_key_leaks();
    }
}

#[tokio::test]
async fn every_algorithm_denies_without_a_write() {
    let bucket = Algorithm::TokenBucket { burst: 5 };
    let algorithms =
        [Algorithm::FixedWindow, Algorithm::FirstHitWindow, LOG, Algorithm::SlidingWindow, bucket];
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::store(&redis.url(), 0, system_clock, TIMEOUT);
        // Looks make these calls the ledger's, also on fixed windows.
        let call = |algorithm: &Algorithm, user: &str, hits| {
            let charge =
                |user: &str, hits| charge_by(algorithm.clone(), WhenDenied::Free, user, hits);
            [charge(user, Hits::Charge(hits)), charge("looked at", Hits::Look)]
        };
        for algorithm in &algorithms {
            assert_eq!(spell(&store.charge(&call(algorithm, "full", 5)).await), "admitted");
            assert_eq!(spell(&store.charge(&call(algorithm, "used", 4)).await), "admitted");
        }
        redis.refuse_writes(code);
        let calls: Vec<_> = algorithms
            .iter()
            .flat_map(|it| {
                [call(it, "full", 1), call(it, "new", 1), call(it, "used", 1), call(it, "used", 2)]
            })
            .collect();
        let answers = join_all(calls.iter().map(|call| store.charge(call))).await;
        for (answers, algorithm) in answers.chunks(4).zip(&algorithms) {
            let spelled: Vec<String> = answers.iter().map(spell).collect();
            assert_eq!(spelled, ["denied", code, code, "denied"], "{}", algorithm.name());
        }
        redis.accept_writes();
        for algorithm in &algorithms {
            let last = store.charge(&call(algorithm, "used", 1)).await;
            assert_eq!(spell(&last), "admitted", "{code}: {}", algorithm.name());
        }
        redis.assert_no_key_leaks();
    }
}

#[tokio::test]
async fn transactions_deny_without_a_write() {
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::transactions(&redis.url(), TIMEOUT);
        assert_eq!(spell(&store.charge(&[take("full", 5)]).await), "admitted");
        redis.refuse_writes(code);
        let refund =
            |user| charge_by(Algorithm::FixedWindow, WhenDenied::Free, user, Hits::Refund(1));
        for (call, expected) in [
            (vec![take("full", 1)], "denied"),
            (vec![take("new", 1)], code),
            (vec![take("new", 1), take("full", 1)], "denied"),
            (vec![refund("full")], code),
            (vec![refund("new")], "admitted"),
        ] {
            assert_eq!(spell(&store.charge(&call).await), expected, "{code}: {call:?}");
        }
        redis.accept_writes();
        assert_eq!(spell(&store.charge(&[refund("full")]).await), "admitted", "{code}");
        assert_eq!(redis.query::<String>(&["GET", &redis.key("full")]), "4", "{code}");
        redis.assert_no_key_leaks();
    }
}
