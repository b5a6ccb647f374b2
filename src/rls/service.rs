//! The gRPC service: its one method, with the call's span and measurement.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tonic::Code;

use super::{
    decode::{Bounds, Decoded},
    encode,
    framing::{self, AnswerBody, CONNECTION_BYTES_MAX},
    headers::Headers,
    pb, precheck,
    refusal::Refusal,
    timeout,
};
use crate::{
    authorization::DomainAccess,
    edge::{
        arriving::{ArrivalBudget, ConnectionBudget},
        panics::caught,
    },
    limiter::Limiter,
    net::tls::server::Identity,
    process::calls::CallTracker,
    store::guard::Arrival,
    telemetry::{CallSpan, Tracer, in_call},
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
    access: Option<Arc<DomainAccess>>,
    tracer: Option<Arc<Tracer>>,
}

/// What the calls of one connection share.
pub(super) struct ConnectedClient {
    pub(super) calls: CallTracker,
    /// The memory that it may make us hold.
    pub(super) memory: Arc<ConnectionBudget>,
    /// One permit for each call of another service that it may have open.
    pub(super) other_calls: Arc<Semaphore>,
    /// Who the client is, if it has shown a certificate.
    pub(super) identity: Option<Identity>,
}

impl Service {
    /// A service that decides by `limiter`. Messages over `message_bytes_max` are refused with OUT_OF_RANGE, and
    /// those that exceed `arriving`, with RESOURCE_EXHAUSTED. `access` says which domains
    /// each client may ask about; `None` is all. Without a `tracer` there are no spans.
    pub fn new(
        limiter: Arc<Limiter>,
        bounds: Bounds,
        message_bytes_max: usize,
        headers: Arc<Headers>,
        arriving: Arc<ArrivalBudget>,
        access: Option<Arc<DomainAccess>>,
        tracer: Option<Arc<Tracer>>,
    ) -> Self {
        Self { limiter, bounds, message_bytes_max, headers, arriving, access, tracer }
    }

    /// The memory that a new connection may make us hold.
    pub(super) fn memory_of_a_connection(&self) -> Arc<ConnectionBudget> {
        self.arriving.connection(CONNECTION_BYTES_MAX)
    }

    /// Answers a call of [`METHOD`](crate::net::grpc::METHOD). The connection owns it.
    ///
    /// The future is moved several times before it runs. So it is on the heap, and small: what it does not
    /// need is dropped before it starts.
    pub(super) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        client: Arc<ConnectedClient>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send + Unpin + use<> {
        let started = Instant::now();
        let span =
            self.tracer.as_ref().and_then(|tracer| CallSpan::begin(tracer, request.headers()));
        let timeout = timeout::of(request.headers());
        let body = request.into_body();
        let calls = client.calls.clone();
        calls.run(async move {
            let answer =
                caught(self.decide(body, &client, span.as_ref(), (started, timeout))).await;
            let answer = answer.unwrap_or(Err(Refusal::Panicked)).and_then(|response| {
                framing::write(&response, &client.memory).map_err(Refusal::Busy)
            });
            let code = match &answer {
                Ok(_) => Code::Ok,
                Err(refusal) => refusal.codes().0,
            };
            if let Some(span) = span {
                span.end(code);
            }
            self.limiter.metrics().call(started, code);
            match answer {
                Ok(response) => response,
                Err(refusal) => refusal.status().into_http(),
            }
        })
    }

    async fn decide(
        &self,
        body: Incoming,
        client: &ConnectedClient,
        span: Option<&Arc<CallSpan>>,
        (started, timeout): (Instant, Option<Duration>),
    ) -> Result<pb::RateLimitResponse, Refusal> {
        let reads = Instant::now();
        let message = framing::read(body, self.message_bytes_max, &client.memory).await?;
        // A message that comes in parts has arrived when all of it is there.
        let arrival = Arrival { at: started + reads.elapsed(), timeout };
        let request = precheck::request(message, self.bounds)?;
        if let Some(access) = &self.access {
            access.check(client.identity.as_ref(), &request.request.domain)?;
        }
        let decided = decide(&self.limiter, &self.headers, request, arrival);
        match span {
            Some(span) => Box::pin(in_call(Arc::clone(span), decided)).await,
            None => decided.await,
        }
    }
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
