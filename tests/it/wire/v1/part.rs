//! Mode PART: as many hits as fit.

use super::{HOLDS, call, check, check_batch, decide, spell};
use crate::support::{prelude::*, service::RULES, stores::one};
use tollkeeper_proto::v1::{Call, call::Mode};

/// Sends each call as a batch of its own, and compares the hits of its verdict too.
async fn check_parts(service: &Service, domain: &str, expected: &[(&str, u64, &str)]) {
    for (text, hits, verdict) in expected {
        let verdicts = decide(service, domain, vec![call(text)]).await.unwrap();
        let found = (*text, verdicts[0].hits, &*spell(&verdicts[0]));
        assert_eq!(found, (*text, *hits, *verdict));
        assert_eq!(verdicts[0].hold, "", "{text}");
    }
}

#[tokio::test]
async fn a_part_is_what_fits_and_denied_only_if_nothing_does() {
    on_every_store(RULES, &[], async |service| {
        let parts = [
            ("user=a 4 PART", 4, "OK: OK user 6/10"),
            ("user=a 9 PART", 6, "OK: OK user 0/10"),
            ("user=a 9 PART", 0, "OVER_LIMIT: OVER_LIMIT user 0/10"),
            ("user=b PART", 1, "OK: OK user 9/10"),
            ("user=b 0 PART", 0, "OK: OK user 9/10"),
            // The tightest limit of the call decides for all of its descriptors.
            ("user=two work=w 5 PART", 2, "OK: OK user=two 0/2, OK work 998/1000"),
            ("work=w work=w 1000 PART", 499, "OK: OK work 0/1000, OK work 0/1000"),
            // Attempts are not charged, though the rule charges denied calls.
            ("tokens=t 1500 PART", 1000, "OK: OK tokens 0/1000"),
            ("tokens=t 1500 PART", 0, "OVER_LIMIT: OVER_LIMIT tokens 0/1000"),
            ("tokens=t READ", 0, "OK: OVER_LIMIT tokens 0/1000 used 1000"),
            ("free=x nothing=x 7 PART", 7, "OK: OK free-, OK -"),
        ];
        check_parts(service, "shop", &parts).await;
        let metrics = service.get("/metrics");
        for (rule, denied) in [("user", 1), ("tokens", 1), ("work", 0), ("user=two", 0)] {
            let line = format!(
                "ratelimit_decisions_total{{code=\"over_limit\",domain=\"shop\",rule=\"{rule}\"}} {denied}\n"
            );
            assert_eq!(metrics.contains(&line), denied > 0, "{rule}: {metrics}");
        }
    })
    .await;
}

