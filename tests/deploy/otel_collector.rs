//! A real OpenTelemetry Collector receives traces, metrics and notices.

use tonic::Request;

use crate::support::{otel_collector::*, prelude::*};

const METHOD: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const SPAN: &str = "b7ad6b7169203331";

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10, notify_at: [10] } }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_decodes_traces_metrics_and_notices_of_both_protocols() {
    for (protocol, trace) in [
        ("grpc", "0af7651916cd43dd8448eb211c80319c"),
        ("http/protobuf", "1af7651916cd43dd8448eb211c80319c"),
    ] {
        let (redis, collector) = (Redis::start(), OtelCollector::start());
        let environment = &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint(protocol)),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
            ("OTEL_LOGS_EXPORTER", "otlp"),
        ];
        let service = Service::with(RULES).on(&redis.url()).environment(environment).ready();
        let mut call = Request::new(shop("user=a"));
        let parent = format!("00-{trace}-{SPAN}-01");
        call.metadata_mut().insert("traceparent", parent.parse().unwrap());
        service.client().await.should_rate_limit(call).await.unwrap();
        let span = |name: &str| {
            eventually(&format!("{protocol}: {name} of {trace}"), || {
                let spans = collector.items(["resourceSpans", "scopeSpans", "spans"]);
                spans.into_iter().find(|span| span["name"] == name && span["traceId"] == trace)
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
            let metrics = collector.items(["resourceMetrics", "scopeMetrics", "metrics"]);
            metrics.into_iter().find(|metric| metric["name"] == "rpc.server.call.duration")
        });
        assert_eq!(measured["unit"], "s");
        let durations = &measured["histogram"]["dataPoints"][0];
        assert_eq!(durations["count"], "1", "{measured}");
        assert_eq!(text_attribute(&durations["attributes"], "rpc.method"), METHOD);
        assert_eq!(text_attribute(&measured["resource"], "service.name"), "tollkeeper");

        let notice = eventually(&format!("{protocol}: the notice"), || {
            collector.items(["resourceLogs", "scopeLogs", "logRecords"]).pop()
        });
        assert_eq!(notice["eventName"], "io.tollkeeper.limit.reached");
        assert_eq!(notice["severityText"], "INFO");
        assert_eq!(text_attribute(&notice["attributes"], "rule"), "user");
        assert_eq!(text_attribute(&notice["resource"], "service.name"), "tollkeeper");
        assert_eq!(service.warnings(), [""; 0]);
    }
}
