//! Traces and metrics, as an OTLP receiver gets them; no value of a descriptor is in them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    trace::v1::Span,
};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use crate::support::{
    eventually,
    redis_server::Redis,
    service::{Options, Service, descriptor, hits, request},
};

/// An OTLP receiver that stores what it receives, or refuses it.
#[derive(Clone, Default)]
struct Receiver {
    refuses: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    spans: Arc<Mutex<Vec<Span>>>,
    metrics: Arc<Mutex<Vec<ExportMetricsServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.accept()?;
        let resources = request.into_inner().resource_spans;
        let scopes = resources.into_iter().flat_map(|resource| resource.scope_spans);
        self.spans.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.accept()?;
        self.metrics.lock().unwrap().push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

impl Receiver {
    fn accept(&self) -> Result<(), Status> {
        if self.refuses.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Status::permission_denied("its own words"));
        }
        Ok(())
    }

    async fn start() -> (Self, String) {
        let receiver = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = Server::builder()
            .add_service(TraceServiceServer::new(receiver.clone()))
            .add_service(MetricsServiceServer::new(receiver.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(server);
        (receiver, endpoint)
    }

    fn span(&self, name: &str) -> Span {
        let spans = self.spans.lock().unwrap();
        let mut found = spans.iter().filter(|span| span.name == name);
        let span = found.next().unwrap_or_else(|| panic!("no span {name} in {spans:?}"));
        assert!(found.next().is_none(), "one span {name} in {spans:?}");
        span.clone()
    }
}

const CANARY: &str = "canary-7f3a";

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_a_span_in_its_callers_trace_with_a_child_for_its_redis_command() {
    let (receiver, endpoint) = Receiver::start().await;
    let redis = Redis::start();
    let mut service = Service::start(Options {
        store: &redis.url(),
        flags: &["--log-level", "debug"],
        environment: &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)],
        ..Options::default()
    });
    service.wait_until_ready();
    let descriptors = vec![descriptor(&[("user", CANARY)]), descriptor(&[(CANARY, CANARY)])];
    let mut call = Request::new(request("shop", descriptors));
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    call.metadata_mut().insert("traceparent", parent.parse().unwrap());
    service.client().await.should_rate_limit(call).await.unwrap();
    let unknown = request(CANARY, vec![descriptor(&[("user", CANARY)])]);
    let mut unsampled = Request::new(unknown);
    let parent = format!("00-{trace}-b7ad6b7169203331-00");
    unsampled.metadata_mut().insert("traceparent", parent.parse().unwrap());
    service.client().await.should_rate_limit(unsampled).await.unwrap();
    let scraped = service.get("/metrics");

    service.process().signal("TERM");
    assert!(service.process().0.wait().unwrap().success(), "{}", service.log());

    let server = receiver.span("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&server.trace_id), trace, "in the caller's trace");
    assert_eq!(hex(&server.parent_span_id), "b7ad6b7169203331");
    assert_eq!(server.kind, 2, "a server span");
    // A command serves several calls; the child span of a call covers its wait for the reply.
    let child = receiver.span("EVALSHA");
    assert_eq!((&child.trace_id, child.kind), (&server.trace_id, 3), "a client span");
    assert_eq!(child.parent_span_id, server.span_id);

    let exported = format!("{:?}", receiver.metrics.lock().unwrap());
    for name in ["rpc.server.call.duration", "db.client.operation.duration", "ratelimit.decisions"]
    {
        assert!(exported.contains(name), "{name} by OTLP");
        let name = name.replace('.', "_");
        assert!(scraped.contains(&name), "{name} on /metrics: {scraped}");
    }
    assert!(
        scraped.contains(r#"ratelimit_decisions_total{code="ok",domain="shop",rule="user"} 1"#)
    );
    assert!(
        scraped.contains(r#"ratelimit_decisions_total{code="ok",domain="other",rule="other"} 1"#)
    );

    let spans = format!("{:?}", receiver.spans.lock().unwrap());
    for text in [spans, exported, scraped, service.log()] {
        assert!(!text.contains(CANARY), "a value or name of the request in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_state_over_512_bytes_is_not_exported_and_its_trace_goes_on() {
    let (receiver, endpoint) = Receiver::start().await;
    let environment = &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let mut service = Service::start(Options { environment, ..Options::default() });
    let mut client = service.client().await;
    for (trace, length) in [("aa", 512), ("bb", 513)] {
        let mut call = Request::new(request("shop", vec![descriptor(&[("user", "a")])]));
        let parent = format!("00-{}-b7ad6b7169203331-01", trace.repeat(16));
        call.metadata_mut().insert("traceparent", parent.parse().unwrap());
        let state = format!("a={},b={}", "x".repeat(length - 261), "x".repeat(256));
        call.metadata_mut().insert("tracestate", state.parse().unwrap());
        client.should_rate_limit(call).await.unwrap();
    }
    service.process().signal("TERM");
    assert!(service.process().0.wait().unwrap().success(), "{}", service.log());

    let spans = receiver.spans.lock().unwrap();
    let state = |trace: u8| {
        let span = spans.iter().find(|span| span.trace_id == [trace; 16]).expect("a span");
        span.trace_state.len()
    };
    assert_eq!([state(0xaa), state(0xbb)], [512, 0]);
}

#[tokio::test]
async fn random_names_create_no_series() {
    let service = Service::start(Options::default());
    let mut client = service.client().await;
    let mut ask = async |name: String| {
        let descriptors = vec![descriptor(&[("user", &name)]), descriptor(&[(&name, "x")])];
        client.should_rate_limit(request(&name, descriptors.clone())).await.unwrap();
        client.should_rate_limit(request("shop", descriptors)).await.unwrap();
    };
    ask("first".into()).await;
    let before = service.get("/metrics").lines().count();
    for number in 0..500 {
        ask(format!("name{number}")).await;
    }
    assert_eq!(service.get("/metrics").lines().count(), before);
    assert_eq!(service.log().matches("matched no rule").count(), 1, "logged once a minute");
}

#[tokio::test]
async fn an_unreachable_collector_affects_no_decision_and_delays_no_exit() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let endpoint = format!("http://{gone}");
    let environment = &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let mut service = Service::start(Options { environment, ..Options::default() });
    service.ask(request("shop", vec![descriptor(&[("user", "a")])])).await.unwrap();
    service.wait_until_ready();
    service.process().signal("TERM");
    assert!(service.process().0.wait().unwrap().success());
    // The flush at the end tries to send traces and metrics.
    eventually("the outage is logged", || (outages(&service) == (1, 0)).then_some(()));
}

/// The number of log lines about the collector's outages and of those about their ends.
fn outages(service: &Service) -> (usize, usize) {
    let log = service.log();
    let of_collector = log.lines().filter(|line| line.contains("OTEL_EXPORTER_OTLP_ENDPOINT"));
    let (ends, outages): (Vec<_>, Vec<_>) = of_collector.partition(|line| line.contains("INFO"));
    assert!(outages.iter().all(|line| line.contains("WARN")), "{log}");
    (outages.len(), ends.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_collector_is_one_line_and_its_end_another() {
    let (receiver, endpoint) = Receiver::start().await;
    let environment = &[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "20"),
    ];
    let service = Service::start(Options { environment, ..Options::default() });
    let mut client = service.client().await;
    // Only calls produce spans.
    let mut call_until = async |what: &str, done: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !done() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "not within 60 s: {what}: {}",
                service.log()
            );
            let call = request("shop", vec![descriptor(&[("user", "a")])]);
            client.should_rate_limit(call).await.unwrap();
        }
    };
    for outage in 1..=2 {
        let refused = || receiver.refused.load(Ordering::Relaxed);
        let before = refused();
        receiver.refuses.store(true, Ordering::Relaxed);
        call_until("20 exports are refused", &|| refused() >= before + 20).await;
        eventually("the outage is logged", || (outages(&service).0 == outage).then_some(()));
        receiver.refuses.store(false, Ordering::Relaxed);
        call_until("its end is logged", &|| outages(&service) == (outage, outage)).await;
    }
    let log = service.log();
    assert!(!log.contains(&endpoint) && !log.contains("its own words"), "{log}");
}

#[tokio::test]
async fn every_rule_has_a_series_of_its_own_however_many_there_are() {
    let mut rules = "domain: shop\ndescriptors:\n".to_owned();
    for number in 0..3000 {
        rules += &format!(
            "  - {{ key: k{number}, rate_limit: {{ unit: year, requests_per_unit: 9 }} }}\n"
        );
    }
    let flags = &["--max-descriptors", "1000"];
    let service = Service::start(Options { rules: &rules, flags, ..Options::default() });
    for part in 0..3 {
        let one = |number| descriptor(&[(&format!("k{number}"), "x")]);
        let descriptors = (part * 1000..part * 1000 + 1000).map(one).collect();
        service.ask(request("shop", descriptors)).await.unwrap();
    }
    let metrics = service.get("/metrics");
    for number in 0..3000 {
        let series =
            format!(r#"ratelimit_decisions_total{{code="ok",domain="shop",rule="k{number}"}} 1"#);
        assert!(metrics.contains(&series), "{series}");
    }
}

#[tokio::test]
async fn metrics_show_values_only_of_rules_that_ask_for_it_and_at_most_a_thousand() {
    let rules = "
domain: shop
descriptors:
  - { key: plain, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: detailed, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
  - key: route
    value_to_metric: true
    descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 9 } }]
  - key: file
    value: 'a*'
    share_threshold: true
    detailed_metric: true
    rate_limit: { unit: year, requests_per_unit: 9000 }
";
    let flags = &["--max-descriptors", "1000"];
    let service = Service::start(Options { rules, flags, ..Options::default() });
    let call = vec![
        descriptor(&[("plain", "secret")]),
        descriptor(&[("detailed", "a b")]),
        descriptor(&[("route", "/x"), ("user", "secret")]),
        descriptor(&[("file", "a.secret")]),
    ];
    service.ask(request("shop", call)).await.unwrap();
    let metrics = service.get("/metrics");
    for rule in ["plain", "detailed=a%20b", "route=/x|user", "file=a*"] {
        assert!(metrics.contains(&format!("rule=\"{rule}\"")), "{rule}: {metrics}");
    }
    assert!(!metrics.contains("secret"), "{metrics}");

    for part in 0..2 {
        let one = |number: u32| descriptor(&[("detailed", &number.to_string())]);
        let descriptors = (part * 1000..part * 1000 + 1000).map(one).collect();
        service.ask(request("shop", descriptors)).await.unwrap();
    }
    let metrics = service.get("/metrics");
    let decisions = metrics.lines().filter(|line| line.starts_with("ratelimit_decisions_total"));
    assert_eq!(decisions.filter(|line| line.contains("rule=\"detailed=")).count(), 1000);
    let rest = r#"ratelimit_decisions_total{code="ok",domain="shop",rule="detailed|other"} 1001"#;
    assert!(metrics.contains(rest), "{rest}");
}

