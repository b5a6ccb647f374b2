//! Compiles one limit, and checks its keys against each other.

use std::sync::Arc;

use tollkeeper_engine::{
    calendar::{self, Calendar, CalendarError},
    hold::HoldBy,
    rule::{Algorithm, FailureMode, Lease, Limit, Mode, STORED_HITS_MAX, Unit, WhenDenied},
    text::did_you_mean::hint,
    window::Window,
};
use tollkeeper_yaml::{
    origin::PathStep,
    reader::{Located, Reader, shown},
    tree::Location,
};

use crate::{
    hold::millis,
    keys::OF_ONE_ALGORITHM,
    options::{Algorithms, LoadOptions},
    written::{RateLimit, WrittenDescriptor},
};

/// Compiles a limit; `None` if its unit or window is missing or invalid.
pub(super) fn compile(
    written: &Located<RateLimit>,
    descriptor: &WrittenDescriptor,
    path: &[PathStep],
    options: LoadOptions,
    reader: &mut Reader<'_>,
) -> Option<Limit> {
    let Located { location, value } = written;
    let unit = value.unit?;
    let Some(fixed) = Limit::new(value.requests_per_unit.unwrap_or(0), unit, value.unit_multiplier)
    else {
        let (multiplier, unit) = (value.unit_multiplier, unit.name());
        reader
            .problem(*location, format!("unit_multiplier: {multiplier} {unit}s exceed 100 years"));
        return None;
    };
    check_keys_of_one_algorithm(value, reader);
    let mode_written = match descriptor {
        WrittenDescriptor { shadow_mode: true, .. } => Mode::Shadow,
        WrittenDescriptor { quota_mode: true, .. } => Mode::Quota,
        _ => Mode::Enforced,
    };
    let limit = Limit {
        window: window(value, unit, reader).unwrap_or_else(|| fixed.window.clone()),
        algorithm: algorithm(value),
        when_denied: match value.count_denied {
            // A denied call holds nothing.
            None if value.hold.is_some() => WhenDenied::Free,
            None => options.defaults.when_denied,
            Some(true) => WhenDenied::Counted,
            Some(false) => WhenDenied::Free,
        },
        exhausted_checks: options.defaults.exhausted_checks,
        on_store_failure: value.on_store_failure.unwrap_or(options.defaults.on_store_failure),
        mode: options.defaults.mode_override.mode(mode_written),
        mode_written,
        override_max: value.override_max,
        denied_body: value.denied_body,
        ban_ms: value.ban_for.as_ref().map(|time| millis(time.value)),
        tiers: value.tiers.clone(),
        notify_at: value.notify_at.as_ref().map(|percents| Arc::clone(&percents.value)),
        lease: value.leases.map_or(Lease::Off, |_| Lease::Auto),
        shadow: value.shadow.as_ref().map(|requests| requests.value),
        priority: value.priority.as_ref().map(|priority| Arc::clone(&priority.value)),
        name: value.name.as_deref().map(Arc::from),
        hold: value.hold.clone(),
        ..fixed
    };
    let has_scripts = options.algorithms == Algorithms::All;
    check_combinations(&limit, written, has_scripts, reader);
    if value.count_denied == Some(true) && limit.algorithm.carries_over() {
        let name = limit.algorithm.name();
        let message = format!(
            "count_denied: on a {name} only for calls with a number of hits, or a steady client would be denied for good"
        );
        reader.warning(*location, message);
    }
    let leases = || Limit { mode: mode_written, ..limit.clone() }.has_free_hits();
    if let Some(key) = value.leases.filter(|_| !leases()) {
        let message = "lease: has no effect on a limit with hold, priority, count_denied, ban_for, shadow_mode or quota_mode";
        reader.warning(key, message);
    }
    super::hold::check(&limit, value, *location, reader);
    check_size(&limit, *location, reader);
    match &limit.algorithm {
        Algorithm::SlidingLog { .. } | Algorithm::InFlight { .. } => {
            check_stored(&limit, written, path, reader);
        }
        Algorithm::TokenBucket { .. } if limit.requests_per_unit == 0 && value.burst.is_some() => {
            let message = "burst: needs a requests_per_unit above 0, or the bucket never refills";
            reader.problem(*location, message);
        }
        _ => {}
    }
    if let Some(idle) = &value.idle
        && millis(idle.value) >= limit.window.millis()
    {
        reader.problem(idle.location, "idle: must be shorter than the window");
    }
    Some(limit)
}

