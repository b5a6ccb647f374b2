//! An upgrade: the present build and one from before share a Redis while replicas are replaced, forward and back. A call may
//! meet either, so each test sends calls to both in turn. CHANGELOG.md names what they do not share; the last tests pin it.

mod holds;
mod rolling;

use crate::support::{
    prelude::*,
    service::{command_of, serve_by},
};

/// The commit that is the build from before. `tests/run` builds it.
const BEFORE: &str = include_str!("upgrade/before");

/// The builds of two replicas, by which one has a call and which one the next: both ways.
const WAYS: [[usize; 2]; 2] = [[0, 1], [1, 0]];

/// A command of the build from before.
fn before() -> Command {
    let program = root().join("target/upgrade").join(BEFORE.trim()).join("tollkeeper");
    assert!(
        program.exists(),
        "{} is missing; tests/run builds it, in a clone with the history of the repository",
        program.display()
    );
    command_of(&program)
}

/// A replica of each build: the one from before, and the present one.
fn both(options: &Options<'_>) -> [Service; 2] {
    [before(), tollkeeper()].map(|program| replica(program, options))
}

fn replica(program: Command, options: &Options<'_>) -> Service {
    let service = Service::start_with(serve_by(program), Options { ..*options });
    service.wait_until_ready();
    service
}

const RULES: &str = "
domain: shop
descriptors:
  - key: fixed
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: berlin
    rate_limit: { unit: year, requests_per_unit: 10, time_zone: Europe/Berlin }
  - key: counted
    rate_limit: { unit: year, requests_per_unit: 10, count_denied: true }
";

/// Rules that need scripts.
const FURTHER: &str = "
  - key: first
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: first_hit_window }
  - key: log
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: sliding_log }
  - key: sliding
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: sliding_window }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket }
  - key: closes
    rate_limit: { unit: year, requests_per_unit: 10, ban_for: 1h }
";

async fn ask(service: &Service, descriptor: RateLimitDescriptor) -> String {
    spell(&service.ask(request("shop", vec![descriptor])).await.unwrap())
}

/// What a replica shows of a counter, or of one that it resets: what is used, what remains, and whether it is closed.
fn shown(service: &Service, method: &str, path: &str, key: &str, value: &str) -> (u64, u64, bool) {
    let value = value.replace('%', "%25").replace(' ', "%20").replace('=', "%3D");
    let path = format!("/counters{path}?domain=shop&descriptor={key}%3D{value}");
    let (status, _, body) = service.exchange_at(service.admin, method, &path, b"");
    assert_eq!(status, 200, "{body}");
    let counters: Value = serde_json::from_str(&body).unwrap();
    let counter = &counters["counters"][0];
    let number = |name: &str| counter[name].as_u64().unwrap_or_else(|| panic!("{counter}"));
    (number("used"), number("remaining"), !counter["closed"].is_null())
}

/// A counter, and the replicas of the builds that call it first and second.
struct Case<'a> {
    key: &'a str,
    value: String,
    one: &'a Service,
    other: &'a Service,
}

impl Case<'_> {
    fn of(&self) -> RateLimitDescriptor {
        descriptor(&[(self.key, &self.value)])
    }

    /// A hit by one build or the other.
    async fn ask(&self, hit: usize) -> String {
        ask([self.one, self.other][hit % 2], self.of()).await
    }

    fn shown(&self) -> [(u64, u64, bool); 2] {
        [self.one, self.other].map(|service| shown(service, "GET", "", self.key, &self.value))
    }
}

/// Exhausts counters of these rules by calls to both builds in turn, refunds hits at one, and resets them at the other.
async fn count_as_one(options: &Options<'_>, keys: &[&str]) {
    let builds = both(options);
    let mut cases = Vec::new();
    for ([first, second], key) in
        WAYS.into_iter().flat_map(|way| keys.iter().map(move |key| (way, key)))
    {
        let (one, other) = (&builds[first], &builds[second]);
        for value in ["a |=%", &"long".repeat(50)] {
            cases.push(Case { key, value: format!("{value}{first}"), one, other });
        }
    }
    for case in &cases {
        for hit in 0..10 {
            let left = 9 - hit;
            assert_eq!(
                case.ask(hit).await,
                format!("OK: OK {left}/10 YEAR"),
                "{} {}",
                case.key,
                case.value
            );
        }
        for hit in 0..2 {
            assert_eq!(case.ask(hit).await, "OVER_LIMIT: OVER_LIMIT 0/10 YEAR", "{}", case.key);
        }
        let used = if case.key == "counted" { 12 } else { 10 };
        assert_eq!(case.shown(), [(used, 0, case.key == "closes"); 2], "{}", case.key);
    }
    let (exact, others): (Vec<_>, Vec<_>) =
        cases.iter().partition(|case| case.key != "counted" && case.key != "closes");
    for case in &exact {
        ask(case.one, refund(case.of(), 3)).await;
    }
    for case in &exact {
        // A denial that a replica remembers ends within a second.
        while !case.ask(1).await.starts_with("OK") {}
        assert_eq!(case.shown(), [(8, 2, false); 2], "{}", case.key);
    }
    for case in exact.iter().chain(&others) {
        shown(case.other, "POST", "/reset", case.key, &case.value);
        assert_eq!(case.shown(), [(0, 10, false); 2], "{}", case.key);
    }
}

#[tokio::test]
async fn a_counter_is_one_for_both_builds() {
    let plain = ["fixed", "berlin", "counted"];
    let all = [&plain[..], &["first", "log", "sliding", "bucket", "closes"]].concat();
    let rules = &format!("{RULES}{FURTHER}");

    let redis = Redis::start();
    let store = &redis.url();
    count_as_one(&Options { rules, store, ..Options::default() }, &all).await;
    let (rules_of_one, flags) = (RULES, &["--redis-scripts", "off"]);
    let without_scripts = Options { rules: rules_of_one, store, flags, ..Options::default() };
    count_as_one(&without_scripts, &plain).await;
    redis.assert_no_key_leaks();

    let cluster = Cluster::start();
    let store = &cluster.url();
    count_as_one(&Options { rules, store, ..Options::default() }, &all).await;
    cluster.assert_no_key_leaks();
}
