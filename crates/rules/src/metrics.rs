//! Metrics of the rules in force, and of reloads.

use std::{sync::Arc, time::SystemTime};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};
use tollkeeper_base::telemetry::instruments;

use super::watch::{Loaded, Rules};

instruments! {
    pub struct RuleMetrics {
        reloads: Counter<u64> => RELOADS = Counter("ratelimit.rules.reloads", ["outcome"],
            "reloads of changed rule files: `good` or `bad`");
    }

    LAST_RELOAD = Gauge("ratelimit.rules.last_reload_successful", [],
        "1 if the newest rule files, and the newest response of a control plane, are in force, else 0");
    RULES_INFO = Gauge("ratelimit.rules.info", ["version"],
        "always 1; version of the rules in force");
    RULES_LOADED = Gauge("ratelimit.rules.loaded.timestamp", [],
        "Unix time when the rules in force were loaded") in Seconds;
}

impl RuleMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        let metrics = Self::of_meter(meter);
        // Rates begin with the first reload.
        for outcome in ["good", "bad"] {
            metrics.reloads.add(0, &[KeyValue::new("outcome", outcome)]);
        }
        metrics
    }

    pub fn loaded(&self, loaded: Loaded) {
        let outcome = match loaded {
            Loaded::Good => "good",
            Loaded::Bad => "bad",
        };
        self.reloads.add(1, &[KeyValue::new("outcome", outcome)]);
    }
}

pub fn observe(meter: &Meter, rules: &Arc<Rules>) {
    let in_force = Arc::clone(rules);
    RULES_INFO.observe(meter, move |observe| {
        let version = in_force.current().version.to_string();
        observe(1.0, &[KeyValue::new("version", version)]);
    });
    let newest = Arc::clone(rules);
    LAST_RELOAD.observe(meter, move |observe| {
        observe(f64::from(newest.problems().is_empty()), &[]);
    });
    let in_force = Arc::clone(rules);
    RULES_LOADED.observe(meter, move |observe| {
        let since = in_force.current().since.duration_since(SystemTime::UNIX_EPOCH);
        observe(since.unwrap_or_default().as_secs_f64(), &[]);
    });
}
