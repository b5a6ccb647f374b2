//! The instruments of all parts, and those that are observed whenever metrics are read.

use std::sync::Arc;

use opentelemetry::metrics::Meter;

use super::{App, renewal};
use crate::{
    candidate, edge, limiter, notices, overrides, recording, rls,
    rules::{self, xds},
    self_audit,
    store::{self, memory, redis::RedisStore, report},
    telemetry::{self, InstrumentRow, observe_together},
};

/// Every instrument, as docs/observability.md lists them.
pub fn instruments() -> impl Iterator<Item = &'static InstrumentRow> {
    let lists = [
        limiter::metrics::INSTRUMENTS,
        limiter::holds::INSTRUMENTS,
        notices::INSTRUMENTS,
        overrides::INSTRUMENTS,
        recording::INSTRUMENTS,
        rls::INSTRUMENTS,
        self_audit::INSTRUMENTS,
        candidate::INSTRUMENTS,
        store::metrics::INSTRUMENTS,
        report::INSTRUMENTS,
        memory::metrics::INSTRUMENTS,
        edge::metrics::INSTRUMENTS,
        renewal::INSTRUMENTS,
        xds::metrics::INSTRUMENTS,
        telemetry::PROCESS,
        rules::metrics::INSTRUMENTS,
        telemetry::INSTRUMENTS,
    ];
    lists.concat().into_iter()
}

impl App {
    /// Observes the rules, the control plane and the servers of the store.
    pub(super) fn observe(&self, meter: &Meter) {
        rules::metrics::observe(meter, &self.rules);
        self.overrides.observe(meter);
        if let Some(control_plane) = self.control_plane.clone() {
            observe_together(meter, move || control_plane.report(), xds::metrics::OBSERVED);
        }
        let store = Arc::clone(&self.store);
        let servers = move || store.servers().map_or_else(Vec::new, RedisStore::reports);
        observe_together(meter, servers, report::OBSERVED);
    }
}
