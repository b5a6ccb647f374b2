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
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    task,
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

/// Maximum number of long bodies that are decided at a time. A further one waits up to [`LONG_BODY_WAITS`], and up to half of
/// its caller's timeout.
const LONG_BODIES_MAX: usize = 16;
const LONG_BODY_WAITS: Duration = Duration::from_secs(1);

/// Maximum number of long bodies with calls that read counters. They are apart from those that decide, as they may wait for long.
const LONG_READINGS_MAX: usize = 16;

/// A body of at most this many bytes does not wait for a turn: its calls take little time.
const FEW_CALLS_BYTES: usize = 4 << 10;

/// A longer text is read on a thread of its own, one at a time, while the workers answer others.
const SHORT_TEXT_BYTES: usize = 64 << 10;

/// How many longer texts arrive or are decided at a time, so that those that wait for their turn are in the system's buffers and
/// not in memory. One that takes longer to arrive leaves its turn to others.
const LONG_TEXTS_MAX: usize = 8;
const LONG_TEXT_ARRIVES_WITHIN: Duration = Duration::from_millis(250);

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
    /// One permit for each long body that is being decided.
    turns: Arc<Semaphore>,
    /// One permit for each long body that reads counters.
    read_turns: Arc<Semaphore>,
    /// One permit for each long text that arrives or is decided.
    long_texts: Arc<Semaphore>,
    /// The permit to read a long text.
    reading: Arc<Semaphore>,
    /// In the order of [`CALLS`].
    durations: Arc<[CallDurations]>,
}

impl Decisions {
    pub fn new(service: Arc<rls::Service>, needs_certificate: bool, is_tls: bool) -> Self {
        let scheme = if is_tls { "https" } else { "http" };
        let permits = [LONG_BODIES_MAX, LONG_READINGS_MAX, LONG_TEXTS_MAX, 1];
        let [turns, read_turns, long_texts, reading] =
            permits.map(|permits| Arc::new(Semaphore::new(permits)));
        let durations = CALLS.map(|name| service.limiter.metrics().http_durations(name));
        let durations = Arc::new(durations);
        Self {
            service,
            needs_certificate,
            scheme,
            turns,
            read_turns,
            long_texts,
            reading,
            durations,
        }
    }

