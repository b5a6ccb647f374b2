//! Promise 1: exactly the limit, with any number of replicas and clients.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tollkeeper::rls::pb::rate_limit_response::Code;

use crate::support::{
    redis_server::Redis,
    service::{Options, Service, descriptor, request},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000 }
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 100000 }
";

#[tokio::test(flavor = "multi_thread")]
async fn four_replicas_and_64_clients_admit_exactly_the_limit_and_charge_a_sibling_as_much() {
    const CALLS: usize = 5_000;
    let redis = Redis::start();
    let start =
        || Service::start(Options { rules: RULES, store: &redis.url(), ..Default::default() });
    let services = [start(), start(), start(), start()];
    let (asked, passed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));

    let mut clients = tokio::task::JoinSet::new();
    for number in 0..64 {
        let mut client = services[number % services.len()].client().await;
        let (asked, passed) = (Arc::clone(&asked), Arc::clone(&passed));
        clients.spawn(async move {
            while asked.fetch_add(1, Ordering::Relaxed) < CALLS {
                let descriptors =
                    vec![descriptor(&[("tenant", "acme")]), descriptor(&[("user", "everyone")])];
                let answer = client.should_rate_limit(request("shop", descriptors)).await.unwrap();
                if answer.into_inner().overall_code() == Code::Ok {
                    passed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }

    assert_eq!(passed.load(Ordering::Relaxed), 1000);
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("user=everyone")]), 1000);
    assert_eq!(redis.query::<u64>(&["GET", &redis.key("tenant=acme")]), 1000);
    redis.assert_no_key_leaks();
}
