//! A real OpenTelemetry Collector receives traces, metrics and notices, and fails.

use tonic::Request;

use crate::support::{otel_collector::*, prelude::*};

const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const SPAN: &str = "b7ad6b7169203331";

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10, notify_at: [10] } }
";

fn service(collector: &OtelCollector, protocol: &str, store: &str, logs: &str) -> Service {
    Service::with(RULES)
        .on(store)
        .environment(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint(protocol)),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
            ("OTEL_LOGS_EXPORTER", logs),
        ])
        .start()
}

/// Makes a call in this trace.
async fn call(service: &Service, trace: &str) {
    let mut call = Request::new(shop("user=a"));
    call.metadata_mut().insert("traceparent", format!("00-{trace}-{SPAN}-01").parse().unwrap());
    service.client().await.should_rate_limit(call).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_decodes_traces_metrics_and_notices_of_both_protocols() {
    for (protocol, trace) in [
        ("grpc", "0af7651916cd43dd8448eb211c80319c"),
        ("http/protobuf", "1af7651916cd43dd8448eb211c80319c"),
    ] {
        let (redis, collector) = (Redis::start(), OtelCollector::start());
        let service = service(&collector, protocol, &redis.url(), "otlp");
        service.wait_until_ready();
        call(&service, trace).await;
        let span = |name: &str| {
            eventually(&format!("{protocol}: {name} of {trace}"), || {
                let mut spans = collector.spans().into_iter();
                spans.find(|span| span["name"] == name && span["traceId"] == trace)
            })
        };
        let (server, run) = (span(METHOD), span("EVALSHA"));
        assert_eq!(server["parentSpanId"], SPAN);
        assert_eq!(run["parentSpanId"], server["spanId"]);
        // A server and a client.
        assert_eq!((&server["kind"], &run["kind"]), (&2.into(), &3.into()));
        assert_eq!(text_attribute(&server["attributes"], "ratelimit.verdict"), "ok");
        assert_eq!(text_attribute(&run["attributes"], "db.system.name"), "redis");
        assert_eq!(text_attribute(&server["resource"], "service.name"), "tollkeeper");

        let measured = eventually(&format!("{protocol}: the duration of the call"), || {
            let mut metrics = collector.metrics().into_iter();
            metrics.find(|metric| metric["name"] == "rpc.server.call.duration")
        });
        assert_eq!(measured["unit"], "s");
        let durations = &measured["histogram"]["dataPoints"][0];
        assert_eq!(durations["count"], "1", "{measured}");
        assert_eq!(text_attribute(&durations["attributes"], "rpc.method"), METHOD);
        assert_eq!(text_attribute(&measured["resource"], "service.name"), "tollkeeper");

        let notice = eventually(&format!("{protocol}: the notice"), || collector.records().pop());
        assert_eq!(notice["eventName"], "io.tollkeeper.limit.reached");
        assert_eq!(notice["severityText"], "INFO");
        assert_eq!(text_attribute(&notice["attributes"], "rule"), "user");
        assert_eq!(text_attribute(&notice["resource"], "service.name"), "tollkeeper");
        assert_eq!(service.warnings(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_down_is_one_warning_and_gets_the_spans_of_later_calls() {
    for protocol in ["grpc", "http/protobuf"] {
        let mut collector = OtelCollector::start();
        let service = service(&collector, protocol, "memory://", "none");
        collector.stop();
        let line = |text: &str| {
            eventually(&format!("{protocol}: {text}"), || {
                let warnings = service.warnings();
                assert!(warnings.len() <= 1, "{protocol}: one about {text}: {warnings:?}");
                service.log().contains(text).then_some(())
            });
        };
        call(&service, "2af7651916cd43dd8448eb211c80319c").await;
        line("the OTLP collector is not reachable");
        call(&service, "3af7651916cd43dd8448eb211c80319c").await;
        collector.start_again();
        line("accepts traces and metrics again");
        let later = "4af7651916cd43dd8448eb211c80319c";
        call(&service, later).await;
        wait_until(&format!("{protocol}: the later span"), || {
            collector.spans().iter().any(|span| span["traceId"] == later)
        });
    }
}
