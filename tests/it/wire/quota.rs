//! `envoy.service.rate_limit_quota.v3`: proxies decide by themselves, on the budget of all calls.

use std::collections::BTreeMap;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tollkeeper_proto::{
    quota::{
        BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
        rate_limit_quota_response::bucket_action::BucketAction,
        rate_limit_quota_service_client::RateLimitQuotaServiceClient,
        rate_limit_quota_usage_reports::BucketQuotaUsage,
    },
    rate_limit_strategy::Strategy,
};
use tonic::{Status, Streaming};

use crate::support::{
    envoy::{PUBLIC, RLS, envoy, example},
    overrides::set,
    prelude::*,
    service::of_bytes,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 10 }
    descriptors:
      - { key: api, rate_limit: { unit: year, requests_per_unit: 4 } }
  - { key: hot, rate_limit: { unit: year, requests_per_unit: 45 } }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: seen, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: second, rate_limit: { unit: second, requests_per_unit: 100 } }
  - { key: bucket, rate_limit: { algorithm: token_bucket, unit: hour, requests_per_unit: 100 } }
";

/// A proxy with a stream.
struct Proxy {
    reports: UnboundedSender<RateLimitQuotaUsageReports>,
    answers: Streaming<RateLimitQuotaResponse>,
}

fn pairs(bucket: &str) -> BTreeMap<String, Vec<u8>> {
    let pairs = bucket.split(' ').filter_map(|pair| pair.split_once('='));
    // A question mark stands for a byte that is no UTF-8.
    let byte = |byte: u8| if byte == b'?' { 0xff } else { byte };
    pairs.map(|(key, value)| (key.to_owned(), value.bytes().map(byte).collect())).collect()
}

fn report(domain: &str, buckets: &[(&str, i64, u64, u64)]) -> RateLimitQuotaUsageReports {
    let usage = |(bucket, seconds, allowed, denied): &(&str, i64, u64, u64)| BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket: pairs(bucket) }),
        time_elapsed: Some(prost_types::Duration { seconds: *seconds, nanos: 0 }),
        num_requests_allowed: *allowed,
        num_requests_denied: *denied,
    };
    RateLimitQuotaUsageReports {
        domain: domain.to_owned(),
        bucket_quota_usages: buckets.iter().map(usage).collect(),
    }
}

impl Proxy {
    async fn begin(service: &Service, first: RateLimitQuotaUsageReports) -> Result<Self, Status> {
        let mut client = RateLimitQuotaServiceClient::new(service.channel().await);
        let (reports, to_send) = unbounded_channel();
        reports.send(first).unwrap();
        let to_send = UnboundedReceiverStream::new(to_send);
        let answers = client.stream_rate_limit_quotas(to_send).await?.into_inner();
        Ok(Self { reports, answers })
    }

    fn report(&self, buckets: &[(&str, i64, u64, u64)]) {
        self.reports.send(report("shop", buckets)).unwrap();
    }

    /// What the next answer says, by bucket, if the last action of each counts. Hits follow a blanket rule, since Envoy fills a
    /// bucket that follows another one by as much as is left in that one.
    async fn told(&mut self) -> Result<Vec<String>, Status> {
        let answer = tokio::time::timeout(PATIENCE, self.answers.message()).await;
        let answer = answer.expect("an answer in time")?.expect("the stream goes on");
        let spelled = answer.bucket_action.iter().map(|action| {
            let bucket = action.bucket_id.as_ref().unwrap().bucket.iter();
            let bucket =
                bucket.map(|(key, value)| format!("{key}={}", String::from_utf8_lossy(value)));
            let told = match action.bucket_action.as_ref().unwrap() {
                BucketAction::AbandonAction(_) => "abandoned".to_owned(),
                BucketAction::QuotaAssignmentAction(assignment) => {
                    let lasts = assignment.assignment_time_to_live.as_ref().unwrap();
                    assert_eq!((lasts.seconds, lasts.nanos), (7, 0));
                    match assignment
                        .rate_limit_strategy
                        .as_ref()
                        .unwrap()
                        .strategy
                        .as_ref()
                        .unwrap()
                    {
                        Strategy::BlanketRule(0) => "all".to_owned(),
                        Strategy::BlanketRule(_) => "none".to_owned(),
                        Strategy::TokenBucket(bucket) => {
                            let interval = bucket.fill_interval.as_ref().unwrap().seconds;
                            assert_eq!((bucket.tokens_per_fill, interval), (Some(1), 31_536_000));
                            bucket.max_tokens.to_string()
                        }
                    }
                }
            };
            (bucket.collect::<Vec<_>>().join(" "), told)
        });
        let spelled: BTreeMap<_, _> = spelled.collect();
        let spelled = spelled.into_iter().map(|(bucket, told)| format!("{bucket}: {told}"));
        Ok(spelled.collect())
    }
}

