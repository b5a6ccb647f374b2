//! The gRPC service: one method, its span and its measure.

use std::{sync::Arc, time::Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::{Code, Status};
use tracing::{Instrument as _, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{
    decode::{Bounds, Decoded},
    encode,
    framing::{self, AnswerBody},
    headers::Headers,
    pb, precheck,
};
use crate::{
    grpc,
    limiter::Limiter,
    telemetry::{self, is_server_error, status_name},
};

/// `envoy.service.ratelimit.v3.RateLimitService`.
///
/// Written by hand and not generated: the decoder has bounds that are settings, and a call costs less.
#[derive(Debug, Clone)]
pub struct Service {
    limiter: Arc<Limiter>,
    bounds: Bounds,
    message_bytes_max: usize,
    headers: Arc<Headers>,
}

impl Service {
    /// A service that asks `limiter`. Larger messages are refused with OUT_OF_RANGE.
    pub fn new(
        limiter: Arc<Limiter>,
        bounds: Bounds,
        message_bytes_max: usize,
        headers: Arc<Headers>,
    ) -> Self {
        Self { limiter, bounds, message_bytes_max, headers }
    }

    /// Answers a call of [`grpc::METHOD`].
    ///
    /// The future is kept small (what is not needed later is gone before it begins) and on the heap:
    /// it is moved a few times before it runs.
    pub(super) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send + Unpin {
        let began = Instant::now();
        let span = span(&request);
        let body = request.into_body();
        Box::pin(async move {
            let answer = self.decide(body, &span).await;
            let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
            if !span.is_disabled() {
                span.record("rpc.status_code", status_name(code));
                if is_server_error(code) {
                    span.record("otel.status_code", "ERROR");
                }
            }
            self.limiter.metrics().call(began, code);
            answer.map_or_else(Status::into_http, |response| framing::write(&response))
        })
    }

    async fn decide(&self, body: Incoming, span: &Span) -> Result<pb::RateLimitResponse, Status> {
        let message = framing::read(body, self.message_bytes_max).await?;
        let request = precheck::request(message, self.bounds)?;
        let decided = decide(&self.limiter, &self.headers, request);
        match span.is_disabled() {
            true => decided.await,
            false => Box::pin(decided.instrument(span.clone())).await,
        }
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
        // It fails only where there is no exporter, and then there is nothing to be parent of.
        drop(span.set_parent(telemetry::remote_parent(request.headers())));
    }
    span
}

/// One decoded request, decided: what gRPC and HTTP have in common.
pub async fn decide(
    limiter: &Limiter,
    headers: &Headers,
    decoded: Decoded,
) -> Result<pb::RateLimitResponse, Status> {
    limiter.metrics().overrides_ignored(decoded.overrides_ignored);
    let decision = limiter.decide(&decoded.request).await;
    decision
        .map(|it| encode::response(&it, headers, decoded.echo))
        .map_err(|error| encode::failure(&error))
}
