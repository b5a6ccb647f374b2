//! A sampled call in the queue, and what it waits for.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tollkeeper_base::telemetry::{CallSpan, Wait};

#[derive(Debug)]
pub(super) struct CallInQueue {
    span: Arc<CallSpan>,
    pub(super) waits_for: WaitsFor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The calls that arrive at the same moment.
    Gathering,
    Batch,
    /// A further run, since its window was not the present one.
    Window,
    /// A run of the other script, since a counter is corrupt.
    OtherScript,
}

impl WaitsFor {
    const fn name(self) -> &'static str {
        match self {
            Self::Gathering => "gathering",
            Self::Batch => "batch_under_way",
            Self::Window => "stale_window",
            Self::OtherScript => "corrupt_counter",
        }
    }
}

impl CallInQueue {
    pub(super) const fn new(span: Arc<CallSpan>) -> Self {
        Self { span, waits_for: WaitsFor::Gathering }
    }

    pub(super) fn span(&self) -> &CallSpan {
        &self.span
    }

    /// How it has waited since `since`, of which `for_connection` was for a connection.
    pub(super) fn wait(&self, since: Instant, now: Instant, for_connection: Duration) -> Wait {
        let waited = now.duration_since(since);
        let reason = if for_connection > waited / 2 { "connection" } else { self.waits_for.name() };
        Wait { seconds: waited.as_secs_f64(), reason }
    }
}
