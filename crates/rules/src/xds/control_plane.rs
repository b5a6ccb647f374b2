//! What is known about the control plane, for `/rules` and metrics.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tollkeeper_base::{
    process::clock::system_clock,
    telemetry::{EventKind, happened},
};
use tollkeeper_engine::{text::printable::printable, time::Timestamp};

use super::target::XdsTarget;

#[derive(Debug)]
pub struct ControlPlane {
    pub target: Arc<XdsTarget>,
    report: Mutex<ControlPlaneReport>,
    /// Cancelled once rules have been accepted.
    accepted: CancellationToken,
}

#[derive(Debug, Clone, Default)]
pub struct ControlPlaneReport {
    /// Whether there is a stream that the server has not refused.
    pub connected: bool,
    /// The control plane's version of the last response that was accepted, and when it arrived.
    pub accepted: Option<(String, Timestamp)>,
    /// Its version of the last response, if that was refused.
    pub refused: Option<String>,
    /// The cause of the last failure to connect, or of the end of the last stream; `None` once a response has arrived
    /// since.
    pub failure: Option<String>,
    pub responses: Responses,
    pub nacks: u64,
    pub streams: Streams,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Responses {
    /// With new content, which is in force.
    pub accepted: u64,
    /// With the content that is in force.
    pub unchanged: u64,
    pub refused: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Streams {
    /// Attempts after which there was a stream.
    pub opened: u64,
    pub failed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseOutcome {
    Accepted,
    Unchanged,
    Refused,
}

impl ControlPlane {
    /// A control plane to which no connection was tried yet.
    pub fn new(target: Arc<XdsTarget>) -> Self {
        let (report, accepted) = (Mutex::default(), CancellationToken::new());
        Self { target, report, accepted }
    }

    pub fn report(&self) -> ControlPlaneReport {
        self.report.lock().clone()
    }

    pub async fn accepted(&self) {
        self.accepted.cancelled().await;
    }

    pub(super) fn connected(&self) {
        let mut state = self.report.lock();
        state.connected = true;
        state.streams.opened += 1;
        drop(state);
        tracing::info!("connected to the control plane {}", self.target);
    }

    /// Records a failure to connect, or the end of a stream. The same failure of attempts in a row is logged once.
    pub(super) fn disconnected(&self, failure: String) {
        let mut state = self.report.lock();
        let was_connected = std::mem::take(&mut state.connected);
        if !was_connected {
            state.streams.failed += 1;
        }
        let is_new = was_connected || state.failure.as_ref() != Some(&failure);
        let rules = match state.accepted {
            Some(_) => "the rules stay",
            None => "there are no rules yet",
        };
        state.failure = Some(failure.clone());
        drop(state);
        if is_new {
            let target = &self.target;
            let text = format!("no stream from the control plane {target}; {rules}: {failure}");
            tracing::warn!("{text}");
            happened(EventKind::ControlPlaneLost, text);
        }
    }

    pub(super) fn responded(&self, version: &str, outcome: ResponseOutcome) {
        let mut state = self.report.lock();
        state.failure = None;
        match outcome {
            ResponseOutcome::Accepted => state.responses.accepted += 1,
            ResponseOutcome::Unchanged => state.responses.unchanged += 1,
            ResponseOutcome::Refused => {
                state.responses.refused += 1;
                state.refused = Some(printable(version.as_bytes()));
                return;
            }
        }
        drop(state);
        self.in_force(version);
    }

    /// Records that the rules of this version of the control plane are in force.
    pub(super) fn in_force(&self, version: &str) {
        let version = printable(version.as_bytes());
        let mut state = self.report.lock();
        (state.accepted, state.refused) = (Some((version, system_clock())), None);
        drop(state);
        self.accepted.cancel();
    }

    pub(super) fn nacked(&self) {
        self.report.lock().nacks += 1;
        happened(EventKind::Nack, format!("refusal sent to {}", self.target));
    }
}
