//! Mode PART: as many hits as fit. `table.txt` has what it answers.

use super::{call, decide};
use crate::support::{prelude::*, service::RULES};
use tollkeeper_proto::v1::{Call, call::Mode};

#[tokio::test]
async fn attempts_of_a_part_are_one_decision() {
    let service = Service::shop().start();
    for part in ["user=a 9 PART", "user=a 9 PART", "user=a 9 PART", "user=two work=w 5 PART"] {
        decide(&service, "shop", vec![call(part)]).await.unwrap();
    }
    let of = |code: &str, rule: &str| {
        service.metric_with("ratelimit_decisions_total{", &[code, &format!("rule=\"{rule}\"")])
    };
    for (rule, ok, denied) in [("user", 2.0, 1.0), ("user=two", 1.0, 0.0), ("work", 1.0, 0.0)] {
        assert_eq!((of("\"ok\"", rule), of("\"over_limit\"", rule)), (ok, denied), "{rule}");
    }
}

/// 2^53 - 1: the most hits of a call.
const HITS_MAX: u64 = (1 << 53) - 1;

/// Scripts count exactly up to 2^53 only.
#[tokio::test]
async fn parts_that_ask_for_the_most_hits_get_exactly_what_fits() {
    let rules = "
domain: shop
descriptors:
  - { key: fixed, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: log, rate_limit: { algorithm: sliding_log, unit: year, requests_per_unit: 10 } }
  - { key: sliding, rate_limit: { algorithm: sliding_window, unit: year, requests_per_unit: 10 } }
  - { key: bucket, rate_limit: { algorithm: token_bucket, unit: year, requests_per_unit: 10 } }
  - { key: first, rate_limit: { algorithm: first_hit_window, unit: year, requests_per_unit: 10 } }
  - { key: quota, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: huge, rate_limit: { unit: year, requests_per_unit: 9007199254740991 } }
  - { key: seen, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 10 } }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(rules).on(store).start();
        for back in [0, 1, 2, 9, 10, 63] {
            let part = async |descriptors: String| {
                let text = format!("{} {} PART", descriptors.trim_end(), HITS_MAX - back);
                decide(&service, "shop", vec![call(&text)]).await.unwrap()[0].hits
            };
            for key in ["fixed", "log", "sliding", "bucket", "first", "quota"] {
                for (count, hits) in [(1, 10), (3, 3), (64, 0)] {
                    let one = format!("{key}={back}-{count} ");
                    assert_eq!(part(one.repeat(count)).await, hits, "{one}");
                }
            }
            for key in ["huge", "seen"] {
                let alone = HITS_MAX - back;
                for (count, hits) in [(1, alone), (3, HITS_MAX / 3), (64, HITS_MAX / 64)] {
                    let one = format!("{key}={back}-{count} ");
                    assert_eq!(part(one.repeat(count)).await, hits, "{one}");
                }
            }
            let several = format!("huge={back}-x seen={back}-x huge={back}-y");
            assert_eq!(part(several).await, HITS_MAX - back);
            let tightest = format!("huge={back}-v fixed={back}-v quota={back}-v");
            assert_eq!(part(tightest).await, 10);
        }
    }
}

#[tokio::test]
async fn parts_of_callers_that_compete_never_exceed_the_limit() {
    on_every_store(RULES, &[], async |service| {
        let competing =
            join_all((0..60).map(|_| decide(service, "shop", vec![call("work=w 37 PART")])));
        let verdicts: Vec<_> = competing.await.into_iter().map(|answer| answer.unwrap()).collect();
        let charged: u64 = verdicts.iter().map(|verdicts| verdicts[0].hits).sum();
        for verdict in verdicts.iter().flatten() {
            assert!(verdict.hits <= 37 && (verdict.code == 1) == (verdict.hits > 0), "{verdict:?}");
        }
        assert_eq!(charged, 1000);
        let read = decide(service, "shop", vec![call("work=w READ")]).await.unwrap();
        assert_eq!(read[0].statuses[0].used, Some(1000));
    })
    .await;
}

#[tokio::test]
async fn without_a_store_all_of_the_hits_pass_or_none() {
    let rules = "
domain: shop
descriptors:
  - { key: passes, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: allow } }
  - { key: denied, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: deny } }
  - { key: local, rate_limit: { unit: year, requests_per_unit: 10, on_store_failure: local } }
";
    let redis = Redis::absent();
    let flags = &["--decision-budget", "100ms"];
    let service = Service::with(rules).on(&redis.url()).flags(flags).start();
    let calls = ["passes=a", "denied=a", "local=a"].map(|text| {
        let hits = Some(if text == "local=a" { 4 } else { 20 });
        Call { mode: Mode::Part.into(), hits, ..call(text) }
    });
    let verdicts = decide(&service, "shop", calls.into()).await.unwrap();
    let hits: Vec<_> = verdicts.iter().map(|verdict| (verdict.code, verdict.hits)).collect();
    assert_eq!(hits, [(1, 20), (2, 0), (1, 4)]);
}
