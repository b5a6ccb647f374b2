//! Charges and limits, as tests of stores write them.

use std::sync::Arc;

use tollkeeper::engine::{
    key::Counter,
    ledger::{Charge, Fit, Tally},
    request::{Entry, Hits},
    rule::{Algorithm, Limit, Unit, WhenDenied},
    time::Timestamp,
};

/// 1 January 2100, 00:00 UTC: later than the real time, and the start of a calendar year.
pub const BEGIN: Timestamp = Timestamp::from_secs(4_102_444_800);

pub fn charge(user: &str, hits: Hits, limit: &Arc<Limit>) -> Charge {
    let entries = [Entry { key: "user".into(), value: user.to_owned().into() }];
    Charge::new(Counter::new("shop", &entries, Arc::clone(limit)), hits)
}

pub fn limit(requests: u64, unit: Unit, algorithm: Algorithm) -> Limit {
    Limit { algorithm, ..Limit::new(requests, unit, 1).unwrap() }
}

/// The charges of a call on this limit as text, such as `charge 3 to a, refund 1 of b, check c`; `debit 3 to a` counts when it
/// is denied.
pub fn call(text: &str, limit: &Limit) -> Vec<Charge> {
    let one = |text: &str| {
        let words: Vec<&str> = text.split(' ').collect();
        let count = || words[1].parse().expect(text);
        let (hits, when_denied) = match words[0] {
            "charge" => (Hits::Charge(count()), WhenDenied::Free),
            "debit" => (Hits::Charge(count()), WhenDenied::Counted),
            "refund" => (Hits::Refund(count()), WhenDenied::Free),
            "check" => (Hits::Check, WhenDenied::Free),
            _ => panic!("{text}"),
        };
        charge(words[words.len() - 1], hits, &Arc::new(Limit { when_denied, ..limit.clone() }))
    };
    text.split(", ").map(one).collect()
}

pub const LOG: Algorithm = Algorithm::SlidingLog { remember: None };

/// One limit of each algorithm, of ten a second.
pub fn one_of_each() -> Vec<Arc<Limit>> {
    let limits = Algorithm::of_time(10, None).map(|algorithm| limit(10, Unit::Second, algorithm));
    limits.map(Arc::new).into()
}

/// What a tally leaves; `None` if it is over.
pub fn left(tally: &Tally) -> Option<u64> {
    match tally.fit {
        Fit::Fits { remaining } => Some(remaining),
        Fit::Over | Fit::Commit(_) => None,
    }
}

/// What tests of stores use of the engine, and of this file.
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub mod prelude {
    pub use tollkeeper::{
        engine::{
            hold::{HoldBy, HoldPolicy},
            hold_id::HoldId,
            key::Counter,
            ledger::{Charge, Fit, HoldAction, Tally, Verdict},
            request::{Hits, Request},
            rule::{Algorithm, Limit, Mode, Unit, WhenDenied},
            time::Timestamp,
        },
        store::system_clock,
    };

    pub use super::{BEGIN, LOG, charge, limit};
}
