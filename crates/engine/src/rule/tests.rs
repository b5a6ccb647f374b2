//! What follows from the parts of a limit, as tables.

use super::*;
use crate::{ledger::Few, time::Span};

/// Ten hits a minute.
fn limit() -> Limit {
    Limit::new(10, Unit::Minute, 1).unwrap()
}

fn holding(policy: HoldPolicy) -> Limit {
    Limit { hold: Some(Arc::new(policy)), ..limit() }
}

fn bucket(requests_per_unit: u64, burst: u64) -> Limit {
    Limit { requests_per_unit, algorithm: Algorithm::TokenBucket { burst }, ..limit() }
}

/// Calls that end within a second.
fn in_flight() -> Limit {
    let policy = HoldPolicy { by: HoldBy::Counter, ..HoldPolicy::new(1000) };
    Limit { algorithm: Algorithm::InFlight { remember: None }, ..holding(policy) }
}

fn priority(releases: bool) -> Option<Arc<Priority>> {
    let shares = vec![("gold".into(), 50), ("iron".into(), 1)];
    Some(Arc::new(Priority { entry: "class".into(), shares, default: 25, releases }))
}

#[test]
fn hits_are_charged_in_advance_only_where_nothing_but_their_number_decides() {
    let ten_seconds = Limit::new(10, Unit::Second, 10).unwrap();
    let nine_seconds = Limit::new(10, Unit::Second, 9).unwrap();
    let class = Some(("gold".into(), 50));
    for (limit, has_free_hits, is_assignable) in [
        (limit(), true, true),
        (ten_seconds, true, true),
        (nine_seconds, true, false),
        (Limit { algorithm: Algorithm::SlidingWindow, ..limit() }, true, false),
        (Limit { shadow: Some(4), ..limit() }, true, false),
        (Limit { mode: Mode::Shadow, ..limit() }, false, false),
        (Limit { when_denied: WhenDenied::Counted, ..limit() }, false, false),
        (holding(HoldPolicy::new(1000)), false, false),
        (Limit { ban_ms: Some(1), ..limit() }, false, false),
        (Limit { priority: priority(false), ..limit() }, false, false),
        (Limit { class, ..limit() }, false, false),
        (Limit { opens_from: Some(1), ..limit() }, false, false),
    ] {
        assert_eq!(limit.has_free_hits(), has_free_hits, "{limit:?}");
        assert_eq!(limit.is_assignable(), is_assignable, "{limit:?}");
        assert!(!limit.leases(), "{limit:?}");
        assert_eq!(Limit { lease: Lease::Auto, ..limit }.leases(), has_free_hits);
    }
}

#[test]
fn holds_by_counter_are_open_beside_all_counters_but_those_of_calls() {
    let by = |by| holding(HoldPolicy { by, ..HoldPolicy::new(1000) });
    for (limit, has_open_holds, is_lent) in [
        (limit(), false, false),
        (by(HoldBy::Token), false, false),
        (by(HoldBy::Id), false, false),
        (by(HoldBy::Counter), true, false),
        (in_flight(), false, false),
        (holding(HoldPolicy::lease()), false, true),
    ] {
        assert_eq!(
            (limit.has_open_holds(), limit.is_lent()),
            (has_open_holds, is_lent),
            "{limit:?}"
        );
    }
}

#[test]
fn a_lease_lives_200_ms_and_ends_2_ms_before_its_window() {
    for (made_ms, life_ms) in
        [(60_000, 200), (119_797, 200), (119_799, 199), (119_997, 1), (119_999, 0)]
    {
        let life = limit().lease_life(Timestamp::from_millis(made_ms));
        assert_eq!(life, Duration::from_millis(life_ms), "{made_ms}");
    }
}

#[test]
fn hits_count_until_their_window_ends_or_as_long_as_a_window_or_a_call() {
    let log = Limit { algorithm: Algorithm::SlidingLog { remember: None }, ..limit() };
    for (limit, remaining_ms, counts_ms) in [
        (limit(), 1_000, 60_000),
        (log, 60_000, 60_000),
        (in_flight(), 1_000, 1_000),
        (bucket(10, 5), 60_000, 90_000),
        (bucket(7, 1), 60_000, 68_572),
        (bucket(1, 1_000), 60_000_000, 60_060_000),
        (bucket(0, 0), 60_000, 60_000),
    ] {
        let made = Timestamp::from_millis(119_000);
        assert_eq!(limit.remaining_window(made), Duration::from_millis(remaining_ms), "{limit:?}");
        assert_eq!(limit.terms(made).counts_ms, counts_ms, "{limit:?}");
    }
}

