//! The gRPC service: its one method, with the call's span and measurement.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Code;
use tracing::{Instrument as _, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{
    decode::{Bounds, Decoded},
    encode,
    framing::{self, AnswerBody, ReceiveCapacity},
    headers::Headers,
    json, pb, precheck,
    refusal::Refusal,
    timeout,
};
use crate::{
    calls::CallTracker,
    grpc,
    limiter::Limiter,
    store::guard::Arrival,
    telemetry::{self, is_server_error, status_name},
};

/// `envoy.service.ratelimit.v3.RateLimitService`.
///
/// Written by hand rather than generated: the bounds of its decoder are settings, and a call costs less.
#[derive(Debug, Clone)]
pub struct Service {
    limiter: Arc<Limiter>,
    bounds: Bounds,
    message_bytes_max: usize,
    headers: Arc<Headers>,
}

impl Service {
    /// A service that decides by `limiter`. Messages over `message_bytes_max` are refused with OUT_OF_RANGE.
    pub fn new(
        limiter: Arc<Limiter>,
        bounds: Bounds,
        message_bytes_max: usize,
        headers: Arc<Headers>,
    ) -> Self {
        Self { limiter, bounds, message_bytes_max, headers }
    }

    /// Answers a call of [`grpc::METHOD`]. `calls` owns it; its message counts towards `capacity` if it arrives
    /// in parts.
    ///
    /// The future is moved several times before it runs. So it is on the heap, and small: what it does not
    /// need is dropped before it starts.
    pub(super) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        calls: &CallTracker,
        capacity: Arc<ReceiveCapacity>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send + Unpin + use<> {
        let started = Instant::now();
        let (span, timeout) = (span(&request), timeout::of(request.headers()));
        let body = request.into_body();
        calls.run(async move {
            let answer = self.decide(body, &capacity, &span, (started, timeout)).await;
            let code = match &answer {
                Ok(_) => Code::Ok,
                Err(refusal) => refusal.codes().0,
            };
            if !span.is_disabled() {
                span.record("rpc.status_code", status_name(code));
                if is_server_error(code) {
                    span.record("otel.status_code", "ERROR");
                }
            }
            self.limiter.metrics().call(started, code);
            match answer {
                Ok(response) => framing::write(&response),
                Err(refusal) => refusal.status().into_http(),
            }
        })
    }

    async fn decide(
        &self,
        body: Incoming,
        capacity: &ReceiveCapacity,
        span: &Span,
        (started, timeout): (Instant, Option<Duration>),
    ) -> Result<pb::RateLimitResponse, Refusal> {
        let reads = Instant::now();
        let message = framing::read(body, self.message_bytes_max, capacity).await?;
        // A message that comes in parts has arrived when all of it is there.
        let arrival = Arrival { at: started + reads.elapsed(), timeout };
        let request = precheck::request(message, self.bounds)?;
        let decided = decide(&self.limiter, &self.headers, request, arrival);
        if span.is_disabled() {
            return decided.await;
        }
        Box::pin(decided.instrument(span.clone())).await
    }
}

fn span(request: &Request<Incoming>) -> Span {
    let span = tracing::info_span!(
        "call",
        otel.name = grpc::METHOD,
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        rpc.system.name = "grpc",
        rpc.method = grpc::METHOD,
        rpc.status_code = tracing::field::Empty,
    );
    if !span.is_disabled() {
        // This fails only without an exporter, and then no span needs a parent.
        drop(span.set_parent(telemetry::remote_parent(request.headers())));
    }
    span
}

/// Decides a decoded request: the part that gRPC and HTTP share.
pub async fn decide(
    limiter: &Limiter,
    headers: &Headers,
    decoded: Decoded,
    arrival: Arrival,
) -> Result<pb::RateLimitResponse, Refusal> {
    limiter.metrics().overrides_ignored(decoded.overrides_ignored);
    let decision = limiter.decide(&decoded.request, arrival).await?;
    Ok(encode::response(&decision, headers, decoded.echo))
}

/// Decides one request in JSON.
pub(crate) async fn decide_json(
    limiter: &Limiter,
    headers: &Headers,
    body: &[u8],
    bounds: Bounds,
) -> Result<pb::RateLimitResponse, Refusal> {
    let arrival = Arrival::now();
    decide(limiter, headers, json::request(body, bounds)?, arrival).await
}
