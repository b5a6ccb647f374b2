//! Promise "Redis's clock": Redis's time decides, whatever the service's clock shows, also if Redis's clock jumps.

use std::time::SystemTime;

use tollkeeper::store::redis::script::ScriptVerdict;

use crate::support::{
    backends::{Backend as _, ScriptInRedis},
    charges::prelude::*,
    prelude::*,
    redis_server::nobody,
    service::{RULES, service_at, service_off_by},
};

#[tokio::test]
async fn services_whose_clocks_are_three_hours_wrong_share_one_count_and_one_reset() {
    let rules =
        RULES.replace("unit: year, requests_per_unit: 10 ", "unit: hour, requests_per_unit: 10 ");
    let (redis, right) = Service::with(&rules).on_redis();
    let late = service_off_by("-10800", &rules, &redis);
    let early = service_off_by("+10800", &rules, &redis);
    let ask = async |service: &Service, count| {
        service.ask(shop(&format!("user=alice({count})"))).await.unwrap()
    };
    // If an hour ends between two of these calls, they are made again.
    for _ in 0..2 {
        redis.query::<()>(&["FLUSHALL"]);
        let begin = redis.query::<Vec<i64>>(&["TIME"])[0];
        let mut resets = Vec::new();
        let mut answers = Vec::new();
        for service in [&right, &late, &early, &right] {
            let answer = ask(service, 3).await;
            answers.push(spell(&answer));
            resets.push(answer.statuses[0].duration_until_reset.unwrap().seconds);
        }
        let end = redis.query::<Vec<i64>>(&["TIME"])[0];
        if begin / 3600 != end / 3600 {
            continue;
        }
        let expected = [
            "OK: OK 7/10 HOUR",
            "OK: OK 4/10 HOUR",
            "OK: OK 1/10 HOUR",
            "OVER_LIMIT: OVER_LIMIT 0/10 HOUR",
        ];
        assert_eq!(answers, expected);
        let left = 3600 - end % 3600;
        assert!(
            resets.iter().all(|reset| (left..=left + 2 + end - begin).contains(reset)),
            "{resets:?}"
        );
        assert_eq!(redis.keys().len(), 1, "one window, one key");
        return;
    }
    panic!("two hours ended within seconds");
}

/// The clock of a machine may never have been set. HTTP/1 answers need a date, whose year has four digits.
#[tokio::test]
async fn no_call_panics_if_the_clock_is_before_1970_or_after_9999() {
    let redis = Redis::start();
    for (round, clock) in ["@1969-06-01 00:00:00", "+270000000000"].into_iter().enumerate() {
        let gone = nobody();
        let endpoint = format!("http://{gone}");
        let environment =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
        let service = service_at(clock, RULES, &redis.url(), &environment);
        for left in [9, 8] {
            let call = request("shop", vec![descriptor(&[("user", &format!("alice{round}"))])]);
            let answer = spell(&service.ask(call).await.unwrap());
            assert_eq!(answer, format!("OK: OK {left}/10 YEAR"), "{clock}");
        }
        let (code, head, body) = service.exchange("GET", "/healthz", b"");
        let expected = "this machine's clock does not show a year from 1970 to 9999\n";
        assert_eq!((code, body.as_str()), (503, expected), "{clock}: {head}");
        let warned = || service.log().contains("OTLP collector").then_some(());
        eventually("an export fails", warned);
        assert!(!service.log().contains("panicked"), "{clock}: {}", service.log());
    }
}

#[tokio::test]
async fn a_calendar_window_ends_at_midnight_of_its_time_zone() {
    let rules = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 9, time_zone: Asia/Tokyo } }]";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(rules).on(store).start();
        let now = redis.query::<Vec<i64>>(&["TIME"])[0];
        let answer = service.ask(shop("user=alice")).await.unwrap();
        // Tokyo is nine hours ahead of UTC all year.
        let left = 86_400 - (now + 9 * 3600) % 86_400;
        let reset = answer.statuses[0].duration_until_reset.unwrap().seconds;
        assert!((left - reset).rem_euclid(86_400) <= 30, "{reset} s, expected {left}");
    }
    assert!(redis.key("alice").starts_with("tk1:fw:day@Asia/Tokyo:{shop|user=alice}:"));
}

