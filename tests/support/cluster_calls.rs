//! Calls on a cluster: rules, services, and the values whose counters are on a node.

use tollkeeper::{engine::request::Entry, store::redis::RedisStore};

use super::{
    charges::prelude::*,
    cluster::{ClusterSetup, SLOTS},
    prelude::*,
    redis_store,
};

pub const ALGORITHMS: [&str; 5] =
    ["fixed_window", "first_hit_window", "sliding_log", "sliding_window", "token_bucket"];

/// Three masters without replicas.
pub fn masters(version: Version) -> Cluster {
    Cluster::start_as(&ClusterSetup { version, replicas: false, ..ClusterSetup::default() })
}

/// A rule for each algorithm with this limit a year, and one more for each value of `small`.
pub fn rules(limit: u64, small: &[(&str, u64)]) -> String {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for name in ALGORITHMS {
        for (value, limit) in [("", limit)].iter().chain(small) {
            let value =
                if value.is_empty() { String::new() } else { format!("\n    value: {value}") };
            rules += &format!(
                "  - key: {name}{value}\n    rate_limit: {{ unit: year, requests_per_unit: {limit}, algorithm: {name} }}\n"
            );
        }
    }
    rules
}

pub fn serve(cluster: &Cluster, rules: &str, flags: &[&str]) -> Service {
    Service::with(rules).on(&cluster.url()).flags(flags).ready()
}

/// A store on the cluster, which follows its map.
pub fn follow(url: &str, timeout: Duration) -> Arc<RedisStore> {
    let store = Arc::new(redis_store::store(url, 0, system_clock, timeout));
    let followed = Arc::clone(&store);
    tokio::spawn(async move { followed.follow().await });
    store
}

/// The slot of a counter in the domain `shop`.
pub fn slot_of(cluster: &Cluster, key: &str, value: &str) -> u16 {
    cluster.slot_of(&format!("{{shop|{key}={value}}}"))
}

/// The node that has this slot in a cluster of three masters whose slots have not moved.
pub fn first_owner(slot: u16) -> usize {
    (0..3).find(|node| usize::from(slot) < usize::from(SLOTS) * (node + 1) / 3).unwrap()
}

/// Values that begin with `name`, whose counters are on this node.
pub fn values_on(
    cluster: &Cluster,
    node: usize,
    key: &str,
    name: &str,
    count: usize,
) -> Vec<String> {
    let values = (0..).map(|number| format!("{name}{number}"));
    let here = values.filter(|value| first_owner(slot_of(cluster, key, value)) == node);
    here.take(count).collect()
}

/// A limit a year of each algorithm.
pub fn years(requests: u64) -> Vec<Arc<Limit>> {
    let year = |algorithm| Limit { algorithm, ..Limit::new(requests, Unit::Year, 1).unwrap() };
    Algorithm::of_time(requests, None).into_iter().map(year).map(Arc::new).collect()
}

pub fn charge(key: &str, value: &str, hits: Hits, limit: &Arc<Limit>) -> Charge {
    let entries = [Entry { key: key.to_owned().into(), value: value.to_owned().into() }];
    Charge::new(Counter::new("shop", &entries, Arc::clone(limit)), hits)
}

pub async fn ask(store: &RedisStore, charges: &[Charge]) -> Verdict {
    let answer = redis_store::answer(store, charges).await;
    answer.unwrap_or_else(|error| panic!("{error}: {charges:?}"))
}

/// How much of a counter is used.
pub fn used(service: &Service, key: &str, value: &str) -> u64 {
    service.counter("shop", &format!("{key}={value}"))["used"].as_u64().unwrap()
}

pub fn described((key, value): &(&str, String)) -> RateLimitDescriptor {
    descriptor(&[(key, value)])
}