async fn proxy(service: &Service, buckets: &[(&str, i64, u64, u64)]) -> Proxy {
    Proxy::begin(service, report("shop", buckets)).await.unwrap()
}

/// How many calls pass until one is denied.
async fn admitted(service: &Service, entries: &[(&str, &str)]) -> u64 {
    admitted_in("shop", service, entries).await
}

async fn admitted_in(domain: &str, service: &Service, entries: &[(&str, &str)]) -> u64 {
    let mut admitted = 0;
    loop {
        let call = request(domain, vec![descriptor(entries)]);
        match service.ask(call).await.unwrap().overall_code() {
            Code::Ok => admitted += 1,
            _ => return admitted,
        }
    }
}

/// Reported calls are counted behind the answer.
#[track_caller]
fn wait_for_used(service: &Service, counter: &str, used: u64) {
    eventually("the reported calls were counted", || {
        (service.counter("shop", counter)["used"] == used).then_some(())
    });
}

async fn on_both_stores(scenario: impl AsyncFn(&Service)) {
    let redis = Redis::start();
    for store in ["memory://", &redis.url()] {
        let service = Service::with(RULES).on(store).ready();
        scenario(&service).await;
    }
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn a_proxy_gets_half_of_what_is_left_and_its_first_call_and_those_of_others_count() {
    on_both_stores(async |service| {
        let mut proxy = proxy(service, &[("user=a", 0, 1, 0)]).await;
        assert_eq!(proxy.told().await.unwrap(), ["user=a: 5"]);
        wait_for_used(service, "user=a", 6);
        assert_eq!(service.counter("shop", "user=a")["assigned"], 5);
        assert_eq!(admitted(service, &[("user", "a")]).await, 4);
    })
    .await;
}

#[tokio::test]
async fn streams_share_fairly_and_as_much_as_a_part_is_left_for_calls() {
    on_both_stores(async |service| {
        let mut first = proxy(service, &[("hot=a", 5, 0, 9)]).await;
        assert_eq!(first.told().await.unwrap(), ["hot=a: 20"]);
        let mut second = proxy(service, &[("hot=a", 5, 0, 9)]).await;
        assert_eq!(second.told().await.unwrap(), ["hot=a: 15"]);
        assert_eq!(admitted(service, &[("hot", "a")]).await, 10);
        let mut third = proxy(service, &[("hot=a", 5, 0, 9)]).await;
        assert_eq!(third.told().await.unwrap(), ["hot=a: none"]);
    })
    .await;
}

#[tokio::test]
async fn each_kind_of_bucket_is_told_what_its_rule_says() {
    on_both_stores(async |service| {
        set(service, "user=banned", json!({ "action": "ban" }));
        set(service, "seen=banned", json!({ "action": "ban" }));
        set(service, "user=trusted", json!({ "action": "allow" }));
        let buckets = ["free=a", "nothing=a", "none=a", "seen=a", "second=a", "bucket=a"];
        let others = ["seen=banned", "user=banned", "user=trusted", "api=x user=b", "user=b"];
        let buckets = [&buckets[..], &others];
        let buckets: Vec<_> =
            buckets.concat().into_iter().map(|bucket| (bucket, 5, 3, 0)).collect();
        let mut proxy = proxy(service, &buckets).await;
        let expected = [
            "api=x user=b: 2",
            "free=a: all",
            "none=a: none",
            "nothing=a: all",
            "seen=a: all",
            "seen=banned: none",
            "user=b: 5",
            "user=banned: none",
            "user=trusted: all",
        ];
        assert_eq!(proxy.told().await.unwrap(), expected);
        assert_eq!(
            admitted(service, &[("user", "b"), ("api", "x")]).await,
            2,
            "in its rule's order"
        );
        let log = service.log();
        assert_eq!(log.matches("a rule does not limit proxies").count(), 2, "{log}");
        let metrics = service.get("/metrics");
        for (result, count) in [
            ("assigned", 2),
            ("denied", 3),
            ("unlimited", 4),
            ("not_assigned", 2),
            ("no_answer", 0),
        ] {
            let line =
                format!("ratelimit_quota_assignments_total{{result=\"{result}\"}} {count}\n");
            assert!(metrics.contains(&line), "{line} {metrics}");
        }
        assert!(metrics.contains("ratelimit_quota_buckets 11\n"), "{metrics}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_counts_what_proxies_report() {
    on_both_stores(async |service| {
        let mut proxy = proxy(service, &[("seen=a", 0, 1, 0)]).await;
        assert_eq!(proxy.told().await.unwrap(), ["seen=a: all"]);
        proxy.report(&[("seen=a", 5, 6, 0)]);
        wait_for_used(service, "seen=a", 7);
    })
    .await;
}

#[tokio::test]
async fn a_bucket_of_which_a_proxy_could_not_read_the_answer_is_counted_and_told_nothing() {
    on_both_stores(async |service| {
        let buckets = [("user=?", 0, 4, 0), ("free=a", 0, 1, 0)];
        let mut proxy = proxy(service, &buckets).await;
        assert_eq!(proxy.told().await.unwrap(), ["free=a: all"]);
        let call = || request("shop", vec![of_bytes(&[(b"user", b"\xff")])]);
        let answer = service.ask(call()).await.unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, 5, "4 were reported");
        proxy.report(&[("user=?", 5, 3, 0), ("free=b", 0, 1, 0)]);
        assert_eq!(proxy.told().await.unwrap(), ["free=b: all"]);
        let answer = service.ask(call()).await.unwrap();
        assert_eq!(answer.statuses[0].limit_remaining, 1, "3 more were reported");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_whose_limit_can_no_longer_be_assigned_is_given_up_and_its_unused_hits_are_given_back()
 {
    let rules = |more: &str| {
        let rule = format!("{{ unit: hour, requests_per_unit: 10{more} }}");
        format!("domain: shop\ndescriptors: [{{ key: user, rate_limit: {rule} }}]")
    };
    let service = Service::with(&rules("")).start();
    let mut proxy = proxy(&service, &[("user=a", 0, 1, 0)]).await;
    assert_eq!(proxy.told().await.unwrap(), ["user=a: 5"]);
    service.reload(&rules(", ban_for: 1h"));
    // Assignments of one bucket are a second apart.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.report(&[("user=a", 5, 1, 0)]);
    assert_eq!(proxy.told().await.unwrap(), ["user=a: abandoned"]);
    wait_for_used(&service, "user=a", 6);
    // The proxy may use the rest until the assignment has ended, and be late by a second.
    tokio::time::sleep(Duration::from_secs(8)).await;
    proxy.report(&[("user=a", 9, 0, 0)]);
    wait_for_used(&service, "user=a", 2);
    service.wait_for_metric("ratelimit_quota_buckets 0\n");
}

#[tokio::test]
async fn buckets_beyond_the_bounds_are_given_up_and_the_others_are_served() {
    let service = Service::with(RULES).start();
    let (long, longest) = ("x".repeat(1_017), "x".repeat(1_021));
    let long = format!("nothing={long}");
    let mut proxy =
        proxy(&service, &[(&format!("user={longest}"), 0, 1, 0), (&long, 0, 1, 0)]).await;
    let told = [format!("{long}: all"), format!("user={longest}: abandoned")];
    assert_eq!(proxy.told().await.unwrap(), told);
    let names: Vec<_> = (0..10_001).map(|number| format!("free={number}")).collect();
    let usages: Vec<_> = names.iter().map(|name| (&**name, 0, 1, 0)).collect();
    proxy.report(&usages);
    let mut told = Vec::new();
    while told.len() < names.len() {
        told.extend(proxy.told().await.unwrap());
    }
    let abandoned: Vec<_> = told.iter().filter(|told| told.ends_with(": abandoned")).collect();
    assert_eq!(abandoned.len(), 2, "one has been there before: {abandoned:?}");
}

#[tokio::test]
async fn bad_reports_end_the_stream_with_the_field_and_the_bound() {
    let service = Service::with(RULES).start();
    let many: Vec<_> = (0..33).map(|key| format!("k{key}=v")).collect();
    let of_many = many.join(" ");
    let field = "bucket_quota_usages[1].bucket_id.bucket: ";
    for (domain, bucket, expected) in [
        ("", "user=a", "domain: must not be empty".to_owned()),
        ("shop", "", format!("{field}0 entries are not from 1 to 32")),
        ("shop", &of_many, format!("{field}33 entries are not from 1 to 32")),
        ("shop", "=a", format!("{field}\"\" must not be a key")),
        ("shop", "hold.commit=a", format!("{field}\"hold.commit\" must not be a key")),
    ] {
        let report = report(domain, &[("user=a", 0, 0, 0), (bucket, 0, 1, 0)]);
        let status = match Proxy::begin(&service, report).await {
            Ok(mut proxy) => proxy.told().await.unwrap_err(),
            Err(status) => status,
        };
        let found = (status.code(), status.message());
        assert_eq!(found, (tonic::Code::InvalidArgument, &*expected), "{bucket}");
    }
    let mut proxy = proxy(&service, &[("user=a", 0, 1, 0)]).await;
    proxy.told().await.unwrap();
    proxy.reports.send(report("other", &[("user=a", 0, 1, 0)])).unwrap();
    let status = proxy.told().await.unwrap_err();
    assert_eq!(status.message(), "domain: must stay the same on a stream");
}

/// Assignments of a bucket are at least a second apart.
const ASSIGNED_EVERY: Duration = Duration::from_millis(1_010);

#[tokio::test]
async fn a_proxy_with_hits_left_of_a_used_up_limit_is_told_to_deny_before_they_end() {
    on_both_stores(async |service| {
        let mut proxy = proxy(service, &[("user=a", 0, 1, 0)]).await;
        assert_eq!(proxy.told().await.unwrap(), ["user=a: 5"]);
        let began = Instant::now();
        wait_for_used(service, "user=a", 6);
        assert_eq!(admitted(service, &[("user", "a")]).await, 4);
        tokio::time::sleep(ASSIGNED_EVERY).await;
        proxy.report(&[("user=a", 5, 3, 0)]);
        assert_eq!(proxy.told().await.unwrap(), ["user=a: none"]);
        let after = began.elapsed();
        assert!(after > Duration::from_secs(6), "the hits were taken back after {after:?}");
    })
    .await;
}

#[tokio::test]
async fn a_ban_ends_with_the_next_report_what_a_proxy_has() {
    on_both_stores(async |service| {
        let mut proxy = proxy(service, &[("user=a", 0, 1, 0)]).await;
        assert_eq!(proxy.told().await.unwrap(), ["user=a: 5"]);
        let began = Instant::now();
        set(service, "user=a", json!({ "action": "ban" }));
        tokio::time::sleep(ASSIGNED_EVERY).await;
        proxy.report(&[("user=a", 5, 1, 0)]);
        assert_eq!(proxy.told().await.unwrap(), ["user=a: none"]);
        let after = began.elapsed();
        assert!(after < Duration::from_secs(6), "the hits had ended after {after:?}");
    })
    .await;
}

#[tokio::test]
async fn a_connection_may_have_a_hundred_streams() {
    let service = Service::with(RULES).start();
    let channel = service.channel().await;
    let mut streams = Vec::new();
    for number in 0..=100 {
        let (reports, to_send) = unbounded_channel();
        reports.send(report("shop", &[(&format!("user={number}"), 0, 1, 0)])).unwrap();
        let to_send = UnboundedReceiverStream::new(to_send);
        let mut client = RateLimitQuotaServiceClient::new(channel.clone());
        let answers = client.stream_rate_limit_quotas(to_send).await;
        let mut proxy = Proxy { reports, answers: answers.unwrap().into_inner() };
        if number < 100 {
            assert_eq!(proxy.told().await.unwrap(), [format!("user={number}: 5")]);
        } else {
            let refused = proxy.told().await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
        }
        streams.push(proxy);
    }
}

/// Streams that a client ends at once, while their answers still wait for Redis.
#[tokio::test(flavor = "multi_thread")]
async fn streams_whose_clients_end_them_behind_a_report_are_answered_and_end() {
    on_both_stores(async |service| {
        let channel = service.channel().await;
        let streams = (0..20).map(async |number| {
            let reports = [report("shop", &[(&format!("user=ended{number}"), 0, 1, 0)])];
            let mut client = RateLimitQuotaServiceClient::new(channel.clone());
            let answers = client.stream_rate_limit_quotas(tokio_stream::iter(reports)).await;
            let mut proxy =
                Proxy { reports: unbounded_channel().0, answers: answers.unwrap().into_inner() };
            assert_eq!(proxy.told().await.unwrap(), [format!("user=ended{number}: 5")]);
            let end = tokio::time::timeout(PATIENCE, proxy.answers.message()).await;
            assert!(end.expect("the stream ends").unwrap().is_none());
        });
        futures_util::future::join_all(streams).await;
        admitted(service, &[("user", "other")]).await;
        service.assert_metric("ratelimit_quota_buckets 0\n");
    })
    .await;
}

/// Some of them while their turn has not come.
#[tokio::test(flavor = "multi_thread")]
async fn what_proxies_have_reported_counts_though_they_leave_before_the_store_answers() {
    let redis = Redis::start();
    let service = Service::with(RULES).on(&redis.url()).ready();
    redis.signal("STOP");
    let mut leaving = Vec::new();
    for number in 0..12 {
        leaving.push(proxy(&service, &[(&format!("user=leaves{number}"), 0, 3, 0)]).await);
    }
    service.wait_for_metric("ratelimit_quota_buckets 12\n");
    drop(leaving);
    redis.signal("CONT");
    // Some were also assigned hits, which nobody gives back.
    for number in 0..12 {
        let counter = || service.counter("shop", &format!("user=leaves{number}"));
        wait_until("the reported calls are counted", || counter()["used"].as_u64() >= Some(3));
    }
}

#[tokio::test]
async fn a_stream_ends_when_the_service_stops() {
    let mut service = Service::with(RULES).start();
    let mut proxy = proxy(&service, &[("user=a", 0, 1, 0)]).await;
    proxy.told().await.unwrap();
    service.process().signal("TERM");
    let status = proxy.told().await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
}

/// examples/envoy/quota.yaml, with a limit that each Envoy uses up by several assignments.
#[tokio::test]
async fn a_stock_envoy_admits_the_limit_in_all_and_no_more() {
    let redis = Redis::start();
    let rules = example("envoy/quota-rules.yaml").replace("minute", "year").replace("600", "30");
    let service = Service::with(&rules).on(&redis.url()).ready();
    let config = example("envoy/quota.yaml").replace("ALLOW_ALL", "DENY_ALL");
    let proxies = [(); 2].map(|()| envoy(&config, PUBLIC, RLS, &service));
    let (mut passed, mut last) = (0, Instant::now());
    // Envoy asks for more every 5 s.
    while passed < 30 || last.elapsed() < Duration::from_secs(8) {
        assert!(last.elapsed() < PATIENCE, "{passed} passed");
        for proxy in &proxies {
            match proxy.get(b"alice").status {
                200 => (passed, last) = (passed + 1, Instant::now()),
                status => assert_eq!(status, 429),
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(passed, 30);
    assert_eq!(admitted_in("proxies", &service, &[("service", "web"), ("user", "alice")]).await, 0);
}
