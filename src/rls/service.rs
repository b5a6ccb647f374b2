//! The methods that we serve without generated code, with the span and the measurement of each call.

use std::{net::IpAddr, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::{
    claims::Claims,
    decode::{Bounds, Decoded},
    encode,
    framing::{self, AnswerBody, WAITING_CALL_BYTES},
    headers::Headers,
    large_calls::LargeCalls,
    pb, precheck,
    refusal::Refusal,
};
use crate::{
    authorization::{DomainAccess, ForbiddenDomain, Right},
    edge::{
        arriving::{ArrivalBudget, CONNECTION_BYTES_MAX, ConnectionBudget},
        panics::caught,
    },
    limiter::{FEW_DESCRIPTORS, Limiter},
    net::{
        grpc::{ServedMethod, timeout},
        tls::server::Identity,
    },
    process::{calls::CallTracker, turns::Turn},
    store::guard::Arrival,
    telemetry::{CallSpan, Tracer, in_call},
    text::printable::printable,
};

/// `envoy.service.ratelimit.v3.RateLimitService`, and `tollkeeper.v1.Tollkeeper`.
///
/// Written by hand rather than generated: the bounds of its decoder are settings, and a call costs less.
#[derive(Debug, Clone)]
pub struct Service {
    pub limiter: Arc<Limiter>,
    pub bounds: Bounds,
    /// The largest message, in bytes. Larger ones are refused with OUT_OF_RANGE.
    pub message_bytes_max: usize,
    /// The rate limit headers that an answer carries.
    pub headers: Arc<Headers>,
    /// The memory for messages that arrive. Messages beyond it are refused with RESOURCE_EXHAUSTED.
    pub arriving: Arc<ArrivalBudget>,
    /// The domains that each client may use; `None` is all.
    pub access: Option<Arc<DomainAccess>>,
    pub tracer: Option<Arc<Tracer>>,
    /// What the streams of proxies claim.
    pub quotas: Arc<Claims>,
}

/// The method of a call, its span if it is sampled, when it began, and the timeout that its client announced.
type CallContext<'call> = (ServedMethod, Option<&'call Arc<CallSpan>>, Instant, Option<Duration>);

/// What the items of a batch have in common, beside the domain.
#[derive(Clone, Copy)]
pub struct BatchContext<'call> {
    pub(crate) client: Option<&'call Identity>,
    pub(crate) arrival: Arrival,
    /// The span of the request, if it is sampled.
    pub(crate) span: Option<&'call Arc<CallSpan>>,
    /// The large calls of its connection. `None` over HTTP, where a connection has one request at a time.
    pub(crate) large_calls: Option<&'call LargeCalls>,
}

impl BatchContext<'_> {
    /// Of a request that arrives now, from anyone.
    pub fn alone() -> Self {
        Self { client: None, arrival: Arrival::now(), span: None, large_calls: None }
    }
}

pub(super) struct ConnectedClient {
    pub(super) calls: CallTracker,
    /// Those that wait for their turn, and the large batches.
    pub(super) large_calls: LargeCalls,
    /// The memory that it may make us hold.
    pub(super) memory: Arc<ConnectionBudget>,
    /// One permit for each call of another service, or of RLQS, that it may have open.
    pub(super) other_calls: Arc<Semaphore>,
    /// The turns of its streams of quotas.
    pub(super) quota_turns: Arc<Semaphore>,
    /// Cancelled when the connection is to end: calls that go on until their client ends them must end too.
    pub(super) ending: CancellationToken,
    /// Who the client is, if it has shown a certificate.
    pub(super) identity: Option<Identity>,
    pub(super) address: IpAddr,
}

impl ConnectedClient {
    pub(super) fn batch<'call>(
        &'call self,
        arrival: Arrival,
        span: Option<&'call Arc<CallSpan>>,
    ) -> BatchContext<'call> {
        let (client, large_calls) = (self.identity.as_ref(), Some(&self.large_calls));
        BatchContext { client, arrival, span, large_calls }
    }

    /// The first name in its certificate, or its address.
    fn peer(&self) -> String {
        let name = self.identity.as_ref().and_then(|identity| identity.0.first());
        name.map_or_else(
            || self.address.to_canonical().to_string(),
            |name| printable(name.as_bytes()),
        )
    }
}

