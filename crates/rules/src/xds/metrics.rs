//! Metrics of the subscription to a control plane. Its versions are no label: they may change with every event there.

use opentelemetry::KeyValue;
use tollkeeper_base::telemetry::{Observe, Observed, float, instruments};

use super::ControlPlaneReport;

instruments! {
    CONNECTED = Gauge("ratelimit.xds.connected", [],
        "1 while connected to the control plane, else 0");
    CONNECTIONS = Counter("ratelimit.xds.connections", ["outcome"],
        "attempts to connect to the control plane, `opened` or `failed`");
    RESPONSES = Counter("ratelimit.xds.responses", ["outcome"],
        "responses of the control plane: `accepted`, `unchanged` or `refused`");
    NACKS = Counter("ratelimit.xds.nacks", [], "refusals sent to the control plane");
    ACCEPTED = Gauge("ratelimit.xds.accepted.timestamp", [],
        "Unix time of the last response not refused, 0 before") in Seconds;
}

pub const OBSERVED: &[Observed<'_, ControlPlaneReport>] = &[
    (&CONNECTED, |report, observe| observe(float(report.connected.into()), &[])),
    (&CONNECTIONS, |ControlPlaneReport { streams, .. }, observe| {
        by_outcome(&[("opened", streams.opened), ("failed", streams.failed)], observe);
    }),
    (&RESPONSES, |ControlPlaneReport { responses, .. }, observe| {
        let accepted = ("accepted", responses.accepted);
        let unchanged = ("unchanged", responses.unchanged);
        by_outcome(&[accepted, unchanged, ("refused", responses.refused)], observe);
    }),
    (&NACKS, |report, observe| observe(float(report.nacks), &[])),
    (&ACCEPTED, |report, observe| {
        let at = report.accepted.as_ref().map_or(0, |(_, at)| at.as_secs());
        observe(float(at), &[]);
    }),
];

fn by_outcome(counts: &[(&'static str, u64)], observe: Observe<'_>) {
    for (outcome, count) in counts {
        observe(float(*count), &[KeyValue::new("outcome", *outcome)]);
    }
}
