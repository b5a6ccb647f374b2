//! Answers that may be large, and whose client may be slow: one is made at a time, and clients share it while it is sent.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures_util::{Stream, stream};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::spawn_blocking};

use crate::{
    rules::{Rules, xds::ControlPlane},
    telemetry::Telemetry,
};

/// A report that is still being sent to a client is also sent to others: until it has this age, or while this number of
/// its kind is being sent.
const SHARED_FOR: Duration = Duration::from_secs(1);
const SHARED_MAX: usize = 4;

/// One report is made at a time, so that decisions and probes have the other threads.
static REPORT_TURN: Semaphore = Semaphore::const_new(1);

/// The size of the frames in which a report is sent.
const REPORT_FRAME_BYTES: usize = 64 << 10;

#[derive(Debug, Clone)]
pub struct Reports {
    /// The source of `/metrics`.
    pub telemetry: Arc<Telemetry>,
    pub rules: Arc<Rules>,
    /// The source of the rules, if that is a control plane.
    pub control_plane: Option<Arc<ControlPlane>>,
    /// Whether clients of the HTTP address need a certificate for them.
    pub needs_certificate: bool,
    /// By their kind, the reports that are being sent.
    shared: Arc<Mutex<SharedReports>>,
}

type SharedReports = HashMap<&'static str, Vec<Weak<SharedReport>>>;

#[derive(Debug)]
struct SharedReport {
    made: Instant,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reports {
    /// Reports about these parts.
    pub fn new(
        telemetry: Arc<Telemetry>,
        rules: Arc<Rules>,
        control_plane: Option<Arc<ControlPlane>>,
        needs_certificate: bool,
    ) -> Self {
        Self { telemetry, rules, control_plane, needs_certificate, shared: Arc::default() }
    }

    /// Makes a report of this kind, or sends one that is being sent.
    pub(super) async fn send(
        &self,
        kind: &'static str,
        make: impl FnOnce() -> Response + Send + 'static,
    ) -> Response {
        let turn = REPORT_TURN.acquire().await;
        let report = match self.shared(kind) {
            Some(report) => report,
            None => {
                let made = Instant::now();
                let Ok(answer) = spawn_blocking(make).await else {
                    return StatusCode::INTERNAL_SERVER_ERROR.into_response();
                };
                let (head, body) = answer.into_parts();
                let body = body.collect().await.unwrap_or_default().to_bytes();
                let (status, headers) = (head.status, head.headers);
                let report = Arc::new(SharedReport { made, status, headers, body });
                self.shared.lock().entry(kind).or_default().push(Arc::downgrade(&report));
                report
            }
        };
        drop(turn);
        let length = [(header::CONTENT_LENGTH, report.body.len())];
        let (status, headers) = (report.status, report.headers.clone());
        (status, headers, length, Body::from_stream(frames(report))).into_response()
    }

    fn shared(&self, kind: &str) -> Option<Arc<SharedReport>> {
        let mut shared = self.shared.lock();
        let reports = shared.get_mut(kind)?;
        reports.retain(|report| report.strong_count() > 0);
        let newest = reports.last()?.upgrade()?;
        (newest.made.elapsed() < SHARED_FOR || reports.len() >= SHARED_MAX).then_some(newest)
    }
}

/// The frames of a report, which is kept until the last one is to be sent. Each is a copy, since a part of the report would
/// keep all of it in memory.
fn frames(report: Arc<SharedReport>) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold((Some(report), 0), async |(report, sent)| {
        let report = report?;
        let rest = report.body.get(sent..).filter(|rest| !rest.is_empty())?;
        let frame = Bytes::copy_from_slice(rest.get(..REPORT_FRAME_BYTES).unwrap_or(rest));
        let is_last = frame.len() == rest.len();
        let sent = sent + frame.len();
        Some((Ok(frame), ((!is_last).then_some(report), sent)))
    })
}