#[test]
fn what_a_counter_can_hold_is_bounded_by_what_lua_computes_and_a_log_stores() {
    const LUA: u64 = 9_007_199_254_740_991;
    let of = |algorithm| Limit { algorithm, ..limit() };
    for (limit, capacity_max, requests_max) in [
        (limit(), LUA, LUA),
        (of(Algorithm::FirstHitWindow { idle_ms: None }), LUA, LUA),
        (of(Algorithm::SlidingLog { remember: None }), 10_000, 10_000),
        (in_flight(), 10_000, 10_000),
        (of(Algorithm::SlidingWindow), 150_119_987_579, 150_119_987_579),
        (bucket(10, 50), 150_119_987_579, 30_023_997_515),
        (bucket(10, 5), 150_119_987_579, 150_119_987_579),
    ] {
        assert_eq!(limit.capacity_max(), capacity_max, "{limit:?}");
        assert_eq!(limit.requests_max(), requests_max, "{limit:?}");
        let most = limit.with_requests(u64::MAX);
        assert_eq!(most.requests_per_unit, requests_max, "{limit:?}");
        assert!(most.capacity() <= capacity_max, "{limit:?}");
    }
}

#[test]
fn the_burst_of_a_bucket_changes_with_its_rate_and_admits_a_hit_unless_the_rate_is_zero() {
    for (limit, requests, burst) in [
        (bucket(10, 50), 20, 100),
        (bucket(100, 1), 10, 1),
        (bucket(100, 1), 0, 0),
        (bucket(100, 150), 3, 4),
        (bucket(0, 0), 5, 5),
    ] {
        let changed = limit.with_requests(requests);
        assert_eq!((changed.requests_per_unit, changed.capacity()), (requests, burst), "{limit:?}");
    }
}

#[test]
fn a_limit_is_written_as_people_write_it() {
    for (limit, expected) in [
        (limit(), "10 per minute"),
        (Limit::new(100, Unit::Minute, 5).unwrap(), "100 per 5 minutes"),
        (in_flight(), "10 at once"),
    ] {
        assert_eq!(limit.to_string(), expected);
    }
}

#[test]
fn a_limit_of_a_request_counts_also_in_the_windows_of_the_rule_that_bounds_it() {
    let of = |max, unit, multiplier| Limit {
        override_max: max,
        ..Limit::new(10, unit, multiplier).unwrap()
    };
    let five_minutes = || of(Some(60), Unit::Minute, 5);
    let bucket = Algorithm::TokenBucket { burst: 9 };
    let bucket = Limit { algorithm: bucket, ..of(Some(40), Unit::Minute, 5) };
    let in_flight = Limit { override_max: Some(1), ..in_flight() };
    for (requests, bounding, expected) in [
        (61, vec![of(None, Unit::Minute, 5)], "61 per hour of 3600 s"),
        (60, vec![five_minutes()], "60 per hour of 3600 s, 60 per 5 minutes of 300 s"),
        (61, vec![five_minutes()], "60 per 5 minutes of 300 s"),
        (9, vec![of(Some(5), Unit::Hour, 1)], "5 per hour of 3600 s"),
        (9, vec![five_minutes(), bucket], "9 per hour of 3600 s, 40 per 5 minutes of 300 s"),
        (1, vec![in_flight], "1 per hour of 3600 s"),
    ] {
        let limits = bounding.into_iter().map(Arc::new).collect();
        let rule = Rule::new("p", "f:1".into(), Policy::Limited(limits));
        let found = rule.bound(Limit::new(requests, Unit::Hour, 1).unwrap());
        let found = found.iter().map(|limit| format!("{limit} of {} s", limit.window.seconds()));
        assert_eq!(found.collect::<Vec<_>>().join(", "), expected);
    }
}

#[test]
fn a_shadow_lets_calls_pass_without_its_store_and_in_every_mode_of_the_settings() {
    use ModeOverride::{AsWritten, Quota, Shadow};
    let shadow = Mode::Shadow;
    for (written, without_store, [as_written, in_shadow, in_quota]) in [
        (Mode::Enforced, FailureMode::Deny, [Mode::Enforced, shadow, Mode::Quota]),
        (Mode::Quota, FailureMode::Deny, [Mode::Quota, shadow, Mode::Quota]),
        (Mode::Shadow, FailureMode::Allow, [shadow, shadow, shadow]),
    ] {
        let on_store_failure = FailureMode::Deny;
        let limit = Limit { mode: written, mode_written: written, on_store_failure, ..limit() };
        assert_eq!(limit.failure_mode(), without_store, "{written:?}");
        for (mode_override, mode) in
            [(AsWritten, as_written), (Shadow, in_shadow), (Quota, in_quota)]
        {
            let defaults = Defaults {
                when_denied: WhenDenied::Counted,
                exhausted_checks: ExhaustedChecks::Allowed,
                on_store_failure: FailureMode::Local,
                mode_override,
            };
            let found = defaults.complete(limit.clone());
            assert_eq!((found.mode, found.mode_written), (mode, written), "{mode_override:?}");
            assert_eq!(found.when_denied, WhenDenied::Counted);
            assert_eq!(found.exhausted_checks, ExhaustedChecks::Allowed);
            assert_eq!(found.on_store_failure, FailureMode::Local);
        }
    }
}

