//! Checks a hold against the rest of its limit.

use tollkeeper_engine::{
    hold::{Abandoned, HoldBy},
    rule::{Algorithm, Limit},
};
use tollkeeper_yaml::{reader::Reader, tree::Location};

use crate::written::RateLimit;

pub(super) fn check(
    limit: &Limit,
    written: &RateLimit,
    location: Location,
    reader: &mut Reader<'_>,
) {
    let Some(policy) = &limit.hold else { return };
    let algorithm = &limit.algorithm;
    let is_in_flight = limit.counts_calls();
    let mut problem = |message: String| reader.problem(location, format!("hold: {message}"));
    match (policy.by, algorithm) {
        (_, Algorithm::SlidingLog { .. }) => {
            problem("not possible with sliding_log, which stores admitted hits only".to_owned());
        }
        (HoldBy::Id | HoldBy::Counter, Algorithm::SlidingWindow) => {
            let by = policy.by.name();
            problem(format!("`by: {by}` is not possible with sliding_window; `by: token` is"));
        }
        _ => {}
    }
    if written.count_denied == Some(true) && !is_in_flight {
        problem("not possible with `count_denied: true`: a denied call holds nothing, and commits count in full".to_owned());
    }
    let is_estimated = policy.estimate.default.is_some();
    if policy.by == HoldBy::Counter && !is_estimated && !is_in_flight {
        problem("`by: counter` needs an `estimate`".to_owned());
    }
    if policy.abandoned == Abandoned::Release && policy.by != HoldBy::Counter && !is_in_flight {
        problem("`abandoned: release` needs `by: counter`, or the algorithm in_flight".to_owned());
    }
}
