//! One limit: what its keys mean together.

use std::sync::Arc;

use super::Step;
use crate::{
    engine::{
        calendar::Calendar,
        request::Hits,
        rule::{Algorithm, Limit, Mode, WhenDenied},
        time::Window,
    },
    rules::{
        Algorithms, Basis,
        schema::{Descriptor, Placed, RateLimit},
        yaml::Place,
    },
};

/// The most hits that a log remembers.
const LOG_HITS_MAX: u32 = 10_000;

/// The limit that is written here; `None` where there is a problem.
pub(super) fn compile(
    written: &Placed<RateLimit>,
    descriptor: &Descriptor,
    path: &[Step],
    basis: Basis,
    problem: &mut impl FnMut(Place, String),
) -> Option<Limit> {
    let Placed { place, value } = written;
    let unit = value.unit.as_ref()?.value;
    let Some(fixed) = Limit::new(value.requests_per_unit.unwrap_or(0), unit, value.unit_multiplier)
    else {
        let (multiplier, unit) = (value.unit_multiplier, unit.name());
        problem(*place, format!("unit_multiplier: {multiplier} {unit}s are over 100 years"));
        return None;
    };
    for (key, place, algorithm) in [
        ("burst", value.burst.as_ref().map(|it| it.place), "token_bucket"),
        ("time_zone", value.time_zone.as_ref().map(|it| it.place), "fixed_window"),
        ("remember", value.remember.as_ref().map(|it| it.place), "sliding_log"),
    ] {
        if let Some(place) = place
            && value.algorithm != algorithm
        {
            problem(place, format!("{key}: only a {algorithm} has it, not a {}", value.algorithm));
        }
    }

    let mode_written = match descriptor {
        Descriptor { shadow_mode: true, .. } => Mode::Shadow,
        Descriptor { quota_mode: Some(_), .. } => Mode::Quota,
        _ => Mode::Enforced,
    };
    let limit = Limit {
        window: window(value, problem).unwrap_or_else(|| fixed.window.clone()),
        algorithm: algorithm(value),
        when_denied: match value.count_denied {
            None => basis.defaults.when_denied,
            Some(true) => WhenDenied::Counted,
            Some(false) => WhenDenied::Free,
        },
        on_store_failure: value.on_store_failure.unwrap_or(basis.defaults.on_store_failure),
        mode: basis.defaults.everywhere.mode(mode_written),
        mode_written,
        name: value.name.as_deref().map(Arc::from),
        ..fixed
    };
    if basis.algorithms == Algorithms::FixedWindow && limit.algorithm != Algorithm::FixedWindow {
        let name = limit.algorithm.name();
        problem(*place, format!("algorithm: {name} needs a script, and --redis-scripts is off"));
    }
    let mut at_limit = |message| problem(*place, message);
    check_size(&limit, &mut at_limit);
    match &limit.algorithm {
        Algorithm::SlidingLog { .. } => check_log(&limit, value, path, problem),
        Algorithm::TokenBucket { .. } if limit.requests_per_unit == 0 && value.burst.is_some() => {
            at_limit("burst: a bucket with 0 requests_per_unit never refills".to_owned());
        }
        _ => {}
    }
    Some(limit)
}

fn algorithm(written: &RateLimit) -> Algorithm {
    let remember = || written.remember.as_ref().map(|it| Arc::from(it.value.as_str()));
    let burst =
        written.burst.as_ref().map(|it| it.value).or(written.requests_per_unit).unwrap_or(0);
    let all = [
        Algorithm::FixedWindow,
        Algorithm::FirstHitWindow,
        Algorithm::SlidingLog { remember: remember() },
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket { burst },
    ];
    let named = all.into_iter().find(|it| it.name() == written.algorithm);
    named.expect("the schema knows these names only")
}

/// A calendar's window, where there is a time zone.
fn window(written: &RateLimit, problem: &mut impl FnMut(Place, String)) -> Option<Window> {
    let zone = written.time_zone.as_ref()?;
    if written.unit_multiplier != 1 {
        let message = "time_zone: goes with a unit_multiplier of 1 only".to_owned();
        problem(zone.place, message);
    }
    match Calendar::new(written.unit.as_ref()?.value, &zone.value) {
        Ok(calendar) => Some(Window::of_calendar(calendar)),
        Err(message) => {
            problem(zone.place, format!("time_zone: {message}"));
            None
        }
    }
}

/// Scripts reckon in hits times milliseconds, exact below 2^53.
fn check_size(limit: &Limit, problem: &mut impl FnMut(String)) {
    let weighed =
        matches!(limit.algorithm, Algorithm::SlidingWindow | Algorithm::TokenBucket { .. });
    let hits_max = Hits::MAX / limit.window.millis();
    if weighed && u64::from(limit.most()) > hits_max {
        let key = match limit.algorithm {
            Algorithm::TokenBucket { .. } => "burst",
            _ => "requests_per_unit",
        };
        let (most, name) = (limit.most(), limit.algorithm.name());
        problem(format!("{key}: {most} exceeds {hits_max}, the most of a {name} this long"));
    }
}

fn check_log(
    limit: &Limit,
    written: &RateLimit,
    path: &[Step],
    problem: &mut impl FnMut(Place, String),
) {
    let Some(place) = written.unit.as_ref().map(|it| it.place) else { return };
    if limit.requests_per_unit > LOG_HITS_MAX {
        let requests = limit.requests_per_unit;
        let message = format!(
            "requests_per_unit: {requests} exceeds {LOG_HITS_MAX}, the most \
                               that a sliding_log remembers"
        );
        problem(place, message);
    }
    if limit.when_denied == WhenDenied::Counted {
        let message = match written.count_denied {
            Some(_) => "count_denied: a sliding_log remembers what it admitted, and no more",
            None => {
                "count_denied: is set for all rules, and a sliding_log cannot; write \
                     `count_denied: false` here"
            }
        };
        problem(place, message.to_owned());
    }
    if limit.mode == Mode::Quota {
        let message = "quota_mode: counts also what does not fit, and a sliding_log remembers what it \
                       admitted, and no more";
        problem(place, message.to_owned());
    }
    if let Some(remember) = &written.remember
        && !path.iter().any(|(key, _)| *key == remember.value)
    {
        let message = "remember: no descriptor on the way to this rule has this key".to_owned();
        problem(remember.place, message);
    }
}