#[test]
fn a_limit_that_opens_grows_evenly_from_the_start_of_its_window_to_its_end() {
    let at = Timestamp::from_millis;
    let span = Span { start: at(60_000), end: at(120_000) };
    for (opens_from, now_ms, admitted) in [
        (None, 60_000, 10),
        (Some(4), 60_000, 4),
        (Some(4), 69_999, 4),
        (Some(4), 70_000, 5),
        (Some(4), 90_000, 7),
        (Some(4), 119_999, 9),
        (Some(4), 120_000, 10),
        // The clock was set back, or the window has ended.
        (Some(4), 50_000, 4),
        (Some(4), 150_000, 10),
    ] {
        let limit = Limit { opens_from, ..limit() };
        assert_eq!(limit.requests_at(span, at(now_ms)), admitted, "{opens_from:?} at {now_ms}");
    }
}

#[test]
fn a_class_has_its_share_of_a_limit_or_of_a_burst_or_opens_with_it() {
    let of = |limit: Limit, releases| Limit { priority: priority(releases), ..limit };
    let (plain, opening) = (of(limit(), false), of(limit(), true));
    for (limit, class, name, expected) in [
        (&plain, Some("gold"), "gold", (5, 5, None)),
        (&plain, Some("iron"), "iron", (1, 1, None)),
        (&plain, Some("lead"), "default", (2, 2, None)),
        (&plain, None, "default", (2, 2, None)),
        (&Limit { requests_per_unit: 0, ..plain.clone() }, Some("gold"), "gold", (0, 0, None)),
        (&opening, Some("gold"), "gold", (10, 10, Some(5))),
        (&of(bucket(10, 50), false), Some("gold"), "gold", (10, 25, None)),
    ] {
        let found = Arc::new(limit.clone()).for_call(|key| {
            assert_eq!(key, "class");
            class.map(str::as_bytes)
        });
        let numbers = (found.requests_per_unit, found.capacity(), found.opens_from);
        assert_eq!(numbers, expected, "{class:?} of {limit}");
        assert_eq!(found.class.as_ref().map(|(name, _)| &**name), Some(name), "{class:?}");
    }
    let whole = Arc::new(limit());
    assert!(Arc::ptr_eq(&whole.for_call(|_| None), &whole), "a limit without classes is whole");
}

#[test]
fn a_percentage_is_reached_when_that_part_of_the_limit_is_used() {
    let notify_at = Some(Arc::from([33, 80]));
    let limit = Limit { notify_at, ..limit() };
    for (used, reached) in
        [(3, &[][..]), (4, &[33]), (7, &[33]), (8, &[33, 80]), (u64::MAX, &[33, 80])]
    {
        assert_eq!(&*limit.reached(used).collect::<Few<_>>(), reached, "{used}");
    }
    let none = Limit { requests_per_unit: 0, ..limit };
    assert_eq!(none.reached(9).count(), 0, "nothing is reached of a limit of 0");
}

#[test]
fn of_the_headers_of_several_tiers_each_name_has_the_value_of_the_highest() {
    let header = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
    let tier = |at, headers: &[(&str, &str)]| Tier {
        at,
        request_headers: headers.iter().map(header).collect(),
    };
    let tiers = [tier(50, &[("x-load", "half"), ("x-low", "1")]), tier(80, &[("x-load", "high")])];
    let expected: Vec<TierHeader> =
        [("x-load", "high"), ("x-low", "1")].iter().map(header).collect();
    assert_eq!(headers_of(tiers.iter()), expected);
    assert_eq!(tiers[0].to_string(), "50 %: x-load: half, x-low: 1");
}

#[test]
fn limits_of_requests_are_counted_by_values_except_for_secrets() {
    let pattern = CountedBy::Pattern("a*".into());
    let counted_by = vec![pattern, CountedBy::Digest, CountedBy::Value];
    let rule = |path: &str| Rule::new(path, String::new(), Policy::Unlimited);
    let rule_of_secret = Rule { counted_by, ..rule("file=a*|user") };
    let expected = [CountedBy::Value, CountedBy::Digest, CountedBy::Value];
    assert_eq!(rule_of_secret.secrets(), expected);
    assert_eq!((rule_of_secret.names_values(), rule("user").names_values()), (true, false));
}
