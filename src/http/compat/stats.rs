//! The counters of envoyproxy/ratelimit under the names that it sends to statsd, for `/stats` and for statsd. They have
//! all levels of a rule's path.

use std::collections::BTreeMap;

use super::{KINDS, cleaned, errors, level, loads};
use crate::{
    limiter::metrics::{DURATION, HITS},
    telemetry::{Families, MetricsCompat, Telemetry, label, value},
};

/// The counters by name; `None` unless these names are asked for.
pub(in crate::http) fn stats(telemetry: &Telemetry) -> Option<BTreeMap<String, u64>> {
    (telemetry.compat() != MetricsCompat::Off).then(|| counters(&telemetry.families()))
}

/// The counters by name, from our metrics.
pub(super) fn counters(ours: &Families) -> BTreeMap<String, u64> {
    let mut stats = BTreeMap::new();
    for metric in ours.metrics(&HITS) {
        let mut rule = format!("ratelimit.service.rate_limit.{}", cleaned(label(metric, "domain")));
        for part in label(metric, "rule").split('|') {
            rule = format!("{rule}.{}", level(part));
        }
        for (name, _, standings) in KINDS {
            let count = stats.entry(format!("{rule}.{name}")).or_default();
            if standings.contains(&label(metric, "standing")) {
                *count += value(metric);
            }
        }
    }
    for (labels, count) in errors(ours) {
        for (_, kind) in labels {
            stats.insert(format!("ratelimit.service.call.should_rate_limit.{kind}"), count);
        }
    }
    let total = ours.merged(&DURATION).get_sample_count();
    stats.insert("ratelimit_server.ShouldRateLimit.total_requests".to_owned(), total);
    for (name, count) in loads(ours) {
        stats.insert(format!("ratelimit.service.{name}"), count);
    }
    stats
}