#[tokio::test]
async fn every_algorithm_has_parts_and_a_call_passes_if_one_quota_has_room() {
    let rules = "
domain: shop
descriptors:
  - { key: log, rate_limit: { algorithm: sliding_log, unit: year, requests_per_unit: 10 } }
  - { key: sliding, rate_limit: { algorithm: sliding_window, unit: year, requests_per_unit: 10 } }
  - { key: bucket, rate_limit: { algorithm: token_bucket, unit: year, requests_per_unit: 10 } }
  - { key: first, rate_limit: { algorithm: first_hit_window, unit: year, requests_per_unit: 10 } }
  - { key: small, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: large, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 8 } }
  - { key: seen, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(rules).on(store).start();
        for key in ["log", "sliding", "bucket", "first"] {
            let texts = [format!("{key}=a 7 PART"), format!("{key}=a 7 PART")];
            let calls = texts.iter().zip([(7, 3), (3, 0)]);
            for (text, (hits, left)) in calls {
                let expected = format!("OK: OK {key} {left}/10");
                check_parts(&service, "shop", &[(text, hits, &expected)]).await;
            }
        }
        let parts = [
            ("small=a large=a 20 PART", 8, "OK: OVER_LIMIT small 0/3, OK large 0/8"),
            ("seen=a 20 PART", 20, "OK: OK seen 0/3"),
        ];
        check_parts(&service, "shop", &parts).await;
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
async fn a_part_is_not_held_and_refused_where_places_are_for_whole_calls() {
    let service = Service::with(HOLDS).start();
    let parts = [
        ("user=a 300", 0, "OK: OK user 700/1000"),
        ("user=a 900 PART", 700, "OK: OK user 0/1000"),
        ("user=a READ", 0, "OK: OVER_LIMIT user 0/1000 used 1000"),
    ];
    for (text, hits, expected) in parts {
        let verdicts = decide(&service, "llm", vec![call(text)]).await.unwrap();
        assert_eq!((verdicts[0].hits, &*spell(&verdicts[0])), (hits, expected), "{text}");
        assert_eq!(verdicts[0].hold.is_empty(), !text.ends_with("300"), "{text}");
    }
    let own = Call { descriptors: vec![hits(one("plain", "a"), 2)], ..call("plain=a PART") };
    let back = Call { descriptors: vec![refund(one("plain", "a"), 2)], ..own.clone() };
    let named = || Call { id: "one".to_owned(), ..call("flight=a PART") };
    let calls = vec![own, back, call("plain=a flight=a PART"), named()];
    let holds = "mode: must not be PART where a limit is `in_flight`";
    let own = "descriptors[0].hits_addend: must be absent with mode PART";
    let expected = [
        ("", &*format!("InvalidArgument: calls[0].{own}")),
        ("", &*format!("InvalidArgument: calls[1].{own}")),
        ("", &*format!("InvalidArgument: calls[2].{holds}")),
        ("", &*format!("InvalidArgument: calls[3].{holds}")),
    ];
    check(decide(&service, "llm", calls).await, &expected);
    check_batch(&service, "llm", &[("plain=a READ", "OK: OK plain 1000/1000 used 0")]).await;
    // Nothing was noted of its id.
    let again = Call { id: "one".to_owned(), ..call("plain=a") };
    check(
        decide(&service, "llm", vec![named()]).await,
        &[("", &format!("InvalidArgument: calls[0].{holds}"))],
    );
    check(decide(&service, "llm", vec![again]).await, &[("", "OK: OK plain 999/1000")]);
}

#[tokio::test]
async fn a_denied_part_charges_nothing_to_quotas_either() {
    let rules = "
domain: shop
quota_group: [group]
descriptors:
  - { key: fixed, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: bucket, quota_mode: true, rate_limit: { algorithm: token_bucket, unit: year, requests_per_unit: 10 } }
  - { key: sliding, quota_mode: true, rate_limit: { algorithm: sliding_window, unit: year, requests_per_unit: 10 } }
  - key: group
    descriptors:
      - { key: small, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 5 } }
      - { key: large, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 9 } }
";
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(rules).on(store).start();
        for key in ["fixed", "bucket", "sliding"] {
            let (debit, part) = (format!("{key}=a 10 DEBIT"), format!("{key}=a 3 PART"));
            let (none, over) =
                (format!("OK: OK {key} 0/10"), format!("OVER_LIMIT: OVER_LIMIT {key} 0/10"));
            check_parts(&service, "shop", &[(&debit, 0, &none)]).await;
            check_parts(&service, "shop", &[(&*part, 0, &*over); 3]).await;
            let used = format!("OK: OVER_LIMIT {key} 0/10 used 10");
            check_batch(&service, "shop", &[(&format!("{key}=a READ"), &used)]).await;
        }
        // The tightest quota of a group decides.
        let of_group = |hits| Call {
            mode: Mode::Part.into(),
            hits: Some(hits),
            descriptors: ["small", "large"]
                .map(|key| descriptor(&[("group", "a"), (key, "a")]))
                .into(),
            ..Call::default()
        };
        for (asked, hits, left) in [(8, 5, "OK 0/5, OK 4/9"), (8, 0, "OVER_LIMIT 0/5, OK 4/9")] {
            let verdict = decide(&service, "shop", vec![of_group(asked)]).await.unwrap().remove(0);
            let statuses: Vec<_> = verdict
                .statuses
                .iter()
                .map(|status| {
                    let limit = status.current_limit.as_ref().unwrap().requests_per_unit;
                    format!("{} {}/{limit}", status.code().as_str_name(), status.limit_remaining)
                })
                .collect();
            assert_eq!((verdict.hits, &*statuses.join(", ")), (hits, left));
        }
    }
}

/// A part gets what neither hits nor open holds use, and holds nothing.
#[tokio::test]
async fn a_part_leaves_what_open_holds_hold() {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(HOLDS).on(store).start();
        let parts = [
            ("route=a 0", 0, "OK: OK route 900/1000"),
            ("route=a 950 PART", 900, "OK: OK route 0/1000"),
            ("route=a PART", 0, "OVER_LIMIT: OVER_LIMIT route 0/1000"),
            ("route=a READ", 0, "OK: OVER_LIMIT route 0/1000 used 900 held 100"),
        ];
        check_parts(&service, "llm", &parts).await;
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
