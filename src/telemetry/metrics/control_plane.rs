//! Metrics of the subscription to a control plane. Its versions are no label: they may change with every event there.

use std::sync::Arc;

use opentelemetry::{KeyValue, metrics::Meter};

use crate::{
    rules::xds::ControlPlane,
    telemetry::instrument::{InstrumentRow, InstrumentUnit},
};

const CONNECTED: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.xds.connected",
    &[],
    "1 while there is a connection to the control plane of `--rules xds://…`, else 0",
);
const CONNECTIONS: InstrumentRow = InstrumentRow::counter(
    "ratelimit.xds.connections",
    &["outcome"],
    "attempts to connect to the control plane, `opened` or `failed`",
);
const RESPONSES: InstrumentRow = InstrumentRow::counter(
    "ratelimit.xds.responses",
    &["outcome"],
    "responses of the control plane: `accepted`, `unchanged` (the content in force, under any version) or `refused`",
);
const NACKS: InstrumentRow = InstrumentRow::counter(
    "ratelimit.xds.nacks",
    &[],
    "refusals that were sent to the control plane, with the problems of its response",
);
const ACCEPTED: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.xds.accepted.timestamp",
    &[],
    "Unix time of the last response that was accepted or unchanged, 0 before the first; `time()` minus this is its age",
)
.in_unit(InstrumentUnit::Seconds);

pub(super) const INSTRUMENTS: &[&InstrumentRow] =
    &[&CONNECTED, &CONNECTIONS, &RESPONSES, &NACKS, &ACCEPTED];

/// Observes the subscription to a control plane.
pub fn observe_control_plane(meter: &Meter, control_plane: &Arc<ControlPlane>) {
    let of = |control_plane: &Arc<ControlPlane>| Arc::clone(control_plane);
    let observed = of(control_plane);
    CONNECTED.observe(meter, move |observe| {
        observe(f64::from(u8::from(observed.report().connected)), &[]);
    });
    let observed = of(control_plane);
    CONNECTIONS.observe(meter, move |observe| {
        let streams = observed.report().streams;
        for (outcome, count) in [("opened", streams.opened), ("failed", streams.failed)] {
            observe(number(count), &[KeyValue::new("outcome", outcome)]);
        }
    });
    let observed = of(control_plane);
    RESPONSES.observe(meter, move |observe| {
        let responses = observed.report().responses;
        for (outcome, count) in [
            ("accepted", responses.accepted),
            ("unchanged", responses.unchanged),
            ("refused", responses.refused),
        ] {
            observe(number(count), &[KeyValue::new("outcome", outcome)]);
        }
    });
    let observed = of(control_plane);
    NACKS.observe(meter, move |observe| observe(number(observed.report().nacks), &[]));
    let observed = of(control_plane);
    ACCEPTED.observe(meter, move |observe| {
        let at = observed.report().accepted.map_or(0, |(_, at)| at.as_secs());
        observe(number(at), &[]);
    });
}

#[expect(clippy::cast_precision_loss, reason = "a counter never gets near 2^53")]
fn number(count: u64) -> f64 {
    count as f64
}
