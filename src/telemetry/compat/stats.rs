//! `/stats`: the counters of envoyproxy/ratelimit under the names that it sends to statsd. All levels of a rule's path
//! are in them.

use std::collections::BTreeMap;

use prometheus::proto::{Metric, MetricFamily};

use super::{HITS, cleaned, errors, label, level, loads, merged, metrics};

/// The counters by name, from our metrics.
pub(in crate::telemetry) fn stats(ours: &[MetricFamily]) -> BTreeMap<String, u64> {
    let mut stats = BTreeMap::new();
    for metric in metrics(ours, "ratelimit_hits_total") {
        let mut rule = format!("ratelimit.service.rate_limit.{}", cleaned(label(metric, "domain")));
        for part in label(metric, "rule").split('|') {
            rule = format!("{rule}.{}", level(part));
        }
        for (name, _, standings) in HITS {
            let count = stats.entry(format!("{rule}.{name}")).or_default();
            if standings.contains(&label(metric, "standing")) {
                *count += whole(metric.get_counter().get_value());
            }
        }
    }
    let calls: &[Metric] = metrics(ours, "rpc_server_call_duration_seconds");
    for (labels, count) in errors(calls) {
        for (_, kind) in labels {
            stats.insert(format!("ratelimit.service.call.should_rate_limit.{kind}"), whole(count));
        }
    }
    let total = merged(calls).get_sample_count();
    stats.insert("ratelimit_server.ShouldRateLimit.total_requests".to_owned(), total);
    for (name, count) in loads(ours) {
        stats.insert(format!("ratelimit.service.{name}"), whole(count));
    }
    stats
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count below 2^53")]
fn whole(count: f64) -> u64 {
    count as u64
}
