//! The gRPC service: one method, its span and its measure.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use http::{Request, Response};
use tonic::{
    Code, Status,
    body::Body,
    server::{Grpc, NamedService},
};
use tracing::{Instrument as _, Span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{
    codec::BoundedCodec,
    decode::{Bounds, Decoded},
    encode,
    headers::Headers,
    pb,
};
use crate::{
    limiter::Limiter,
    telemetry::{self, is_server_error, status_name},
};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// `envoy.service.ratelimit.v3.RateLimitService`.
///
/// Written by hand and not generated, since the decoder has bounds that are settings.
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

    async fn answer(self, request: Request<Body>) -> Response<Body> {
        let began = Instant::now();
        let span = span(&request);
        let mut grpc = Grpc::new(BoundedCodec { bounds: self.bounds })
            .max_decoding_message_size(self.message_bytes_max);
        let decide = Decide(Arc::clone(&self.limiter), Arc::clone(&self.headers));
        let response = grpc.unary(decide, request).instrument(span.clone()).await;

        let code = Status::from_header_map(response.headers()).map_or(Code::Ok, |it| it.code());
        span.record("rpc.status_code", status_name(code));
        if is_server_error(code) {
            span.record("otel.status_code", "ERROR");
        }
        self.limiter.metrics().call(began, code);
        response
    }
}

fn span(request: &Request<Body>) -> Span {
    let span = tracing::info_span!(
        "call",
        otel.name = telemetry::RPC_METHOD,
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        rpc.system.name = "grpc",
        rpc.method = telemetry::RPC_METHOD,
        rpc.status_code = tracing::field::Empty,
    );
    if !span.is_disabled() {
        // It fails only where there is no exporter, and then there is nothing to be parent of.
        drop(span.set_parent(telemetry::remote_parent(request.headers())));
    }
    span
}

impl tower::Service<Request<Body>> for Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() != METHOD {
            return Box::pin(unimplemented());
        }
        let service = self.clone();
        Box::pin(async move { Ok(service.answer(request).await) })
    }
}

fn unimplemented() -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Status::unimplemented("no such method").into_http()))
}

impl NamedService for Service {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

/// The method itself, in the form that tonic calls.
struct Decide(Arc<Limiter>, Arc<Headers>);

impl tower::Service<tonic::Request<Decoded>> for Decide {
    type Response = tonic::Response<pb::RateLimitResponse>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<Decoded>) -> Self::Future {
        let (limiter, headers) = (Arc::clone(&self.0), Arc::clone(&self.1));
        Box::pin(async move {
            let response = decide(&limiter, &headers, request.into_inner()).await?;
            Ok(tonic::Response::new(response))
        })
    }
}

/// One decoded request, decided: what gRPC and HTTP have in common.
pub(crate) async fn decide(
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
