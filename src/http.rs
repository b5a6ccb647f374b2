//! HTTP: decisions in JSON, health, metrics and the rules in force; on the admin address, counters and
//! explanations.

pub mod admin;
mod browser;
mod compat;
mod json;
mod parameters;
mod rlconfig;
mod serve;
mod status;

use self::parameters::refused_parameter;
use crate::{
    VERSION,
    authorization::{AdminToken, DomainAccess, ForbiddenDomain},
    edge::{arriving::ArrivalBudget, health::Health},
    engine::{
        rule::{Algorithm, Limit, Policy, Rule},
        rule_set::Domain,
        time::Timestamp,
    },
    limiter::Limiter,
    net::tls::server::Identity,
    process::clock::system_clock,
    rls::{decode::Bounds, headers::Headers, refusal::Refusal},
    rules::{InForce, Rules, xds::ControlPlane},
    telemetry::{MetricsCompat, Telemetry},
};
pub use serve::serve;

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Frame, SizeHint};
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    task::spawn_blocking,
    time,
};

/// Most requests in progress at a time whose body has arrived. Below the number of connections, so that probes always
/// find one.
pub const REQUESTS_MAX: usize = 128;

/// Most answers of `/metrics` and `/rules` that are being sent at a time: they may be large, and their client slow.
pub const REPORTS_MAX: usize = 32;

/// One report is made at a time, so that decisions and probes have the other threads.
static REPORT_TURN: Semaphore = Semaphore::const_new(1);

/// The size of the frames in which a report is sent.
const REPORT_FRAME_BYTES: usize = 64 << 10;

/// Longest time that a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// The state that the endpoints share.
#[derive(Debug, Clone)]
pub struct Http {
    /// Decides the calls of `/json`.
    pub limiter: Arc<Limiter>,
    /// Bounds for one request.
    pub bounds: Bounds,
    /// The rate limit headers that an answer carries.
    pub headers: Arc<Headers>,
    /// The largest body, in bytes.
    pub message_bytes_max: usize,
    /// The service's phase.
    pub health: Health,
    /// The source of `/metrics`.
    pub telemetry: Arc<Telemetry>,
    /// The rules in force.
    pub rules: Arc<Rules>,
    /// The source of the rules, if that is a control plane.
    pub control_plane: Option<Arc<ControlPlane>>,
    /// One permit for each request whose body has arrived: [`REQUESTS_MAX`].
    pub request_slots: Arc<Semaphore>,
    /// One permit for each answer of `/metrics` or `/rules` that is being sent: [`REPORTS_MAX`].
    pub report_slots: Arc<Semaphore>,
    /// The domains of clients, if they are restricted.
    pub access: Option<Arc<DomainAccess>>,
    /// Whether clients of this address identify themselves with certificates.
    pub identifies_clients: bool,
    /// Whether `/json` needs a certificate, as gRPC does: then it refuses all on an address that identifies nobody.
    pub json_needs_certificate: bool,
    /// The token of the admin address, if it has one.
    pub admin_token: Option<Arc<AdminToken>>,
    /// `https` with TLS, else `http`.
    pub scheme: &'static str,
    /// The memory for bodies that arrive in parts.
    pub arriving: Arc<ArrivalBudget>,
}

impl Http {
    /// The body of a request, and its slot among the requests in progress.
    ///
    /// # Errors
    /// If no slot is free, or the body is too slow, too large or incomplete.
    async fn body(&self, request: Request) -> Result<(Bytes, SemaphorePermit<'_>), Refusal> {
        let body = time::timeout(BODY_WITHIN, self.read(request.into_body())).await;
        let body = body.unwrap_or(Err(Refusal::TooSlow))?;
        // Not before, so that bodies which do not arrive keep no other out.
        let slot = self.request_slots.try_acquire().map_err(|_| Refusal::TooMany)?;
        Ok((body, slot))
    }

