//! A sampled call in the queue, and what it waits for.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tollkeeper_base::telemetry::{CallSpan, Wait};
use tollkeeper_engine::text::named::named;

#[derive(Debug)]
pub(super) struct CallInQueue {
    span: Arc<CallSpan>,
    pub(super) waits_for: WaitsFor,
}

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum WaitsFor {
        /// The calls that arrive at the same moment.
        Gathering = "gathering",
        Batch = "batch_under_way",
        /// A further run, since its window was not the present one.
        Window = "stale_window",
        /// A run of the other script, since a counter is corrupt.
        OtherScript = "corrupt_counter",
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
