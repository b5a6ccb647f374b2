//! Traces and metrics, as an OTLP receiver sees them; and that no value of a descriptor gets there.

use std::sync::{Arc, Mutex};

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
    redis_server::Redis,
    service::{Options, Service, descriptor, request},
};

/// Keeps what it receives.
#[derive(Clone, Default)]
struct Receiver {
    spans: Arc<Mutex<Vec<Span>>>,
    metrics: Arc<Mutex<Vec<ExportMetricsServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans;
        let scopes = resources.into_iter().flat_map(|it| it.scope_spans);
        self.spans.lock().unwrap().extend(scopes.flat_map(|it| it.spans));
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.metrics.lock().unwrap().push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

impl Receiver {
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
async fn a_call_is_a_span_in_its_callers_trace_with_a_child_for_each_round_trip() {
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
    // The first run meets an empty script cache: EVALSHA is answered NOSCRIPT, and EVAL decides.
    for name in ["EVALSHA", "EVAL"] {
        let child = receiver.span(name);
        assert_eq!((&child.trace_id, child.kind), (&server.trace_id, 3), "a client span");
        assert_eq!(child.parent_span_id, server.span_id);
    }

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

#[tokio::test]
async fn random_names_make_no_series() {
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
    assert_eq!(service.log().matches("met no rule").count(), 1, "said once a minute");
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_no_decision_and_no_long_exit() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let endpoint = format!("http://{gone}");
    let environment = &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let mut service = Service::start(Options { environment, ..Options::default() });
    service.ask(request("shop", vec![descriptor(&[("user", "a")])])).await.unwrap();
    service.wait_until_ready();
    service.process().signal("TERM");
    assert!(service.process().0.wait().unwrap().success());
}