    async fn read(&self, mut body: Body) -> Result<Bytes, Refusal> {
        let bytes_max = self.message_bytes_max;
        // What `content-length` says; 0 without one.
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(Refusal::TooLongAt(bytes_max));
        }
        // A connection has one request at a time.
        let arriving = self.arriving.connection(bytes_max);
        let (mut received, mut held) = (BytesMut::new(), arriving.hold());
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = arriving.is_over() => return Err(Refusal::TooMany),
            };
            let Some(frame) = frame else { break };
            let malformed = |_| Refusal::Invalid("body: malformed or incomplete".to_owned());
            let frame = frame.map_err(malformed)?;
            let data = frame.into_data().unwrap_or_default();
            if received.len() + data.len() > bytes_max {
                return Err(Refusal::TooLongAt(bytes_max));
            }
            held.add(data.len()).map_err(Refusal::Busy)?;
            received.extend_from_slice(&data);
        }
        Ok(received.freeze())
    }

    /// Whether a client may ask about a domain.
    fn check_domain(&self, client: Option<&Identity>, domain: &str) -> Result<(), ForbiddenDomain> {
        self.access.as_ref().map_or(Ok(()), |access| access.check(client, domain))
    }

    /// An answer that may be large, or 503 if too many are being made and sent.
    async fn report(&self, answer: impl FnOnce(&Self) -> Response + Send + 'static) -> Response {
        let Ok(slot) = Arc::clone(&self.report_slots).try_acquire_owned() else {
            return json::refuse(&Refusal::TooMany);
        };
        let turn = REPORT_TURN.acquire().await;
        let http = self.clone();
        let Ok(made) = spawn_blocking(move || answer(&http)).await else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        drop(turn);
        let (head, body) = made.into_parts();
        let rest = body.collect().await.unwrap_or_default().to_bytes();
        Response::from_parts(head, Body::new(SlottedBody { rest, _slot: slot }))
    }
}

/// The body of a report. Its slot is taken until its last frame is to be sent.
struct SlottedBody {
    rest: Bytes,
    _slot: OwnedSemaphorePermit,
}

impl hyper::body::Body for SlottedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(REPORT_FRAME_BYTES);
        // A copy, since a part of the report would keep all of it in memory.
        let frame = Bytes::copy_from_slice(&self.rest.split_to(length));
        Poll::Ready((length > 0).then_some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// The endpoints.
pub fn router(http: Http) -> Router {
    let needs_certificate = |needed| middleware::from_fn_with_state(needed, refuse_strangers);
    let json = Router::new().route("/json", post(json::decide));
    let reports = Router::new().route("/metrics", get(metrics)).route("/rules", get(rules));
    // Probes have no certificate.
    json.layer(needs_certificate(http.json_needs_certificate))
        .merge(reports.layer(needs_certificate(http.identifies_clients)))
        .route("/healthz", get(|| async { "OK" }))
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(healthcheck))
        .with_state(http)
}

/// Metrics alone, at this path.
pub fn metrics_router(http: Http, path: Arc<str>) -> Router {
    // A path from the settings is compared, since a router would give some characters a meaning.
    Router::new()
        .fallback(async move |State(http): State<Http>, request: Request| {
            if request.uri().path() == &*path {
                metrics(State(http)).await
            } else {
                StatusCode::NOT_FOUND.into_response()
            }
        })
        .with_state(http)
}

/// What envoyproxy/ratelimit serves on its debug port, and has an equivalent here.
pub fn debug_router(http: Http) -> Router {
    Router::new().route("/rlconfig", get(rlconfig::list)).with_state(http)
}

/// Where clients identify themselves, one without a certificate may only ask about health.
async fn refuse_strangers(State(needed): State<bool>, request: Request, next: Next) -> Response {
    if needed && request.extensions().get::<Identity>().is_none() {
        return (StatusCode::FORBIDDEN, "a client certificate is required").into_response();
    }
    next.run(request).await
}

async fn readyz(State(http): State<Http>) -> impl IntoResponse {
    if http.health.ready() {
        (StatusCode::OK, "OK")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    }
}

