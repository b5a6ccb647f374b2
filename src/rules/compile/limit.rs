//! One limit: what its keys mean together.

use std::sync::Arc;

use crate::{
    did_you_mean::hint,
    engine::{
        calendar::{self, Calendar, CalendarError},
        request::Hits,
        rule::{Algorithm, Limit, Mode, Unit, WhenDenied},
        window::Window,
    },
    rules::{
        options::{Algorithms, LoadOptions},
        reader::{Located, shown},
        schema::{Descriptor, RateLimit, Step},
        yaml::Location,
    },
};

/// The most hits that a log remembers.
pub(in crate::rules) const LOG_HITS_MAX: u32 = 10_000;

/// The limit that is written here; `None` where there is a problem.
pub(super) fn compile(
    written: &Located<RateLimit>,
    descriptor: &Descriptor,
    path: &[Step],
    options: LoadOptions,
    problem: &mut impl FnMut(Location, String),
) -> Option<Limit> {
    let Located { location, value } = written;
    let unit = value.unit.as_ref()?.value;
    let Some(fixed) = Limit::new(value.requests_per_unit.unwrap_or(0), unit, value.unit_multiplier)
    else {
        let (multiplier, unit) = (value.unit_multiplier, unit.name());
        problem(*location, format!("unit_multiplier: {multiplier} {unit}s exceed 100 years"));
        return None;
    };
    check_algorithms_own(value, problem);
    let mode_written = match descriptor {
        Descriptor { shadow_mode: true, .. } => Mode::Shadow,
        Descriptor { quota_mode: true, .. } => Mode::Quota,
        _ => Mode::Enforced,
    };
    let limit = Limit {
        window: window(value, unit, problem).unwrap_or_else(|| fixed.window.clone()),
        algorithm: algorithm(value),
        when_denied: match value.count_denied {
            None => options.defaults.when_denied,
            Some(true) => WhenDenied::Counted,
            Some(false) => WhenDenied::Free,
        },
        on_store_failure: value.on_store_failure.unwrap_or(options.defaults.on_store_failure),
        mode: options.defaults.mode_override.mode(mode_written),
        mode_written,
        name: value.name.as_deref().map(Arc::from),
        ..fixed
    };
    if options.algorithms == Algorithms::FixedWindow && limit.algorithm != Algorithm::FixedWindow {
        let name = limit.algorithm.name();
        problem(*location, format!("algorithm: {name} needs scripts, but --redis-scripts is off"));
    }
    let mut at_limit = |message| problem(*location, message);
    check_size(&limit, &mut at_limit);
    match &limit.algorithm {
        Algorithm::SlidingLog { .. } => check_log(&limit, written, path, problem),
        Algorithm::TokenBucket { .. } if limit.requests_per_unit == 0 && value.burst.is_some() => {
            let message = "burst: needs a requests_per_unit above 0, or the bucket never refills";
            at_limit(message.to_owned());
        }
        _ => {}
    }
    Some(limit)
}

/// Keys that only one algorithm has.
fn check_algorithms_own(written: &RateLimit, problem: &mut impl FnMut(Location, String)) {
    for (key, location, algorithm) in [
        ("burst", written.burst.as_ref().map(|burst| burst.location), "token_bucket"),
        ("time_zone", written.time_zone.as_ref().map(|zone| zone.location), "fixed_window"),
        ("remember", written.remember.as_ref().map(|key| key.location), "sliding_log"),
    ] {
        if let Some(location) = location
            && written.algorithm != algorithm
        {
            let message =
                format!("{key}: only for algorithm {algorithm}, not {}", written.algorithm);
            problem(location, message);
        }
    }
}

fn algorithm(written: &RateLimit) -> Algorithm {
    let remember = written.remember.as_ref().map(|key| Arc::from(key.value.as_str()));
    let burst = written.burst.as_ref().map(|burst| burst.value).or(written.requests_per_unit);
    let all = Algorithm::all(burst.unwrap_or(0), remember);
    let named = all.into_iter().find(|algorithm| algorithm.name() == written.algorithm);
    named.expect("the reader accepts these names only")
}

/// A calendar's window, where there is a time zone.
fn window(
    written: &RateLimit,
    unit: Unit,
    problem: &mut impl FnMut(Location, String),
) -> Option<Window> {
    let Located { location, value: zone } = written.time_zone.as_ref()?;
    if written.unit_multiplier != 1 {
        problem(*location, "time_zone: needs a unit_multiplier of 1".to_owned());
    }
    match Calendar::new(unit, zone) {
        Ok(calendar) => return Some(Window::of_calendar(calendar)),
        Err(CalendarError::Unit) => {
            let message = format!("time_zone: needs a unit of day or longer, not {}", unit.name());
            problem(*location, message);
        }
        Err(CalendarError::Zone) => {
            let names = calendar::zone_names();
            let near = hint(zone, names.iter().map(String::as_str));
            let message =
                format!("time_zone: `{}` is not in the IANA time zone database{near}", shown(zone));
            problem(*location, message);
        }
    }
    None
}

/// Scripts compute in hits times milliseconds, exactly below 2^53.
fn check_size(limit: &Limit, problem: &mut impl FnMut(String)) {
    let key = match limit.algorithm {
        Algorithm::TokenBucket { .. } => "burst",
        Algorithm::SlidingWindow => "requests_per_unit",
        _ => return,
    };
    let (hits, hits_max) = (limit.capacity(), Hits::MAX / limit.window.millis());
    if u64::from(hits) > hits_max {
        let name = limit.algorithm.name();
        problem(format!(
            "{key}: {hits} exceeds {hits_max}, the largest for a {name} with this window"
        ));
    }
}

fn check_log(
    limit: &Limit,
    Located { location, value: written }: &Located<RateLimit>,
    path: &[Step],
    problem: &mut impl FnMut(Location, String),
) {
    let mut at_limit = |message: String| problem(*location, message);
    if limit.requests_per_unit > LOG_HITS_MAX {
        let requests = limit.requests_per_unit;
        at_limit(format!(
            "requests_per_unit: {requests} exceeds {LOG_HITS_MAX}, the largest for a sliding_log"
        ));
    }
    if limit.when_denied == WhenDenied::Counted {
        let message = match written.count_denied {
            Some(_) => {
                "count_denied: not possible with sliding_log, which stores admitted hits only"
            }
            None => {
                "count_denied: is on for all rules, but not possible with sliding_log; write \
                 `count_denied: false` here"
            }
        };
        at_limit(message.to_owned());
    }
    if limit.mode == Mode::Quota {
        let message = "quota_mode: not possible with sliding_log, which stores admitted hits only";
        at_limit(message.to_owned());
    }
    if let Some(Located { location, value: key }) = &written.remember
        && !path.iter().any(|(step, _)| step == key)
    {
        let near = hint(key, path.iter().map(|(step, _)| step.as_str()));
        let message =
            format!("remember: no descriptor on the path to this rule has the key `{key}`{near}");
        problem(*location, message);
    }
}