/// Keys of a limit that something else of it, or of the settings, excludes.
fn check_combinations(
    limit: &Limit,
    Located { location, value: written }: &Located<RateLimit>,
    has_scripts: bool,
    reader: &mut Reader<'_>,
) {
    let algorithm = &limit.algorithm;
    let is_bucket = matches!(algorithm, Algorithm::TokenBucket { .. });
    let is_fixed_window = *algorithm == Algorithm::FixedWindow;
    let is_by_token = limit.hold.as_ref().is_none_or(|policy| policy.by == HoldBy::Token);
    let releases = written.priority.as_ref().is_some_and(|priority| priority.value.releases);
    if !has_scripts && !is_fixed_window {
        let name = algorithm.name();
        let message = format!("algorithm: {name} needs scripts, but --redis-scripts is off");
        reader.problem(*location, message);
    }
    if let Some(Located { location, value: requests }) = written.shadow
        && requests >= limit.requests_per_unit
    {
        let limit = limit.requests_per_unit;
        reader.problem(location, format!("shadow: {requests} is not below the limit of {limit}"));
    }
    let (hold, leases) = (Some(*location), written.leases);
    let (notify_at, priority) = (location_of(&written.notify_at), location_of(&written.priority));
    let (shadow, ban_for) = (location_of(&written.shadow), location_of(&written.ban_for));
    for (key, is_refused, problem) in [
        (
            hold,
            !has_scripts && !is_by_token,
            "hold: needs scripts unless it is `by: token`, but --redis-scripts is off",
        ),
        (
            hold,
            limit.counts_calls() && is_by_token && limit.on_store_failure == FailureMode::Local,
            "on_store_failure: not local for in_flight with a hold `by: token`, since no commit frees a place that a replica \
             counts alone; write error, deny or allow here, or hold `by: id`",
        ),
        (leases, !has_scripts, "lease: needs scripts, but --redis-scripts is off"),
        (notify_at, limit.counts_calls(), "notify_at: not with in_flight, which has no window"),
        (notify_at, releases, "notify_at: not with `release`, by which the limit grows"),
        (priority, !is_by_token, "priority: not with a hold, unless it is `by: token`"),
        (priority, releases && !is_fixed_window, "release: only for algorithm fixed_window"),
        (shadow, is_bucket, "shadow: not with token_bucket, which would also refill more slowly"),
        (
            shadow,
            priority.is_some(),
            "shadow: not with `priority`, whose classes have numbers of their own",
        ),
        (
            shadow,
            limit.mode_written != Mode::Enforced,
            "shadow: not with `shadow_mode` or `quota_mode`, which deny no call alone",
        ),
        (ban_for, !has_scripts, "ban_for: needs scripts, but --redis-scripts is off"),
        (ban_for, limit.hold.is_some(), "ban_for: not with a hold"),
        (
            ban_for,
            priority.is_some(),
            "ban_for: not with `priority`, since one class would close the counter for all",
        ),
        (ban_for, limit.mode == Mode::Quota, "ban_for: not with quotas, which deny no call alone"),
    ] {
        if let Some(key) = key.filter(|_| is_refused) {
            reader.problem(key, problem);
        }
    }
}

fn location_of<T>(key: &Option<Located<T>>) -> Option<Location> {
    key.as_ref().map(|key| key.location)
}

fn check_keys_of_one_algorithm(written: &RateLimit, reader: &mut Reader<'_>) {
    let locations: [_; OF_ONE_ALGORITHM.len()] = [
        location_of(&written.burst),
        location_of(&written.idle),
        location_of(&written.time_zone),
        location_of(&written.starts),
        location_of(&written.remember),
        written.leases,
    ];
    for ((key, algorithms, why), location) in OF_ONE_ALGORITHM.into_iter().zip(locations) {
        if let Some(location) = location
            && !algorithms.contains(&written.algorithm)
        {
            let (of, algorithm) = (algorithms.join(" or "), written.algorithm);
            let message = format!("{key}: only for algorithm {of}, not {algorithm}{why}");
            reader.problem(location, message);
        }
    }
}

