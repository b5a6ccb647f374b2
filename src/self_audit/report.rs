//! What the self-audit has found, as metrics and lines of the log.

use std::{sync::Arc, time::Duration};

use hashbrown::HashMap;
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge},
};
use tokio::time::Instant;

use super::answered::{Answered, Finding};
use crate::{
    telemetry::{LogCause, due_line, float, instruments},
    top_keys::KeyName,
};

instruments! {
    pub(super) struct AuditInstruments {
        over_ratio: Gauge<f64> => OVER_RATIO = Gauge("ratelimit.audit.over_ratio", ["domain", "rule", "cause"],
            "the largest excess of an audited window in the last hour, divided by its limit; `cause` is `outage` if hits that `on_store_failure` let pass account for all of it, else `unknown`");
        windows: Counter<u64> => WINDOWS = Counter("ratelimit.audit.windows", ["domain", "rule", "outcome"],
            "windows of counters that were audited: `exact`, `over` the limit, `denied_early`, `stranded` (more hits were counted than answered), or `skipped`");
        left_out: Counter<u64> => LEFT_OUT = Counter("ratelimit.audit.left_out", [],
            "calls that were not audited, in windows beyond the 5,000 that a replica audits at a time");
    }
}

/// How long an excess is shown.
const SHOWN_FOR: Duration = Duration::from_secs(3600);

/// A domain, the path of a rule in it, and a cause.
type Excess = (Arc<str>, String, &'static str);

/// What this replica has found, and the most that limits were exceeded lately.
pub(super) struct Reports {
    metrics: AuditInstruments,
    excesses: HashMap<Excess, (f64, Instant)>,
}

impl Reports {
    pub(super) fn new(metrics: AuditInstruments) -> Self {
        Self { metrics, excesses: HashMap::new() }
    }

    /// Reports a window of the counter that is known by this name and key.
    pub(super) fn add(&mut self, name: &KeyName, key: &str, all: &Answered, found: Finding) {
        let (domain, rule) = (&name.domain, name.rule_path());
        for finding in Finding::ALL {
            // Series begin at 0, so that rates begin with the first event.
            let count = u64::from(finding == found);
            self.metrics.windows.add(count, &labels(domain, rule, ("outcome", finding.name())));
        }
        if found == Finding::Skipped {
            return;
        }
        let (&Answered { limit, hits, .. }, cause) = (all, all.cause());
        let ratio = float(hits.saturating_sub(limit)) / float(limit.max(1));
        let new = (ratio, Instant::now());
        let most = self.excesses.entry((Arc::clone(domain), rule.to_owned(), cause)).or_insert(new);
        if ratio >= most.0 {
            *most = new;
        }
        self.metrics.over_ratio.record(most.0, &labels(domain, rule, ("cause", cause)));
        let what = match found {
            Finding::Over => "more hits passed in a window than the limit allows",
            Finding::DeniedEarly => "a call was denied that would have fitted into its window",
            Finding::Exact | Finding::Stranded | Finding::Skipped => return,
        };
        let cause = (found == Finding::Over).then_some(cause);
        if let Some(line) = due_line(LogCause::SelfAudit, &format!("{domain}\n{rule}")) {
            let suppressed = line.suppressed;
            tracing::warn!(%domain, rule, key, limit, hits, cause, suppressed, "{what}");
        }
    }

    /// Ends what was shown for an hour.
    pub(super) fn forget(&mut self) {
        self.excesses.retain(|(domain, rule, cause), (ratio, seen)| {
            let is_shown = seen.elapsed() <= SHOWN_FOR;
            if !is_shown && *ratio > 0.0 {
                self.metrics.over_ratio.record(0.0, &labels(domain, rule, ("cause", cause)));
            }
            is_shown
        });
    }
}

fn labels(
    domain: &Arc<str>,
    rule: &str,
    (name, value): (&'static str, &'static str),
) -> [KeyValue; 3] {
    [
        KeyValue::new("domain", Arc::clone(domain)),
        KeyValue::new("rule", rule.to_owned()),
        KeyValue::new(name, value),
    ]
}
