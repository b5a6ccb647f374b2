//! What an override would have meant for the calls of the last minute, by the keys that lead.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Limiter;
use crate::{
    engine::{
        descriptor_syntax,
        directive::{DirectiveAction, Directives},
        plan::Plan,
        request::{Descriptor, Hits, Request},
        rule::Limit,
        time::Timestamp,
    },
    members::set_member,
    overrides::NewOverride,
};

const SHOWN_MAX: usize = 20;

/// The longest windows that are as a whole in the time in which keys are counted, about.
const WHOLE_MS: u64 = 60_000;

/// How many of `count` decisions in some seconds, with these hits, a limit would have denied. In its present window, `asked`
/// hits were asked for.
fn would_be_denied(limit: &Limit, asked: u64, seconds: f64, count: u64, hits: u64) -> u64 {
    let window_ms = limit.window_ms();
    if limit.counts_calls() || window_ms > WHOLE_MS {
        return asked.saturating_sub(limit.capacity()).min(count);
    }
    let counted_ms = Duration::from_secs_f64(seconds).as_millis().try_into().unwrap_or(u64::MAX);
    let asked = scaled(hits, window_ms, counted_ms);
    scaled(count, asked.saturating_sub(limit.capacity()), asked)
}

/// A number times a fraction; 0 if there is nothing to divide by.
fn scaled(number: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(number) * u128::from(numerator);
    let scaled = product.checked_div(u128::from(denominator)).unwrap_or(0);
    scaled.try_into().unwrap_or(u64::MAX)
}

impl Limiter {
    /// What an override would have meant for the calls that this replica has decided in the last 30 to 60 seconds, as the
    /// JSON of the admin address.
    pub fn effect_of(&self, new: &NewOverride) -> Value {
        let directive = new.directive("", Timestamp::default(), Timestamp::default());
        let is_exact = !directive.has_pattern();
        let exact = is_exact.then(|| descriptor_syntax::write(&new.entries));
        let plan = is_exact.then(|| self.plan_of(new));
        let counters = plan.iter().flat_map(|plan| &plan.charges).map(|charge| &charge.counter);
        let counters: Vec<_> = counters.collect();
        let directives = Directives::new(vec![directive]);
        let matches = |entries: &[_]| directives.find(&new.domain, entries).is_some();
        let digest = |id| self.holds.digest(id);
        let (now, domain) = (Instant::now(), &new.domain);
        let leading = self.top_keys.leading(now, domain, &counters, new.action, matches, digest);
        let note = match &leading {
            None => "keys are not counted: --top-keys is off",
            Some(_) if !is_exact && !self.top_keys.knows_values() => {
                "keys are counted by digests, which patterns do not match: see --top-keys values"
            }
            Some(_) => {
                "by the leading keys of this replica only; windows of up to a minute are taken whole, at this rate"
            }
        };
        let (seconds, leading) = leading.unwrap_or_default();
        let (mut sums, mut keys) = ([0; 4], Vec::new());
        let mut may_be_closed = false;
        for (top, limit_then, denied) in leading {
            // What was asked for in the present window, as far as it is known.
            let asked = top.capacity.saturating_sub(top.remaining).saturating_add(denied);
            let certain = top.count.saturating_sub(top.error);
            let ([least, most], in_words) = match new.action {
                DirectiveAction::Ban => ([certain, top.count], new.action.name().to_owned()),
                DirectiveAction::Allow | DirectiveAction::Shadow => {
                    ([0, 0], new.action.name().to_owned())
                }
                DirectiveAction::Limit(_) | DirectiveAction::Times(_) => {
                    may_be_closed |= limit_then.ban_ms.is_some() && denied > 0;
                    let hits_max = scaled(top.hits, top.count, certain);
                    let would =
                        |(count, hits)| would_be_denied(&limit_then, asked, seconds, count, hits);
                    let range = [(certain, top.hits), (top.count, hits_max)].map(would);
                    (range, limit_then.to_string())
                }
            };
            let counts = [top.count, denied, least, most];
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            if keys.len() < SHOWN_MAX {
                keys.push(json!({
                    // What was typed, where there is one.
                    "key": exact.as_ref().unwrap_or(&top.key),
                    "rule": top.rule,
                    "limit": top.limit,
                    "limit_then": in_words,
                    "decisions": top.count,
                    "denied": denied,
                    "would_be_denied": least,
                    "would_be_denied_max": most,
                }));
            }
        }
        let [decisions, denied, would_be_denied, would_be_denied_max] = sums;
        let mut effect = json!({
            "seconds": seconds,
            "decisions": decisions,
            "denied": denied,
            "would_be_denied": would_be_denied,
            "would_be_denied_max": would_be_denied_max,
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
        let descriptor = Descriptor::new(new.entries.clone(), Hits::Check);
        let request = Request { domain: new.domain.clone(), descriptors: vec![descriptor] };
        Plan::draw(&self.rules.current().rules, &request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rule::Unit;

    #[test]
    fn a_window_of_up_to_a_minute_is_taken_whole_whenever_it_is_asked() {
        let minute = Limit::new(20, Unit::Minute, 1).expect("a window");
        // A call a second: 60 in a minute, of which two thirds are over.
        for asked in [0, 7, 51] {
            let of = |seconds, count| would_be_denied(&minute, asked, seconds, count, count);
            assert_eq!([of(30.0, 30), of(45.0, 45), of(60.0, 60)], [20, 30, 40], "{asked}");
            assert_eq!(of(60.0, 20), 0, "{asked}");
        }
        // Five calls with 10 hits each are 100 in a minute.
        assert_eq!(would_be_denied(&minute, 0, 30.0, 5, 50), 4);
    }

    #[test]
    fn of_a_longer_window_what_is_used_now_decides() {
        let day = Limit::new(100, Unit::Day, 1).expect("a window");
        assert_eq!(would_be_denied(&day, 90, 60.0, 60, 60), 0);
        assert_eq!(would_be_denied(&day, 110, 60.0, 60, 60), 10);
        assert_eq!(would_be_denied(&day, 1000, 60.0, 60, 60), 60);
    }
}
