//! What an override would have meant for the calls of the last minute, by the keys that lead.

use std::time::Instant;

use serde_json::{Value, json};

use super::Limiter;
use crate::{
    engine::{
        directive::{DirectiveAction, Directives},
        plan::Plan,
        request::{Descriptor, Hits, Request},
        time::Timestamp,
    },
    members::set_member,
    overrides::NewOverride,
};

const SHOWN_MAX: usize = 20;

impl Limiter {
    /// What an override would have meant for the calls that this replica has decided in the last 30 to 60 seconds, as the
    /// JSON of the admin address.
    pub fn effect_of(&self, new: &NewOverride) -> Value {
        let directive = new.directive("", Timestamp::default(), Timestamp::default());
        let is_exact = !directive.has_pattern();
        let plan = is_exact.then(|| self.plan_of(new));
        let counters = plan.iter().flat_map(|plan| &plan.charges).map(|charge| &charge.counter);
        let counters: Vec<_> = counters.collect();
        let directives = Directives::new(vec![directive]);
        let matches = |entries: &[_]| directives.find(&new.domain, entries).is_some();
        let leading =
            self.top_keys.leading(Instant::now(), &new.domain, &counters, new.action, matches);
        let note = match &leading {
            None => "keys are not counted: --top-keys is off",
            Some(_) if !is_exact && !self.top_keys.knows_values() => {
                "keys are counted by digests, which patterns do not match: see --top-keys values"
            }
            Some(_) => "by the leading keys of this replica only",
        };
        let (seconds, leading) = leading.unwrap_or_default();
        let (mut sums, mut keys) = ([0; 3], Vec::new());
        let mut may_be_closed = false;
        for (top, limit_then, denied) in leading {
            // What was asked for in the window, as far as it is known.
            let asked = top.capacity.saturating_sub(top.remaining).saturating_add(denied);
            let (would_be_denied, in_words) = match new.action {
                DirectiveAction::Ban => (top.count, new.action.name().to_owned()),
                DirectiveAction::Allow | DirectiveAction::Shadow => {
                    (0, new.action.name().to_owned())
                }
                DirectiveAction::Limit(_) | DirectiveAction::Times(_) => {
                    may_be_closed |= limit_then.ban_ms.is_some() && denied > 0;
                    let denied = asked.saturating_sub(limit_then.capacity()).min(top.count);
                    (denied, limit_then.to_string())
                }
            };
            let counts = [top.count, denied, would_be_denied];
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            if keys.len() < SHOWN_MAX {
                keys.push(json!({
                    "key": top.key,
                    "rule": top.rule,
                    "limit": top.limit,
                    "limit_then": in_words,
                    "decisions": top.count,
                    "denied": denied,
                    "would_be_denied": would_be_denied,
                }));
            }
        }
        let [decisions, denied, would_be_denied] = sums;
        let mut effect = json!({
            "seconds": seconds,
            "decisions": decisions,
            "denied": denied,
            "would_be_denied": would_be_denied,
            "keys": keys,
            "note": note,
        });
        if may_be_closed {
            let hint = "a counter that ban_for has closed denies until it opens, and `tollkeeper counter reset` opens it";
            set_member(&mut effect, "hint", hint);
        }
        effect
    }

    /// What a call with the descriptor of an override is charged by the rules.
    fn plan_of(&self, new: &NewOverride) -> Plan {
        let (hits, states_hits, limit) = (Hits::Check, false, None);
        let descriptor = Descriptor { entries: new.entries.clone(), hits, states_hits, limit };
        let request = Request { domain: new.domain.clone(), descriptors: vec![descriptor] };
        Plan::draw(&self.rules.current().rules, &request)
    }
}
