//! Holds of calls: the tokens that name them, their ids, and what becomes of them.

mod token;

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use opentelemetry::{KeyValue, metrics::Meter};

pub use self::token::{HoldKeys, SpanIds};
use crate::{
    engine::{
        decision::{Committed, Decision},
        hold_id::HoldId,
        key,
        ledger::{CommitOutcome, TakenHold},
        parameters::Parameters,
        plan::Plan,
        request::Request,
        rule_set::RuleSet,
    },
    limiter::metrics::rule_series::RuleSeries,
    telemetry::{InstrumentRow, LogCause, current, due_line, with_call},
};

const HOLDS: InstrumentRow = InstrumentRow::counter(
    "ratelimit.holds",
    &["rule", "outcome"],
    "holds: `taken` with a token, `committed` with less than was held or as much, `overrun` with more, `unused` with 0; \
     commits without effect: `repeated`, `late` after the hold's time, `bad` with an unreadable token; `unsent` if the store \
     did not answer",
);

pub(crate) const INSTRUMENTS: &[&InstrumentRow] = &[&HOLDS];

/// What a limiter knows of holds.
pub struct Holds {
    keys: HoldKeys,
    /// Random, so that no two processes give the same ids, and then counted.
    first_id: HoldId,
    taken: AtomicU64,
    holds: RuleSeries,
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holds").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Holds {
    /// Holds whose tokens are signed with these keys.
    pub fn new(keys: HoldKeys, meter: &Meter) -> Self {
        let random = || u128::from(RandomState::new().hash_one(()));
        let first_id = HoldId::new(random() << 64 | random());
        Self { keys, first_id, taken: AtomicU64::new(0), holds: RuleSeries::new(&HOLDS, meter) }
    }

    /// Prepares the holds of a call: those that it takes get an id, and those that it commits are added to its charges.
    pub(super) fn prepare(&self, plan: &mut Plan, request: &Request) {
        if plan.takes_holds() {
            plan.set_hold_id(self.next_id());
        }
        for descriptor in &request.descriptors {
            let Some(parameters) = Parameters::of(&descriptor.entries) else { continue };
            let Some(token) = parameters.commit() else { continue };
            match self.keys.read(token).filter(|(hold, _)| is_of_domain(hold, &request.domain)) {
                Some((hold, span)) => {
                    plan.commit(&hold, parameters);
                    with_call(|call| span.into_iter().for_each(|span| call.link(span)));
                }
                None => self.bad_token(),
            }
        }
    }

    /// Reports the holds of a decision. Returns the token of the hold that it has taken.
    pub(super) fn settle(&self, rules: &RuleSet, decision: &Decision) -> Option<String> {
        for commit in &decision.commits {
            self.committed(rules, commit);
        }
        let taken = decision.taken.as_ref()?;
        for charge in &taken.charges {
            let number = charge.counter.limit.hold.as_ref().map_or(0, |policy| policy.number);
            self.count(rules, number, "taken");
        }
        let token = self.keys.write(taken, current().map(|call| call.ids()));
        if token.is_none()
            && let Some(line) = due_line(LogCause::HoldWithoutToken, "")
        {
            tracing::warn!(
                suppressed = line.suppressed,
                "a hold has no token, since it would be too long: its estimate stands"
            );
        }
        token
    }

    fn committed(&self, rules: &RuleSet, commit: &Committed) {
        let Committed { limit, outcome, used, .. } = commit;
        let Some(policy) = &limit.hold else { return };
        if *outcome == Some(CommitOutcome::Applied)
            && let Some(used) = used.filter(|used| *used > 0)
            && let Some(learned) = rules.learned(policy.number)
        {
            learned.learn(used);
        }
        self.count(rules, policy.number, commit.name());
    }

    /// Counts a token that cannot be read. Any client can send one, so it is not an error of the call.
    fn bad_token(&self) {
        self.holds.add(1, &[KeyValue::new("rule", "other"), KeyValue::new("outcome", "bad")]);
        if let Some(line) = due_line(LogCause::BadHoldToken, "") {
            tracing::warn!(
                suppressed = line.suppressed,
                "a commit has no effect: its token is of another domain, was not made by this service, or is signed with \
                 another key"
            );
        }
    }

    fn count(&self, rules: &RuleSet, number: u32, outcome: &'static str) {
        let rule = rules
            .holding_limit(number)
            .map_or_else(|| "other".into(), |holding| Arc::clone(&holding.rule));
        self.holds.add(1, &[KeyValue::new("rule", rule), KeyValue::new("outcome", outcome)]);
    }

    /// Forgets the series of rules that are not among these, each with an empty domain.
    pub(super) fn retain(&self, in_force: &HashSet<[String; 2]>) {
        self.holds.retain(in_force);
    }

    fn next_id(&self) -> HoldId {
        self.first_id.plus(self.taken.fetch_add(1, Ordering::Relaxed))
    }
}

/// Whether all counters are of this domain: a client may be limited to some.
fn is_of_domain(hold: &TakenHold, domain: &str) -> bool {
    let part = key::caller(domain.as_bytes());
    hold.charges.iter().all(|charge| charge.counter.domain_part() == &*part)
}