fn algorithm(written: &RateLimit) -> Algorithm {
    let remember = written.remember.as_ref().map(|key| Arc::from(key.value.as_str()));
    let burst = written.burst.as_ref().map(|burst| burst.value).or(written.requests_per_unit);
    let all = Algorithm::all(burst.unwrap_or(0), remember);
    let named = all.into_iter().find(|algorithm| algorithm.name() == written.algorithm);
    match named.expect("the reader accepts only these names") {
        Algorithm::FirstHitWindow { .. } => {
            let idle_ms = written.idle.as_ref().map(|time| millis(time.value));
            Algorithm::FirstHitWindow { idle_ms }
        }
        other => other,
    }
}

/// The window of a time zone's calendar, if there is a valid time zone.
fn window(written: &RateLimit, unit: Unit, reader: &mut Reader<'_>) -> Option<Window> {
    if written.algorithm == "in_flight" {
        return None;
    }
    let Some(Located { location, value: zone }) = &written.time_zone else {
        if let Some(starts) = &written.starts {
            reader.problem(starts.location, "starts: needs a `time_zone`");
        }
        return None;
    };
    if written.unit_multiplier != 1 {
        reader.problem(*location, "time_zone: needs a unit_multiplier of 1");
    }
    match Calendar::new(unit, zone) {
        Ok(calendar) => return starting(calendar, written, reader).map(Window::of_calendar),
        Err(CalendarError::Unit) => {
            let message = format!("time_zone: needs a unit of day or longer, not {}", unit.name());
            reader.problem(*location, message);
        }
        Err(CalendarError::Zone) => {
            let names = calendar::zone_names();
            let near = hint(zone, names.iter().map(String::as_str));
            let message =
                format!("time_zone: `{}` is not in the IANA time zone database{near}", shown(zone));
            reader.problem(*location, message);
        }
    }
    None
}

/// The calendar, with its spans where `starts` says.
fn starting(calendar: Calendar, written: &RateLimit, reader: &mut Reader<'_>) -> Option<Calendar> {
    let Some(Located { location, value: starts }) = &written.starts else { return Some(calendar) };
    let unit = calendar.unit();
    let moved = calendar.starting(starts);
    if moved.is_none() {
        let form = match unit {
            Unit::Week => "a weekday such as friday",
            Unit::Month => "a day from 1 to 31",
            Unit::Year => "a month and day such as \"04-01\"",
            _ => "a time such as \"06:00\"",
        };
        let (starts, unit) = (shown(starts), unit.name());
        reader.problem(*location, format!("starts: `{starts}` is not {form}, for unit {unit}"));
    }
    moved
}

/// See [`Limit::capacity_max`].
fn check_size(limit: &Limit, location: Location, reader: &mut Reader<'_>) {
    let key = match limit.algorithm {
        Algorithm::TokenBucket { .. } => "burst",
        Algorithm::SlidingWindow => "requests_per_unit",
        _ => return,
    };
    let (hits, hits_max) = (limit.capacity(), limit.capacity_max());
    if hits > hits_max {
        let name = limit.algorithm.name();
        let message =
            format!("{key}: {hits} exceeds {hits_max}, the largest for a {name} with this window");
        reader.problem(location, message);
    }
}

fn check_stored(
    limit: &Limit,
    Located { location, value: written }: &Located<RateLimit>,
    path: &[PathStep],
    reader: &mut Reader<'_>,
) {
    let name = limit.algorithm.name();
    if limit.requests_per_unit > STORED_HITS_MAX {
        let requests = limit.requests_per_unit;
        let message = format!(
            "requests_per_unit: {requests} exceeds {STORED_HITS_MAX}, the largest for {name}"
        );
        reader.problem(*location, message);
    }
    if limit.when_denied == WhenDenied::Counted {
        let message = match written.count_denied {
            Some(_) => {
                format!("count_denied: not possible with {name}, which stores admitted hits only")
            }
            None => format!(
                "count_denied: is on for all rules, but not possible with {name}; write \
                 `count_denied: false` here"
            ),
        };
        reader.problem(*location, message);
    }
    if limit.mode == Mode::Quota {
        let message =
            format!("quota_mode: not possible with {name}, which stores admitted hits only");
        reader.problem(*location, message);
    }
    if limit.counts_calls() && limit.hold.is_none() {
        reader.problem(
            *location,
            "hold: missing; in_flight needs the longest time of a call, such as `10m`",
        );
    }
    if let Some(Located { location, value: key }) = &written.remember
        && !path.iter().any(|(step, _)| step == key)
    {
        let near = hint(key, path.iter().map(|(step, _)| step.as_str()));
        let message =
            format!("remember: no descriptor on the path to this rule has the key `{key}`{near}");
        reader.problem(*location, message);
    }
}
