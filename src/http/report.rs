//! Answers that may be large, and whose client may be slow: few are made and sent at a time.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};

use crate::{
    rls::refusal::Refusal,
    rules::{Rules, xds::ControlPlane},
    telemetry::Telemetry,
};

/// Most reports that are being sent at a time: they may be large, and their client slow.
const REPORTS_MAX: usize = 32;

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
    /// One permit for each report that is being sent.
    slots: Arc<Semaphore>,
}

impl Reports {
    /// Reports about these parts, [`REPORTS_MAX`] at a time.
    pub fn new(
        telemetry: Arc<Telemetry>,
        rules: Arc<Rules>,
        control_plane: Option<Arc<ControlPlane>>,
        needs_certificate: bool,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(REPORTS_MAX));
        Self { telemetry, rules, control_plane, needs_certificate, slots }
    }

    /// Makes a report; 503 if too many are being made and sent.
    pub(super) async fn send(&self, make: impl FnOnce() -> Response + Send + 'static) -> Response {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            return Refusal::TooMany.into_response();
        };
        let turn = REPORT_TURN.acquire().await;
        let Ok(made) = spawn_blocking(make).await else {
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
