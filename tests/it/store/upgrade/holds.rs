//! Holds that one build takes and the other commits, and those that each counts for itself.

use tempfile::NamedTempFile;

use super::{WAYS, both, shown};
use crate::support::{prelude::*, service::metadata};

const RULES: &str = "
domain: shop
descriptors:
  - key: fixed
    rate_limit: { unit: year, requests_per_unit: 1000, hold: 10m }
  - key: first
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: first_hit_window, hold: 10m }
  - key: sliding
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: sliding_window, hold: 10m }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: token_bucket, hold: 10m }
  - key: money
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 400, weights: { in: 2, out: 8 } } }
  - key: job
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, by: id } }
  - key: slot
    rate_limit: { algorithm: in_flight, requests_per_unit: 2, hold: 10m }
";

/// Limits that gateways hold. The domain is in one slot, so that the counters of both builds have the same keys.
const BY_COUNTER: &str = "
domain: shop
slot_by: domain
descriptors:
  - key: route
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, by: counter, estimate: 400 } }
";

struct World {
    redis: Redis,
    builds: [Service; 2],
    _keys: NamedTempFile,
}

impl World {
    /// Both builds, with one file of keys.
    fn start(rules: &str) -> Self {
        let (redis, mut keys) = (Redis::start(), NamedTempFile::new().unwrap());
        keys.write_all(&[b'k'; 40]).unwrap();
        let flags = ["--hold-key-file", keys.path().to_str().unwrap()];
        let options = Options { rules, store: &redis.url(), flags: &flags, ..Options::default() };
        Self { builds: both(&options), redis, _keys: keys }
    }

    async fn ask(&self, build: usize, entries: &[(&str, &str)]) -> RateLimitResponse {
        self.builds[build].ask(request("shop", vec![descriptor(entries)])).await.unwrap()
    }

    /// What one build answers to a take of 400, and the token of the hold.
    async fn take(&self, build: usize, key: &str, value: &str) -> (String, Option<String>) {
        let answer = self.ask(build, &[(key, value), ("hold.estimate", "400")]).await;
        (spell(&answer), metadata(&answer, "hold"))
    }

    /// What becomes of a commit.
    async fn commit(&self, build: usize, token: &str, used: &[(&str, &str)]) -> String {
        let entries = [&[("hold.commit", token)], used].concat();
        metadata(&self.ask(build, &entries).await, "commit").unwrap_or_default()
    }

    /// What both builds show as used.
    fn used(&self, key: &str, value: &str) -> [u64; 2] {
        [0, 1].map(|build| shown(&self.builds[build], "GET", "", key, value).0)
    }
}

#[tokio::test]
async fn a_token_of_one_build_is_committed_by_the_other_once() {
    let world = World::start(RULES);
    for [one, other] in WAYS {
        for key in ["fixed", "first", "sliding", "bucket"] {
            for (used, outcome, counted) in
                [("42", "committed", 42), ("1300", "overrun", 1300), ("0", "unused", 0)]
            {
                let value = format!("{one} {used}");
                let (answer, token) = world.take(one, key, &value).await;
                let token = token.unwrap();
                assert_eq!(answer, "OK: OK 600/1000 YEAR", "{key}");
                let (answer, _) = world.take(other, key, &value).await;
                assert_eq!(answer, "OK: OK 200/1000 YEAR", "{key}");
                let (answer, none) = world.take(one, key, &value).await;
                assert_eq!((answer.as_str(), none), ("OVER_LIMIT: OVER_LIMIT 0/1000 YEAR", None));

                let used = [("hold.used", used)];
                assert_eq!(world.commit(other, &token, &used).await, outcome, "{key}");
                for build in [one, other] {
                    assert_eq!(world.commit(build, &token, &used).await, "repeated", "{key}");
                    let late = world.commit(build, &token, &[("hold.used", "7")]).await;
                    assert_eq!(late, "repeated", "{key}");
                }
                // What the other call has taken stays.
                assert_eq!(world.used(key, &value), [counted + 400; 2], "{key}");
            }
        }
        let value = one.to_string();
        let (_, token) = world.take(one, "money", &value).await;
        let used = [("hold.used.in", "3"), ("hold.used.out", "5")];
        assert_eq!(world.commit(other, &token.unwrap(), &used).await, "committed");
        assert_eq!(world.used("money", &value), [46; 2]);
    }
    world.redis.assert_no_key_leaks();
}

