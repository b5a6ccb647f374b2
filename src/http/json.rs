//! Decisions for clients without gRPC, with the call's span: `POST /json`, and `/v1/` with the methods of `tollkeeper.v1`.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{
        Method, StatusCode,
        header::{CONTENT_ENCODING, CONTENT_TYPE},
        request::Parts,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{self, Instant},
};
use tonic::Code;

use super::{browser, parameters};
use crate::{
    edge::{
        arriving::{ConnectionBudget, HeldBuffer, HeldBytes},
        panics::caught,
    },
    limiter::metrics::CallDurations,
    net::{
        grpc::{ServedMethod, is_server_error, status_name, timeout},
        tls::server::Identity,
    },
    rls::{self, BatchContext, refusal::Refusal},
    store::guard::Arrival,
    telemetry::{CallSpan, in_call},
};

/// Maximum number of batches that are decided at a time. A further one waits up to [`BATCH_WAITS`], and up to half of its caller's
/// timeout.
const BATCHES_MAX: usize = 16;
const BATCH_WAITS: Duration = Duration::from_secs(1);

/// A body of at most this many bytes does not wait for a turn: its calls take little time.
const FEW_CALLS_BYTES: usize = 4 << 10;

const BODY_WITHIN: Duration = Duration::from_secs(10);

/// The requests that decide, as spans and metrics name them. `HEAD` counts as `GET`.
const CALLS: [&str; 6] = [
    "POST /json",
    "POST /check",
    "GET /check",
    "POST /v1/decide",
    "POST /v1/commit",
    "POST /v1/renew",
];

#[derive(Debug, Clone)]
pub struct Decisions {
    pub service: Arc<rls::Service>,
    /// Whether a client needs a certificate, as on the gRPC address: without TLS, all are refused then.
    pub needs_certificate: bool,
    /// `https` with TLS, else `http`.
    scheme: &'static str,
    /// One permit for each batch that is being decided.
    batches: Arc<Semaphore>,
    /// In the order of [`CALLS`].
    durations: Arc<[CallDurations]>,
}

impl Decisions {
    pub fn new(service: Arc<rls::Service>, needs_certificate: bool, is_tls: bool) -> Self {
        let scheme = if is_tls { "https" } else { "http" };
        let batches = Arc::new(Semaphore::new(BATCHES_MAX));
        let durations = CALLS.map(|name| service.limiter.metrics().http_durations(name));
        let durations = Arc::new(durations);
        Self { service, needs_certificate, scheme, batches, durations }
    }

    pub(super) async fn body(&self, request: Request) -> Result<(Bytes, HeldBytes), Refusal> {
        let encodings = request.headers().get_all(CONTENT_ENCODING);
        if encodings.iter().any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(Refusal::Encoded);
        }
        let memory = self.memory(&request);
        let body = time::timeout(BODY_WITHIN, self.read(request.into_body(), &memory)).await;
        body.unwrap_or(Err(Refusal::TooSlow))
    }

    /// The permit that a batch with a body of this many bytes needs, so that batches leave workers to other calls.
    async fn turn(
        &self,
        bytes: usize,
        timeout: Option<Duration>,
    ) -> Result<Option<SemaphorePermit<'_>>, Refusal> {
        if bytes <= FEW_CALLS_BYTES {
            return Ok(None);
        }
        let waits = timeout.map_or(BATCH_WAITS, |timeout| BATCH_WAITS.min(timeout / 2));
        match time::timeout(waits, self.batches.acquire()).await {
            Ok(turn) => Ok(turn.ok()),
            Err(_) => Err(Refusal::TooMany),
        }
    }

    fn memory(&self, request: &Request) -> Arc<ConnectionBudget> {
        let memory = request.extensions().get::<Arc<ConnectionBudget>>().cloned();
        memory.unwrap_or_else(|| self.service.memory_of_a_connection())
    }

    async fn read(
        &self,
        mut body: Body,
        memory: &Arc<ConnectionBudget>,
    ) -> Result<(Bytes, HeldBytes), Refusal> {
        let bytes_max = self.service.message_bytes_max;
        // The value of `content-length`; 0 without one.
        let length = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if length > bytes_max {
            return Err(Refusal::TooLongAt(bytes_max));
        }
        let mut received = HeldBuffer::new(memory);
        while let Some(frame) = body.frame().await {
            let malformed = |_| Refusal::Invalid("body: malformed or incomplete".to_owned());
            let frame = frame.map_err(malformed)?;
            let data = frame.into_data().unwrap_or_default();
            if received.len() + data.len() > bytes_max {
                return Err(Refusal::TooLongAt(bytes_max));
            }
            received.push(&data, length.max(bytes_max.min(2 * received.len())))?;
        }
        Ok(received.take(received.len())?)
    }
}