    pub(super) async fn body(&self, request: Request) -> Result<(Bytes, HeldBody), Refusal> {
        let encodings = request.headers().get_all(CONTENT_ENCODING);
        if encodings.iter().any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(Refusal::Encoded);
        }
        let memory = self.memory(&request);
        let body = time::timeout(BODY_WITHIN, self.read(request.into_body(), &memory)).await;
        body.unwrap_or(Err(Refusal::TooSlow))
    }

    /// The permit that a body of this many bytes needs, so that long ones leave workers to other calls.
    async fn turn(
        &self,
        bytes: usize,
        timeout: Option<Duration>,
    ) -> Result<Option<SemaphorePermit<'_>>, Refusal> {
        if bytes <= FEW_CALLS_BYTES {
            return Ok(None);
        }
        let waits = timeout.map_or(LONG_BODY_WAITS, |timeout| LONG_BODY_WAITS.min(timeout / 2));
        match time::timeout(waits, self.turns.acquire()).await {
            Ok(turn) => Ok(turn.ok()),
            Err(_) => Err(Refusal::TooMany),
        }
    }

    async fn decoded<T: Send + 'static>(
        &self,
        body: Bytes,
        read: impl FnOnce(&[u8]) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if body.len() <= FEW_CALLS_BYTES {
            return read(&body);
        }
        if body.len() <= SHORT_TEXT_BYTES {
            let _turn = self.service.limiter.turns().take().await;
            return read(&body);
        }
        // The thread keeps the permit also when the client leaves. A worker frees the body, as its allocator reuses that at once.
        let (permit, text) = (Arc::clone(&self.reading).acquire_owned().await, body.clone());
        let reading = move || {
            let _permit = permit;
            read(&text)
        };
        task::spawn_blocking(reading).await.unwrap_or(Err(Refusal::Panicked))
    }

    fn memory(&self, request: &Request) -> Arc<ConnectionBudget> {
        let memory = request.extensions().get::<Arc<ConnectionBudget>>().cloned();
        memory.unwrap_or_else(|| self.service.memory_of_a_connection())
    }

    async fn read(
        &self,
        mut body: Body,
        memory: &Arc<ConnectionBudget>,
    ) -> Result<(Bytes, HeldBody), Refusal> {
        let bytes_max = self.service.message_bytes_max;
        // The value of `content-length`; 0 without one.
        let length = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if length > bytes_max {
            return Err(Refusal::TooLongAt(bytes_max));
        }
        let mut received = HeldBuffer::new(memory);
        let mut until = async |bytes: usize| {
            while received.len() <= bytes {
                let Some(frame) = body.frame().await else { return Ok(true) };
                let malformed = |_| Refusal::Invalid("body: malformed or incomplete".to_owned());
                let data = frame.map_err(malformed)?.into_data().unwrap_or_default();
                if received.len() + data.len() > bytes_max {
                    return Err(Refusal::TooLongAt(bytes_max));
                }
                received.push(&data, length.max(bytes_max.min(2 * received.len())))?;
            }
            Ok(false)
        };
        let mut turn = None;
        if length > SHORT_TEXT_BYTES || !until(SHORT_TEXT_BYTES).await? {
            let permit = Arc::clone(&self.long_texts).acquire_owned();
            turn = time::timeout(LONG_BODY_WAITS, permit).await.ok().and_then(Result::ok);
            match time::timeout(LONG_TEXT_ARRIVES_WITHIN, until(bytes_max)).await {
                Ok(arrived) => arrived?,
                Err(_) => {
                    turn = None;
                    until(bytes_max).await?
                }
            };
        }
        let (body, bytes) = received.take(received.len())?;
        Ok((body, (bytes, turn)))
    }
}

/// The memory of a body, and its turn if it is long.
type HeldBody = (HeldBytes, Option<OwnedSemaphorePermit>);

/// `GET /v1/usage?domain=D&d=k=v,k=v`: what the counters of these descriptors hold.
pub(super) async fn usage(
    State(decisions): State<Decisions>,
    asked: Parts,
) -> Result<Json<Value>, Refusal> {
    let request = parameters::counters(asked.uri.query(), "d").map_err(Refusal::Invalid)?;
    let (client, arrival) = (asked.extensions.get(), Arrival::now());
    Ok(Json(decisions.service.usage_json(&request, client, arrival).await?))
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
    let (body, mut held) = decisions.body(request).await?;
    let received = Instant::now();
    let turn = decisions.turn(body.len(), timeout).await?;
    let service = Arc::clone(&decisions.service);
    let items = decisions.decoded(body, move |text| service.read_json(method, text)).await?;
    let _turn = match turn {
        Some(to_decide) if items.reads => {
            drop((to_decide, held.1.take()));
            Some(decisions.read_turns.try_acquire().map_err(|_| Refusal::TooMany)?)
        }
        turn => turn,
    };
    // This time is part of the caller's timeout, and not of the budget.
    let timeout = timeout.map(|timeout| timeout.saturating_sub(received.elapsed()));
    let arrival = Arrival { at: Instant::now(), timeout };
    let (client, span) = (client.as_ref(), span.as_ref());
    let context = BatchContext { client, arrival, span, large_calls: None };
    let answered = decisions.service.answer_json(method, items, &memory, context);
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
    let bounds = decisions.service.bounds;
    let _turn = decisions.turn(body.len(), None).await?;
    let decoded = decisions.decoded(body, move |text| rls::json::request(text, bounds)).await?;
    let arrival = Arrival::now();
    let answer = decisions.service.decide_in_turn(decoded, client.as_ref(), arrival).await?;
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