impl Service {
    pub(crate) fn memory_of_a_connection(&self) -> Arc<ConnectionBudget> {
        self.arriving.connection(CONNECTION_BYTES_MAX)
    }

    /// Answers a call of this method. The connection owns it.
    ///
    /// The future is moved several times before it runs. So it is on the heap, and small: what it does not
    /// need is dropped before it starts.
    pub(super) fn answer(
        self: Arc<Self>,
        method: ServedMethod,
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
            let context = (method, span.as_ref(), started, timeout);
            let answer = caught(self.receive(body, &client, context)).await;
            let answer = answer.unwrap_or(Err(Refusal::Panicked));
            let code = match &answer {
                Ok(_) => Code::Ok,
                Err(refusal) => refusal.codes().0,
            };
            if let Some(span) = span {
                span.end(method, code);
            }
            self.limiter.metrics().call_of(method, started, code);
            match answer {
                Ok(response) => response,
                Err(refusal) => refusal.status().into_http(),
            }
        })
    }

    async fn receive(
        &self,
        body: Incoming,
        client: &ConnectedClient,
        (method, span, started, timeout): CallContext<'_>,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let reads = Instant::now();
        let (message, _held) = framing::read(body, self.message_bytes_max, &client.memory).await?;
        // A message that comes in parts has arrived when all of it is there.
        let arrival = Arrival { at: started + reads.elapsed(), timeout };
        if method != ServedMethod::ShouldRateLimit {
            let context = client.batch(arrival, span);
            let answered = Box::pin(self.answer_batch(method, message, &client.memory, context));
            let (answer, _) = answered.await?;
            return Ok(framing::answer(AnswerBody::Message(answer)));
        }
        let turn = match precheck::is_large(&message) {
            true => Some(self.turn(client).await?),
            false => None,
        };
        let answer = async {
            let request = precheck::request(message, self.bounds).inspect_err(|refusal| {
                if matches!(refusal, Refusal::Empty) {
                    self.limiter.empty_call(client.peer());
                }
            })?;
            let decided = self.decide(request, client.identity.as_ref(), arrival);
            let response = match span {
                Some(span) => Box::pin(in_call(Arc::clone(span), decided)).await,
                None => decided.await,
            }?;
            framing::write(&response, &client.memory).map_err(Refusal::Busy)
        };
        match turn {
            Some(turn) => Box::pin(turn.begin(answer)).await,
            None => answer.await,
        }
    }

    /// The turn of a large call of this client.
    async fn turn(&self, client: &ConnectedClient) -> Result<Turn<'_>, Refusal> {
        let (_large, mut waiting) = (client.large_calls.add(), client.memory.reserve());
        waiting.add(WAITING_CALL_BYTES)?;
        Ok(self.limiter.turns().take().await)
    }

    /// Decides a decoded call of this client: the part that gRPC and HTTP share.
    pub async fn decide(
        &self,
        decoded: Decoded,
        client: Option<&Identity>,
        arrival: Arrival,
    ) -> Result<pb::RateLimitResponse, Refusal> {
        self.check_domain(client, &decoded.request.domain)?;
        self.limiter.metrics().overrides_ignored(decoded.overrides_ignored);
        let decision = self.limiter.decide(&decoded.request, arrival).await?;
        Ok(encode::response(decision, &self.headers, decoded.echo))
    }

    /// Like [`decide`](Self::decide), in a turn if the call has many descriptors.
    pub(crate) async fn decide_in_turn(
        &self,
        decoded: Decoded,
        client: Option<&Identity>,
        arrival: Arrival,
    ) -> Result<pb::RateLimitResponse, Refusal> {
        let is_large = decoded.request.descriptors.len() > FEW_DESCRIPTORS;
        let decided = self.decide(decoded, client, arrival);
        match is_large {
            true => self.limiter.turns().take().await.begin(decided).await,
            false => decided.await,
        }
    }

    pub(crate) fn check_domain(
        &self,
        client: Option<&Identity>,
        domain: &str,
    ) -> Result<(), ForbiddenDomain> {
        let access = self.access.as_ref();
        access.map_or(Ok(()), |access| access.check(client, domain, Right::Decide).map(|_| ()))
    }
}