/// `GET /v1/usage?domain=D&d=k=v,k=v`: what the counters of these descriptors hold.
pub(super) async fn usage(
    State(decisions): State<Decisions>,
    asked: Parts,
) -> Result<Json<Value>, Refusal> {
    let request = parameters::counters(asked.uri.query(), "d").map_err(Refusal::Invalid)?;
    Ok(Json(decisions.service.usage_json(&request, asked.extensions.get()).await?))
}

/// `POST /v1/decide`, `/v1/commit` and `/v1/renew`: 200 with an answer to each item.
pub(super) async fn decide_batch(
    method: ServedMethod,
    State(decisions): State<Decisions>,
    request: Request,
) -> Result<Response, Refusal> {
    let client = request.extensions().get::<Identity>().cloned();
    let span = request.extensions().get::<Arc<CallSpan>>().cloned();
    let memory = decisions.memory(&request);
    // Only here, where no proxy passes on the headers of its end users.
    let timeout = timeout::of(request.headers());
    let (body, _held) = decisions.body(request).await?;
    let received = Instant::now();
    let _turn = decisions.turn(body.len(), timeout).await?;
    // The wait for a turn is part of the caller's timeout, and not of the budget.
    let timeout = timeout.map(|timeout| timeout.saturating_sub(received.elapsed()));
    let arrival = Arrival { at: Instant::now(), timeout };
    let (client, span) = (client.as_ref(), span.as_ref());
    let context = BatchContext { client, arrival, span };
    let answered = decisions.service.answer_json(method, &body, &memory, context);
    let answer = Box::pin(answered).await?;
    Ok(([(CONTENT_TYPE, "application/json")], answer).into_response())
}

pub(super) async fn refuse_web_pages(request: Request, next: Next) -> Result<Response, Refusal> {
    if browser::is_from_web_page(request.headers()) {
        return Err(Refusal::WebPage);
    }
    Ok(next.run(request).await)
}

/// Measures a request that decides, and ends its span, if it is sampled, with the status. A batch gets the span, to choose
/// what it shows.
pub(super) async fn measured(
    State(decisions): State<Decisions>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let verb = match request.method() {
        &Method::HEAD => "GET",
        method => method.as_str(),
    };
    let asked = format!("{verb} {}", request.uri().path());
    let call = CALLS.into_iter().zip(&*decisions.durations).find(|(name, _)| *name == asked);
    let Some((name, durations)) = call else { return next.run(request).await };
    let tracer = decisions.service.tracer.as_ref();
    let span = tracer.and_then(|tracer| CallSpan::begin(tracer, request.headers()));
    let response = match &span {
        Some(span) if !name.contains("/v1/") => {
            caught(in_call(Arc::clone(span), next.run(request))).await
        }
        of_batch => {
            of_batch.clone().and_then(|span| request.extensions_mut().insert(span));
            caught(next.run(request)).await
        }
    };
    let response = response.unwrap_or_else(|_| Refusal::Panicked.into_response());
    if let Some(span) = span {
        span.end_http(name, decisions.scheme, response.status());
    }
    durations.record(began, response.extensions().get().copied().unwrap_or(Code::Ok));
    response
}

/// 200 or 429 with the answer; 400 for a bad request, 403 for one from a web page, 408, 413 and 415 for one that is
/// too slow, too large or compressed; 503 if the store gave no answer, or too many requests are in progress.
pub(super) async fn decide(
    State(decisions): State<Decisions>,
    request: Request,
) -> Result<Response, Refusal> {
    let client = request.extensions().get::<Identity>().cloned();
    let (body, _held) = decisions.body(request).await?;
    let arrival = Arrival::now();
    let decoded = rls::json::request(&body, decisions.service.bounds)?;
    let answer = decisions.service.decide(decoded, client.as_ref(), arrival).await?;
    let status = match rls::json::retry_after(&answer) {
        None => StatusCode::OK,
        Some(_) => StatusCode::TOO_MANY_REQUESTS,
    };
    let body = Json(rls::json::response(&answer));
    let mut headers = rls::json::headers(&answer);
    // The type of the body of a denial, which this answer does not have.
    headers.remove(CONTENT_TYPE);
    Ok((status, headers, body).into_response())
}

/// The status of a request that was refused, as it is measured.
pub(super) fn measured_code(refusal: &Refusal) -> Extension<Code> {
    let (code, status) = refusal.codes();
    // gRPC takes bytes that are no message for a fault of the server.
    let is_client_error = status.is_client_error() && is_server_error(code);
    Extension(if is_client_error { Code::InvalidArgument } else { code })
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, status) = self.codes();
        let error = json!({ "code": status_name(code), "message": self.to_string() });
        (status, measured_code(&self), Json(json!({ "error": error }))).into_response()
    }
}
