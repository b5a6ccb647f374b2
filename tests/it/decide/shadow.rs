//! `shadow: { requests_per_unit }` on a limit: a lower number is tried on the counter of the one that denies.

use crate::support::{prelude::*, stores::one};

const RULES: &str = "
domain: shop
descriptors:
  - key: fixed
    rate_limit: { unit: year, requests_per_unit: 4, shadow: { requests_per_unit: 2 } }
  - key: first
    rate_limit: { unit: year, requests_per_unit: 4, shadow: { requests_per_unit: 2 }, algorithm: first_hit_window }
  - key: sliding
    rate_limit: { unit: year, requests_per_unit: 4, shadow: { requests_per_unit: 2 }, algorithm: sliding_window }
  - key: log
    rate_limit: { unit: year, requests_per_unit: 4, shadow: { requests_per_unit: 2 }, algorithm: sliding_log }
  - key: flight
    rate_limit: { algorithm: in_flight, hold: 1h, requests_per_unit: 4, shadow: { requests_per_unit: 2 } }
  - key: two
    rate_limits:
      - { unit: day, requests_per_unit: 4 }
      - { unit: year, requests_per_unit: 100, shadow: { requests_per_unit: 2 } }
";

fn decided(service: &Service, rule: &str) -> [u64; 3] {
    ["ok", "shadow", "over_limit"].map(|code| {
        let labels = format!("code=\"{code}\",domain=\"shop\",rule=\"{rule}\"");
        service.metric(&format!("ratelimit_decisions_total{{{labels}}} ")) as u64
    })
}

#[tokio::test]
async fn calls_beyond_the_tried_number_pass_with_the_answer_of_the_limit_and_are_counted() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(RULES).on(store).flags(&["--top-keys", "values"]).start();
        for key in ["fixed", "first", "sliding", "log", "flight", "two"] {
            let mut answers = Vec::new();
            for _ in 0..5 {
                let answer = service.ask(shop(&format!("{key}=a"))).await.unwrap();
                answers.push((answer.overall_code(), answer.statuses[0].limit_remaining));
            }
            let [ok, over] = [Code::Ok, Code::OverLimit];
            let expected = [(ok, 3), (ok, 2), (ok, 1), (ok, 0), (over, 0)];
            assert_eq!(answers, expected, "{key} {store}");
            assert_eq!(decided(&service, key), [2, 2, 1], "{key} {store}");
        }
        let top = service.admin("GET", "/top").1;
        let keys = top["shadow"].as_array().unwrap();
        assert_eq!(keys.len(), 6, "{top}");
        assert!(keys.iter().all(|key| key["count"] == 2), "{top}");
    }
}

#[tokio::test]
async fn a_check_is_over_the_tried_number_where_a_hit_would_be_and_a_refund_never_is() {
    let service = Service::with(RULES).start();
    let ask = async |descriptor| {
        service.ask(request("shop", vec![descriptor])).await.unwrap();
        decided(&service, "fixed")
    };
    let fixed = || one("fixed", "a");
    assert_eq!(ask(hits(fixed(), 0)).await, [1, 0, 0]);
    assert_eq!(ask(hits(fixed(), 2)).await, [2, 0, 0]);
    assert_eq!(ask(hits(fixed(), 0)).await, [2, 1, 0]);
    assert_eq!(ask(hits(fixed(), 2)).await, [2, 2, 0]);
    assert_eq!(ask(refund(fixed(), 1)).await, [3, 2, 0]);
    assert_eq!(ask(refund(fixed(), 1)).await, [4, 2, 0]);
    assert_eq!(ask(hits(fixed(), 3)).await, [4, 2, 1]);
}
