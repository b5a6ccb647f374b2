//! A scenario on every store.

use super::prelude::*;

/// Runs a scenario on an empty memory store, on an empty Redis, and on one that runs no scripts.
pub async fn on_every_store(rules: &str, flags: &[&str], scenario: impl AsyncFn(&Service)) {
    let options = || Options { rules, flags, ..Options::default() };
    scenario(&Service::start(options())).await;
    let redis = Redis::start();
    scenario(&Service::start(Options { store: &redis.url(), ..options() })).await;
    redis.assert_no_key_leaks();

    let redis = Redis::start();
    let flags = &[flags, &["--redis-scripts", "off"]].concat();
    let store = redis.url_without_scripts();
    scenario(&Service::start(Options { store: &store, flags, ..options() })).await;
    redis.assert_no_key_leaks();
}

pub fn one(key: &str, value: &str) -> RateLimitDescriptor {
    descriptor(&[(key, value)])
}