/// A real Redis does not run under libfaketime, because its allocator reads the time before the library is
/// ready. So the test passes the time to the script.
#[test]
fn windows_follow_a_redis_clock_that_jumps_and_resets_stay_in_range() {
    let mut redis = ScriptInRedis::start();
    let day = Arc::new(limit(10, Unit::Day, Algorithm::FixedWindow));
    let noon = BEGIN.plus_millis(43_200_000);
    let mut ask = |hours: i64, hits| {
        let now = noon.shifted(hours * 3_600_000);
        let [tally] = redis.charge(&[charge("alice", Hits::Charge(hits), &day)], now)[..] else {
            panic!("one charge has one tally");
        };
        assert!((1..=86_400).contains(&tally.reset.as_secs()), "{tally:?}");
        tally.fit
    };
    assert_eq!(ask(0, 8), Fit::Fits { remaining: 2 });
    for hours in [1, -1, 11, -12, 0] {
        assert_eq!(ask(hours, 3), Fit::Over, "{hours} hours off, in the same day");
    }
    // The next day is a new window, and the previous one keeps its count.
    assert_eq!(ask(24, 10), Fit::Fits { remaining: 0 });
    assert_eq!(ask(24, 1), Fit::Over);
    assert_eq!(ask(0, 2), Fit::Fits { remaining: 0 });
    redis.redis.assert_no_key_leaks();
}

#[test]
fn clock_aligned_algorithms_refuse_an_assumed_time_outside_the_current_window() {
    let mut redis = ScriptInRedis::start();
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::FirstHitWindow { idle_ms: None },
        Algorithm::SlidingLog { remember: None },
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket { burst: 10 },
    ] {
        let (name, aligned) = (algorithm.name(), algorithm.is_aligned());
        let minute = Arc::new(limit(10, Unit::Minute, algorithm));
        let call = [charge(name, Hits::Charge(1), &minute)];
        for off_ms in [-60_000, -1, 60_000, 3 * 3_600_000] {
            let answer = redis.answer_stamped(&call, BEGIN.shifted(off_ms), BEGIN);
            assert_eq!(answer == ScriptVerdict::Stale, aligned, "{name}, {off_ms} ms off");
        }
        let written = redis.redis.keys().iter().any(|key| key.contains(name));
        assert_eq!(written, !aligned, "a stale call writes nothing");
        assert!(
            redis.answer_stamped(&call, BEGIN.plus_millis(59_999), BEGIN) != ScriptVerdict::Stale
        );
    }
}

/// How many windows end meanwhile.
const WINDOWS: u64 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn each_short_window_admits_exactly_its_limit_and_no_call_fails_where_they_end() {
    let rules = "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: second, requests_per_unit: 20 } }]";
    let (redis, right) = Service::with(rules).on_redis();
    let early = service_off_by("+0.4", rules, &redis);
    // Redis has the clock of this machine.
    let second = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let begin = second();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..8 {
        let mut client = if number % 2 == 0 { right.client().await } else { early.client().await };
        clients.spawn(async move {
            let mut answers = Vec::new();
            while second() < begin + WINDOWS {
                let sent = second();
                let answer =
                    client.should_rate_limit(shop("user=alice")).await.unwrap().into_inner();
                answers.push((sent, second(), answer.overall_code() == Code::Ok));
            }
            answers
        });
    }
    let answers = clients.join_all().await.concat();
    let passed = |is_counted: &dyn Fn(u64, u64) -> bool| {
        let counted = |answer: &&(u64, u64, bool)| answer.2 && is_counted(answer.0, answer.1);
        answers.iter().filter(counted).count() as u64
    };
    for first in begin..=begin + WINDOWS {
        for last in first..=begin + WINDOWS {
            let within = passed(&|sent, answered| first <= sent && answered <= last);
            assert!(within <= 20 * (last - first + 1), "{within} in windows {first} to {last}");
        }
    }
    // A call that was denied in a window has met a full one.
    let denied = answers.iter().filter(|(sent, answered, passed)| sent == answered && !passed);
    let windows: BTreeSet<_> = denied.map(|(sent, ..)| *sent).collect();
    for window in windows {
        let most = passed(&|sent, answered| sent <= window && window <= answered);
        assert!(most >= 20, "a call was denied in window {window}, and {most} passed");
    }
}
