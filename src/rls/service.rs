//! The gRPC service: its one method, with the call's span and measurement.

use std::{sync::Arc, time::Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Code;
use tracing::{Instrument as _, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{
    decode::{Bounds, Decoded},
    encode,
    framing::{self, ARRIVING_BYTES_MAX, AnswerBody},
    headers::Headers,
    json, pb, precheck,
    refusal::Refusal,
};
use crate::{
    arriving::ArrivalBudget,
    calls::CallTracker,
    grpc,
    limiter::Limiter,
    panics::caught,
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
    arriving: Arc<ArrivalBudget>,
}

impl Service {
    /// A service that decides by `limiter`. Messages over `message_bytes_max` are refused with OUT_OF_RANGE, and
    /// those that arrive in parts, if they exceed `arriving`, with RESOURCE_EXHAUSTED.
    pub fn new(
        limiter: Arc<Limiter>,
        bounds: Bounds,
        message_bytes_max: usize,
        headers: Arc<Headers>,
        arriving: Arc<ArrivalBudget>,
    ) -> Self {
        Self { limiter, bounds, message_bytes_max, headers, arriving }
    }

    /// The memory that one connection may use for messages that arrive in parts.
    pub(super) fn arriving_on_a_connection(&self) -> Arc<ArrivalBudget> {
        self.arriving.part(ARRIVING_BYTES_MAX)
    }

    /// Answers a call of [`grpc::METHOD`]. `calls` owns it; its message counts towards `arriving` if it arrives
    /// in parts.
    ///
    /// The future is moved several times before it runs. So it is on the heap, and small: what it does not
    /// need is dropped before it starts.
    pub(super) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        calls: &CallTracker,
        arriving: Arc<ArrivalBudget>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send + Unpin + use<> {
        let started = Instant::now();
        let span = span(&request);
        let body = request.into_body();
        calls.run(async move {
            let answer = caught(self.decide(body, &arriving, &span)).await;
            let answer = answer.unwrap_or(Err(Refusal::Panicked));
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
        arriving: &ArrivalBudget,
        span: &Span,
    ) -> Result<pb::RateLimitResponse, Refusal> {
        let message = framing::read(body, self.message_bytes_max, arriving).await?;
        let request = precheck::request(message, self.bounds)?;
        let decided = decide(&self.limiter, &self.headers, request);
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
) -> Result<pb::RateLimitResponse, Refusal> {
    limiter.metrics().overrides_ignored(decoded.overrides_ignored);
    let decision = limiter.decide(&decoded.request).await?;
    Ok(encode::response(&decision, headers, decoded.echo))
}

/// Decides one request in JSON.
pub(crate) async fn decide_json(
    limiter: &Limiter,
    headers: &Headers,
    body: &[u8],
    bounds: Bounds,
) -> Result<pb::RateLimitResponse, Refusal> {
    decide(limiter, headers, json::request(body, bounds)?).await
}
