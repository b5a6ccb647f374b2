//! Many updates while calls arrive.

use super::{ask, limit, metric, rules, start_on, wait_for};
use crate::support::{ads::FakeAds, prelude::*};

const UPDATES: usize = 1000;

/// One update: most change another domain, a tenth is bad.
fn update(number: usize) -> Vec<Value> {
    let shop = limit("shop", "user", 1_000_000);
    match number % 10 {
        3 => vec![shop, json!({ "name": "bad", "domain": "bad", "descriptors": [{}] })],
        _ => vec![limit("other", "user", number as u32), shop],
    }
}

/// A refusal is sent at once if the response before it was accepted.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_updates_under_load_fail_no_call_and_keep_the_counters() {
    let redis = Redis::start();
    let ads = FakeAds::start();
    let service = Arc::new(start_on(&redis.url(), &ads.url(), &[]));
    ads.request();
    ads.respond("first", "first", &update(0));
    ads.request();
    let (stop, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let mut client = service.client().await;
        let (stop, admitted) = (Arc::clone(&stop), Arc::clone(&admitted));
        callers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = client.should_rate_limit(shop("user=a")).await.unwrap().into_inner();
                assert!(answer.statuses[0].current_limit.is_some(), "the rule was missing");
                admitted.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for number in 1..=UPDATES {
        ads.respond(&number.to_string(), &number.to_string(), &update(number));
        let answer = tokio::task::block_in_place(|| ads.request());
        assert_eq!(answer.nonce, number.to_string());
        assert_eq!(answer.error.is_some(), number % 10 == 3, "{answer:?}");
    }
    stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    let admitted = admitted.load(Ordering::Relaxed);
    assert!(admitted > 0, "no call");
    let left = 1_000_000 - admitted - 1;
    assert_eq!(ask(&service, "shop", "user=a").await, format!("OK: OK {left}/1000000 YEAR"));
    assert_eq!(metric(&service, "ratelimit_xds_nacks_total"), (UPDATES / 10) as f64);
    wait_for(&service, &UPDATES.to_string());
    assert_eq!(rules(&service)["domains"][0]["rules"][0]["limit"], format!("{UPDATES} per year"));
}
