//! Metrics of the subscription to a control plane. Its versions are no label: they may change with every event there.

use std::sync::Arc;

use opentelemetry::{KeyValue, metrics::Meter};

use crate::{
    rules::xds::{ControlPlane, ControlPlaneReport},
    telemetry::instrument::{InstrumentRow, InstrumentUnit, Observe, observe_together},
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
    let control_plane = Arc::clone(control_plane);
    let read = move || control_plane.report();
    observe_together(
        meter,
        read,
        &[
            (&CONNECTED, |report, observe| observe(f64::from(u8::from(report.connected)), &[])),
            (&CONNECTIONS, |report, observe| {
                let streams = report.streams;
                by_outcome(&[("opened", streams.opened), ("failed", streams.failed)], observe);
            }),
            (&RESPONSES, |ControlPlaneReport { responses, .. }, observe| {
                let accepted = ("accepted", responses.accepted);
                let unchanged = ("unchanged", responses.unchanged);
                by_outcome(&[accepted, unchanged, ("refused", responses.refused)], observe);
            }),
            (&NACKS, |report, observe| observe(number(report.nacks), &[])),
            (&ACCEPTED, |report, observe| {
                let at = report.accepted.as_ref().map_or(0, |(_, at)| at.as_secs());
                observe(number(at), &[]);
            }),
        ],
    );
}

fn by_outcome(counts: &[(&'static str, u64)], observe: Observe<'_>) {
    for (outcome, count) in counts {
        observe(number(*count), &[KeyValue::new("outcome", *outcome)]);
    }
}

/// Exact: numbers of responses and seconds, below 2^53.
fn number(count: u64) -> f64 {
    count as f64
}
