//! Names and values that callers invent: nothing in the service grows with them, and nothing repeats them.

use crate::support::prelude::*;

/// Part of every invented name and value.
const MARKER: &str = "marker-5e1f";

/// How many different names and values.
const COUNT: usize = 100_000;

/// What may grow, and must not.
#[derive(Debug)]
struct Size {
    series: usize,
    log_lines: usize,
    memory_kb: u64,
}

impl Size {
    fn of(service: &mut Service) -> Self {
        let (metrics, log) = (service.get("/metrics"), service.log());
        let rules = service.get("/rules");
        for output in [&metrics, &log, &rules] {
            assert!(!output.contains(MARKER), "{output}");
        }
        let status = format!("/proc/{}/status", service.process().0.id());
        let status = std::fs::read_to_string(status).unwrap();
        let memory = status.split("VmRSS:").nth(1).unwrap().split_whitespace().next().unwrap();
        Self {
            series: metrics.lines().count(),
            log_lines: log.lines().count(),
            memory_kb: memory.parse().unwrap(),
        }
    }
}

/// A descriptor with an invented name.
type Invention = fn(&str) -> RateLimitDescriptor;

/// Sends these descriptors, 50 in a call, each call in a domain of its own if `domain` is `None`.
async fn send(
    service: &Service,
    domain: Option<&str>,
    numbers: std::ops::Range<usize>,
    of: Invention,
) {
    let mut client = service.client().await;
    for first in numbers.clone().step_by(50) {
        let invented = |number: usize| format!("{MARKER}-{number}");
        let domain = domain.map_or_else(|| invented(first), str::to_owned);
        let descriptors = (first..first + 50).map(|number| of(&invented(number))).collect();
        client.should_rate_limit(request(&domain, descriptors)).await.unwrap();
    }
}

fn value(invented: &str) -> RateLimitDescriptor {
    descriptor(&[("user", invented)])
}

fn key(invented: &str) -> RateLimitDescriptor {
    descriptor(&[(invented, invented), ("user", invented)])
}

#[tokio::test]
async fn series_log_and_memory_do_not_grow_with_what_callers_invent() {
    let flags = &["--memory-counters-max", "1000", "--log-level", "debug"];
    let mut service = Service::shop().flags(flags).start();
    let parts: [(_, Invention); 3] = [(Some("shop"), value), (Some("shop"), key), (None, value)];
    // Memory is full and every series exists afterwards.
    for (domain, of) in parts {
        send(&service, domain, 0..10_000, of).await;
    }
    let before = Size::of(&mut service);
    for (domain, of) in parts {
        send(&service, domain, 10_000..10_000 + COUNT, of).await;
    }
    let after = Size::of(&mut service);
    assert_eq!(after.series, before.series);
    // One line a minute for unmatched descriptors, and one for evicted counters.
    assert!(after.log_lines <= before.log_lines + 6, "{}", service.log());
    // Seven bytes for each: no name, no hash, no pointer is kept.
    assert!(after.memory_kb < before.memory_kb + 2_000, "{before:?}, {after:?}");
}

#[tokio::test]
async fn redis_has_keys_only_for_counters_of_rules() {
    let (redis, mut service) = Service::shop().on_redis();
    send(&service, Some("shop"), 0..10_000, key).await;
    send(&service, None, 0..10_000, value).await;
    // Each ten seconds the service writes a key of its own, for a second.
    let counters = || redis.keys().iter().filter(|key| !key.contains("{probe}")).count();
    assert_eq!(counters(), 0);
    send(&service, Some("shop"), 0..10_000, value).await;
    assert_eq!(counters(), 10_000);
    redis.assert_no_key_leaks();
    Size::of(&mut service);
}

#[tokio::test]
async fn no_refusal_repeats_a_name_or_value_of_its_request() {
    let service = Service::shop().start();
    for descriptors in [
        vec![descriptor(&[("", MARKER)])],
        vec![descriptor(&[(MARKER, MARKER); 33])],
        vec![descriptor(&[(MARKER, MARKER)]); 65],
        vec![],
    ] {
        let status = service.ask(request(MARKER, descriptors)).await.unwrap_err();
        assert!(!format!("{status:?}").contains(MARKER), "{status:?}");
    }
    for body in [
        r#"{"domain":["MARKER"]}"#,
        r#"{"domain":"MARKER","descriptors":"MARKER"}"#,
        r#"{"domain":"MARKER","descriptors":[{"entries":[{"key":"","value":"MARKER"}]}]}"#,
        r#"{"domain":"MARKER","descriptors":[{"entries":"a, expected MARKER"}]}"#,
        r#"{"domain":"MARKER","descriptors":[{"isNegativeHits":"MARKER"}]}"#,
        r#"{"domain":"MARKER","descriptors":[{"hitsAddend":"MARKER"}]}"#,
        r#"{"domain":"MARKER","descriptors":[{"limit":{"unit":"MARKER"}}]}"#,
        "MARKER",
    ] {
        let body = body.replace("MARKER", MARKER);
        for address in [service.http, service.admin] {
            let path = if address == service.http { "/json" } else { "/explain" };
            let (status, _, answer) = service.exchange_at(address, "POST", path, body.as_bytes());
            assert_eq!(status, 400, "{body}: {answer}");
            assert!(!answer.contains(MARKER), "{body}: {answer}");
        }
    }
    assert!(!service.log().contains(MARKER), "{}", service.log());
}