#[tokio::test]
async fn a_hold_by_id_of_one_build_is_committed_by_the_other_once() {
    let world = World::start(RULES);
    for [one, other] in WAYS {
        let value = one.to_string();
        let job = [("job", &*value), ("hold.id", "x")];
        let take = [&job[..], &[("hold.estimate", "400")]].concat();
        assert_eq!(spell(&world.ask(one, &take).await), "OK: OK 600/1000 YEAR");
        for (build, used) in [(other, "42"), (other, "42"), (one, "900")] {
            world.ask(build, &[&job[..], &[("hold.used", used)]].concat()).await;
            assert_eq!(world.used("job", &value), [42; 2], "by {build}");
        }
    }
    world.redis.assert_no_key_leaks();
}

/// CHANGELOG.md: while both run, each counts its own.
#[tokio::test]
async fn each_build_counts_its_own_calls_in_flight_so_at_most_twice_the_limit() {
    let world = World::start(RULES);
    let take = async |build: usize| world.ask(build, &[("slot", "a")]).await;
    let in_flight = |build: usize| shown(&world.builds[build], "GET", "", "slot", "a").0;
    let mut tokens = Vec::new();
    for build in [0, 1, 0, 1] {
        tokens.push(metadata(&take(build).await, "hold").unwrap());
    }
    for build in [0, 1] {
        assert!(spell(&take(build).await).starts_with("OVER_LIMIT"), "{build}");
        // The other build does not find the call.
        assert_eq!(world.commit(1 - build, &tokens[build], &[]).await, "repeated");
        assert_eq!(in_flight(build), 2);
        assert_eq!(world.commit(build, &tokens[build], &[]).await, "committed");
        assert_eq!(in_flight(build), 1);
    }
    world.redis.assert_no_key_leaks();
}

/// CHANGELOG.md: while both run, each counts its own.
#[tokio::test]
async fn each_build_holds_by_counter_for_itself_and_both_count_what_was_used() {
    let world = World::start(BY_COUNTER);
    let call =
        async |build: usize, count| world.builds[build].answer(&format!("route=a({count})")).await;
    for build in [0, 1] {
        assert_eq!(call(build, 0).await, "OK: OK 600/1000 YEAR", "a take by {build}");
        assert_eq!(call(build, 0).await, "OK: OK 200/1000 YEAR", "a take by {build}");
        assert_eq!(call(build, 0).await, "OVER_LIMIT: OVER_LIMIT 0/1000 YEAR", "{build}");
    }
    let mut used = 0;
    // A commit counts in full, whether its build has open holds or not.
    for build in [0, 1, 1, 0, 0, 1] {
        call(build, 100).await;
        used += 100;
        assert_eq!(world.used("route", "a"), [used; 2]);
    }
    world.redis.assert_no_key_leaks();
}

/// CHANGELOG.md: tokens that are not signed are refused, and open holds keep their estimates.
#[tokio::test]
async fn a_token_that_is_not_signed_is_committed_only_by_the_build_that_gave_it() {
    let redis = Redis::start();
    let builds = both(&Options { rules: RULES, store: &redis.url(), ..Options::default() });
    let world = World { redis, builds, _keys: NamedTempFile::new().unwrap() };
    for [one, other] in WAYS {
        let value = one.to_string();
        let token = world.take(one, "fixed", &value).await.1.unwrap();
        let used = [("hold.used", "42")];
        assert_eq!(world.commit(other, &token, &used).await, "");
        assert_eq!(world.used("fixed", &value), [400; 2]);
        assert_eq!(world.commit(one, &token, &used).await, "committed");
        assert_eq!(world.used("fixed", &value), [42; 2]);
    }
}

/// A kind that another one includes is one that the build from before cannot count.
#[tokio::test]
async fn a_hold_with_kinds_that_only_one_build_knows_is_committed_only_by_that_one() {
    let world = World::start(RULES);
    let rules = RULES.replace("in: 2,", "in: 2, cached: { weight: 1, included_in: in },");
    world.builds[1].reload(&rules);
    let token = world.take(1, "money", "a").await.1.unwrap();
    let used = [("hold.used.in", "30"), ("hold.used.cached", "20")];
    assert_eq!(world.commit(0, &token, &used).await, "");
    assert_eq!(world.used("money", "a"), [400; 2]);
    assert_eq!(world.commit(1, &token, &used).await, "committed");
    assert_eq!(world.used("money", "a"), [40; 2]);
}