/// Answers like envoyproxy/ratelimit: 200 with `OK`, or 500 with an empty body.
async fn healthcheck(State(http): State<Http>) -> impl IntoResponse {
    if http.health.ready() {
        (StatusCode::OK, "OK")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "")
    }
}

async fn metrics(State(http): State<Http>) -> Response {
    let text_format = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let answer = move |http: &Http| {
        let mut families = http.telemetry.families();
        if http.telemetry.compat() == MetricsCompat::Envoyproxy {
            let theirs = compat::envoyproxy(&families);
            families.0.extend(theirs);
        }
        (text_format, families.text()).into_response()
    };
    http.report(answer).await
}

async fn rules(State(http): State<Http>, request: Request) -> Response {
    if let Some(problem) = refused_parameter(&request) {
        return json::refuse(&Refusal::Invalid(problem));
    }
    let answer =
        |http: &Http| Json(rules_json(&http.rules, http.control_plane.as_deref())).into_response();
    http.report(answer).await
}

fn rules_json(rules: &Rules, control_plane: Option<&ControlPlane>) -> Value {
    let in_force = rules.current();
    let domains = in_force.rules.domains().into_iter().map(domain_json);
    let others = [
        ("tollkeeper_version", json!(VERSION)),
        ("files", json!(in_force.files)),
        ("control_plane", json!(control_plane.map(control_plane_json))),
        ("domains", domains.collect()),
    ];
    let problems = rules.problems().iter().map(ToString::to_string).collect();
    rules_state(problems, &in_force).into_iter().chain(others).collect()
}

/// The version of the rules in force, when they were loaded, and the problems of newer ones.
fn rules_state(problems: Vec<String>, in_force: &InForce) -> [(&'static str, Value); 3] {
    let since = in_force.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    [
        ("version", json!(in_force.version.to_string())),
        ("loaded_at", json!(since.as_secs())),
        ("problems", json!(problems)),
    ]
}

fn control_plane_json(control_plane: &ControlPlane) -> Value {
    let report = control_plane.report();
    let (version, accepted_at) = report.accepted.unzip();
    let age = accepted_at.map(|at| system_clock().as_secs().saturating_sub(at.as_secs()));
    json!({
        "url": control_plane.target.to_string(),
        "connected": report.connected,
        "version": version,
        "accepted_at": accepted_at.map(Timestamp::as_secs),
        "age_seconds": age,
        "refused_version": report.refused,
        "failure": report.failure,
    })
}

fn domain_json(domain: &Domain) -> Value {
    let rules: Vec<Value> = domain.rules().into_iter().map(|rule| rule_json(rule)).collect();
    json!({ "domain": &*domain.name, "rules": rules })
}

fn rule_json(rule: &Rule) -> Value {
    json!({ "path": *rule.path, "limit": limits_text(rule), "written_at": rule.location })
}

/// The limits of a rule, in words.
fn limits_text(rule: &Rule) -> String {
    let limits: Vec<String> = match &rule.policy {
        Policy::Limited(limits) => limits.iter().map(|limit| limit_text(limit)).collect(),
        Policy::Unlimited => vec!["unlimited".to_owned()],
    };
    limits.join(", ")
}

/// The limit, with its algorithm unless that is the default.
fn limit_text(limit: &Limit) -> String {
    match limit.algorithm {
        Algorithm::FixedWindow => limit.to_string(),
        _ => format!("{limit} by {}", limit.algorithm.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slot_is_taken_until_the_last_frame_of_its_report() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = Arc::clone(&slots).try_acquire_owned().unwrap();
        let text = Bytes::from(vec![7; 2 * REPORT_FRAME_BYTES + 1]);
        let mut body = SlottedBody { rest: text.clone(), _slot: slot };
        let mut received = Vec::new();
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some((text.len() - received.len()) as u64));
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(frame.len() <= REPORT_FRAME_BYTES && slots.available_permits() == 0);
            received.extend_from_slice(&frame);
        }
        assert_eq!(received, text);
        assert!(body.frame().await.is_none());
        drop(body);
        assert_eq!(slots.available_permits(), 1);
    }
}