/// Sends a call for these users, and counts the series of their rule.
async fn series_of_users(service: &Service, users: std::ops::Range<u32>) -> usize {
    let one = |number: u32| descriptor(&[("user", &format!("u{number}"))]);
    service.ask(request("shop", users.map(one).collect())).await.unwrap();
    let metrics = service.get("/metrics");
    let decisions = metrics.lines().filter(|line| line.starts_with("ratelimit_decisions_total"));
    decisions.filter(|line| line.contains("rule=\"user=")).count()
}

#[tokio::test]
async fn a_rule_that_a_reload_moves_to_another_line_keeps_its_thousand_series() {
    let rules = "
domain: shop
descriptors:
  - { key: user, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
";
    let flags = &["--max-descriptors", "1000"];
    let service = Service::start(Options { rules, flags, ..Options::default() });
    assert_eq!(series_of_users(&service, 0..1000).await, 1000);
    for (lines, users) in [(1, 1000..2000), (2, 2000..3000)] {
        service.reload(&("# a comment\n".repeat(lines) + rules));
        assert_eq!(series_of_users(&service, users).await, 1000, "{lines} lines further down");
    }
    // A rule that is removed and added again gets a thousand series again.
    service.reload("domain: shop\ndescriptors: []\n");
    service.reload(rules);
    assert_eq!(series_of_users(&service, 3000..3500).await, 1500);
}

#[tokio::test]
async fn a_refused_debit_names_its_rule_wherever_a_reload_moved_it() {
    let looked = "  - { key: looked, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    let plain = "  - { key: plain, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    let head = "domain: shop\ndescriptors:\n";
    let rules = format!("{head}{looked}{plain}");
    let service = Service::start(Options { rules: &rules, ..Options::default() });
    let ask = async |key: &str, count| {
        let call = vec![hits(descriptor(&[(key, "x")]), count)];
        service.ask(request("shop", call)).await.unwrap();
    };
    let refused = || {
        let metrics = service.get("/metrics");
        let lines =
            metrics.lines().filter(|line| line.starts_with("ratelimit_debits_refused_total"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    ask("looked", 0).await;
    service.reload(&format!("{head}{plain}{looked}"));
    ask("plain", 2).await;
    assert_eq!(refused(), [""; 0], "it has had no look");
    ask("looked", 2).await;
    assert_eq!(refused(), [r#"ratelimit_debits_refused_total{rule="looked"} 1"#]);
    let line = eventually("a warning", || {
        let log = service.log();
        log.lines().find(|line| line.contains("count_denied")).map(str::to_owned)
    });
    assert!(line.contains("looked") && line.contains("rules.yaml:4"), "{line}");

    // The looks of a rule are forgotten when a reload removes the rule.
    service.reload(&format!("{head}{plain}"));
    service.reload(&rules);
    ask("looked", 2).await;
    assert_eq!(refused(), [r#"ratelimit_debits_refused_total{rule="looked"} 1"#]);
}

#[tokio::test]
async fn hits_are_counted_by_how_near_they_are_to_the_limit() {
    let rules = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 15 } }
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
";
    let service = Service::start(Options { rules, ..Options::default() });
    for count in [11, 2, 9] {
        let call = vec![hits(descriptor(&[("user", "x")]), count)];
        service.ask(request("shop", call)).await.unwrap();
    }
    service.ask(request("shop", vec![hits(descriptor(&[("shadow", "x")]), 2)])).await.unwrap();
    let metrics = service.get("/metrics");
    for (rule, standing, count) in
        [("user", "within", 12), ("user", "near", 1), ("user", "over", 9), ("shadow", "shadow", 2)]
    {
        let series = format!(
            r#"ratelimit_hits_total{{domain="shop",rule="{rule}",standing="{standing}"}} {count}"#
        );
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
}

/// The count of hits over the limit, as /metrics shows it.
fn hits_over(service: &Service) -> String {
    let metrics = service.get("/metrics");
    let series = r#"ratelimit_hits_total{domain="shop",rule="user",standing="over"} "#;
    let count = metrics.lines().find_map(|line| line.strip_prefix(series));
    count.unwrap_or_else(|| panic!("{series}: {metrics}")).to_owned()
}

/// Prometheus reads a counter as a float, which is exact below 2^53.
#[tokio::test]
async fn one_call_with_the_most_hits_leaves_the_counter_of_hits_exact() {
    let service = Service::start(Options::default());
    let ask = async |count| {
        let call = vec![hits(descriptor(&[("user", "x")]), count)];
        service.ask(request("shop", call)).await.unwrap();
    };
    ask(u64::MAX).await;
    assert_eq!(hits_over(&service), "4294967295");
    ask(11).await;
    ask(11).await;
    assert_eq!(hits_over(&service), "4294967317");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_collector_delays_the_exit_and_a_second_signal_ends_the_wait() {
    // The system accepts the connections, and no program answers on them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let environment = &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let mut took = Vec::new();
    for second in [None, Some("INT")] {
        let mut service = Service::start(Options { environment, ..Options::default() });
        service.wait_until_ready();
        service.ask(request("shop", vec![descriptor(&[("user", "a")])])).await.unwrap();
        let began = Instant::now();
        service.process().signal("TERM");
        if let Some(second) = second {
            eventually("the drain begins", || service.log().contains("draining").then_some(()));
            service.process().signal(second);
        }
        assert!(service.process().0.wait().unwrap().success(), "{}", service.log());
        took.push(began.elapsed());
    }
    assert!(took[1] < took[0], "{took:?}");
}
