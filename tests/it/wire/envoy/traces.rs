//! One call through Envoy as one trace: from the client's span over Envoy's spans to the script run.

use tokio::net::UnixListener;

use super::RULES;
use crate::support::{envoy::Envoy, otlp::*, prelude::*};

#[tokio::test(flavor = "multi_thread")]
async fn a_call_through_envoy_is_one_trace_from_envoys_span_to_the_script_run() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const CLIENT: &str = "b7ad6b7169203331";
    let (ours, endpoint) = Receiver::start().await;
    let redis = Redis::start();
    let service = Service::with(RULES)
        .on(&redis.url())
        .environment(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)])
        .ready();
    let folder = TempDir::new().unwrap();
    // Where Envoy's tracer sends its spans by OTLP over gRPC.
    let envoys = Receiver::start_on(UnixListener::bind(folder.path().join("nobody.sock")).unwrap());
    let config = include_str!("../../../support/envoy.yaml")
        .replace("@TIMEOUT@", "5s")
        .replace("@FOLDER@", folder.path().to_str().unwrap())
        .replace("@RLS_PORT@", &service.grpc.port().to_string());
    let envoy = Envoy::run(&config, folder);
    let answer = tokio::task::block_in_place(|| envoy.get_traced("alice", b"vendor=state"));
    assert_eq!(answer.status, 200);

    let run = ours.span("EVALSHA", TRACE);
    let call = ours.span("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", TRACE);
    assert_eq!(run.parent_span_id, call.span_id);
    assert_eq!(attribute(&call.attributes, "ratelimit.rules"), "generic_key=api|user");
    assert_eq!(call.trace_state, "vendor=state");
    // The parents of our span, up to the one that the client has sent.
    let mut parent = hex(&call.parent_span_id);
    let mut of_envoy = 0;
    while parent != CLIENT {
        let span = eventually("a span of Envoy", || {
            let spans = envoys.spans();
            spans.into_iter().find(|span| hex(&span.span_id) == parent)
        });
        assert_eq!(hex(&span.trace_id), TRACE);
        parent = hex(&span.parent_span_id);
        of_envoy += 1;
    }
    assert!(of_envoy >= 1, "Envoy's own span is between the client's and ours");
}
