//! Counts configured servers whose mode differs from the URL's. They never become nodes, so no connection of
//! a pool checks them: the task that searches the nodes finds them.

use crate::{metrics::StoreMetrics, redis::node::server_checks::MODE};

/// The number of such servers, as the metric of the check shows it.
pub(crate) struct WrongModes {
    metrics: StoreMetrics,
    shown: usize,
}

impl WrongModes {
    pub(crate) fn new(metrics: StoreMetrics) -> Self {
        metrics.check_failed(MODE, 0);
        Self { metrics, shown: 0 }
    }

    pub(crate) fn show(&mut self, count: usize) {
        let signed = |count| i64::try_from(count).unwrap_or(i64::MAX);
        let change = signed(count).saturating_sub(signed(self.shown));
        if change != 0 {
            self.metrics.check_failed(MODE, change);
        }
        self.shown = count;
    }
}
