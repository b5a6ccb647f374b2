//! Holds of calls: the tokens that name them, their ids, and what becomes of them.

mod keys;
mod open;
mod token;

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use opentelemetry::{KeyValue, metrics::Meter};
use tokio::time::Instant;

pub(crate) use self::open::INSTRUMENTS;
use self::open::{HOLDS, OpenHolds};
pub(super) use self::token::{TOKEN_CHARGES_MAX, TOKEN_CHARS_MAX, can_name};
pub use self::{keys::HoldKeys, token::SpanIds};
use crate::{
    engine::{
        decision::{Committed, Decision},
        hold::{HoldBy, HoldPolicy},
        hold_id::HoldId,
        key,
        ledger::{CommitOutcome, TakenHold},
        parameters::Parameters,
        plan::Plan,
        request::{Descriptor, Entry, Hits, Request},
        rule::Limit,
        rule_set::RuleSet,
        time::Timestamp,
    },
    limiter::metrics::rule_series::RuleSeries,
    process::pause::random,
    telemetry::{LogCause, current, due_line, with_call},
};

/// Most charges of earlier calls that one call commits, and most characters of their tokens. A further token has no effect.
const COMMITTED_MAX: usize = 2 * token::TOKEN_CHARGES_MAX;
const COMMITTED_CHARS_MAX: usize = 4 * token::TOKEN_CHARS_MAX;

pub struct Holds {
    keys: HoldKeys,
    /// Random, so that no two processes give the same ids, and then counted.
    first_id: HoldId,
    taken: AtomicU64,
    holds: RuleSeries,
    open: OpenHolds,
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holds").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Holds {
    /// Holds whose tokens are signed with these keys.
    pub fn new(keys: HoldKeys, meter: &Meter) -> Self {
        let first_id = HoldId::new((0..4).fold(0, |id, _| id << 32 | u128::from(random())));
        let (holds, open) = (RuleSeries::default(), OpenHolds::default());
        // First, since it counts the holds that were taken and that have lapsed.
        open.observe(holds.clone(), meter);
        holds.observe(&HOLDS, meter);
        Self { keys, first_id, taken: AtomicU64::new(0), holds, open }
    }

    /// The holds whose tokens a call names at `now`, by the store's clock, with the indices of the descriptors that name them.
    pub(super) fn named_by(
        &self,
        request: &Request,
        now: impl Fn() -> Timestamp,
    ) -> Vec<(usize, TakenHold)> {
        let (mut named, mut committed, mut chars) = (Vec::new(), 0, 0);
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let Some(parameters) = Parameters::of(&descriptor.entries) else { continue };
            let Some(token) = parameters.commit() else { continue };
            chars += token.len();
            let hold =
                if chars > COMMITTED_CHARS_MAX { None } else { self.keys.read(token, now()) };
            let counts = |hold: &TakenHold| {
                is_of_domain(hold, &request.domain)
                    && committed + hold.charges.len() <= COMMITTED_MAX
            };
            match hold.filter(|(hold, _)| counts(hold)) {
                Some((hold, span)) => {
                    committed += hold.charges.len();
                    named.push((index, hold));
                    with_call(|call| span.into_iter().for_each(|span| call.link(span)));
                }
                None if !self.keys.can_read() && token::has_form(token) => {
                    self.count_other("unsent");
                }
                None => self.bad_token(),
            }
        }
        named
    }

    /// Gives the holds that a call takes an id, or denies them if no token can name them.
    pub(super) fn prepare(&self, plan: &mut Plan, domain: &str) {
        if !plan.takes_holds() {
            return;
        }
        plan.set_hold_id(self.next_id());
        if can_name(plan.takes_by_token()) {
            return;
        }
        plan.refuse_takes();
        if let Some(line) = due_line(LogCause::HoldWithoutToken, domain) {
            tracing::warn!(
                suppressed = line.suppressed,
                "a take was denied: its token would name more than {} charges, or be too long",
                token::TOKEN_CHARGES_MAX
            );
        }
    }

    /// Reports the holds of a decision. Returns the token of the hold that it has taken.
    pub(super) fn settle(&self, rules: &RuleSet, decision: &Decision) -> Option<String> {
        for commit in &decision.commits {
            self.committed(rules, commit, decision.at);
        }
        for (limit, hits) in &decision.taken_by_id {
            self.taken(rules, limit, *hits, decision.at);
        }
        let taken = decision.taken.as_ref()?;
        for charge in &taken.charges {
            self.taken(rules, &charge.counter.limit, charge.hits, Some(charge.made));
        }
        self.keys.write(taken, current().map(|call| call.ids()))
    }

    /// Whether the tokens that a call names can be read, after a wait for the keys until then.
    pub(super) async fn can_read(&self, request: &Request, until: Instant) -> bool {
        let names_one = |descriptor: &Descriptor| {
            let parameters = Parameters::of(&descriptor.entries);
            parameters.and_then(Parameters::commit).is_some_and(token::has_form)
        };
        self.keys.can_read()
            || !request.descriptors.iter().any(names_one)
            || self.have_by(until, HoldKeys::can_read).await
    }

    /// Whether the token of what this call takes can be made, after a wait for the key until then.
    pub(super) async fn can_sign(&self, plan: &Plan, until: Instant) -> bool {
        self.keys.can_sign()
            || plan.takes_by_token().next().is_none()
            || self.have_by(until, HoldKeys::can_sign).await
    }

    async fn have_by(&self, until: Instant, can: fn(&HoldKeys) -> bool) -> bool {
        self.keys.may_come()
            && self.keys.within(until.saturating_duration_since(Instant::now()), can).await
    }

    fn taken(&self, rules: &RuleSet, limit: &Limit, hits: u64, at: Option<Timestamp>) {
        let Some(policy) = limit.hold.as_ref().filter(|policy| !policy.is_lease()) else { return };
        match (rules.holding_limit(policy.number), at) {
            (Some(holding), Some(at)) => self.open.take(&holding.rule, policy, hits, at),
            _ => drop(self.count(rules, policy, "taken")),
        }
    }

    fn committed(&self, rules: &RuleSet, commit: &Committed, at: Option<Timestamp>) {
        let Committed { limit, outcome, held, deadline, used } = commit;
        let Some(policy) = limit.hold.as_ref().filter(|policy| !policy.is_lease()) else { return };
        if *outcome == Some(CommitOutcome::Applied)
            && let Some(used) = used.filter(|used| *used > 0)
            && let Some(learned) = rules.learned(policy.number)
        {
            learned.learn(used);
        }
        let rule = self.count(rules, policy, commit.name());
        // One that is kept is sent later.
        let is_end = matches!(outcome, None | Some(CommitOutcome::Applied));
        if let (Some(rule), Some(at), true) = (rule, at, is_end && policy.by != HoldBy::Counter) {
            self.open.end(rule, policy, held.unwrap_or(0), (*deadline, at));
        }
    }

    /// Counts a token that cannot be read. Any client can send one, so it is not an error of the call.
    fn bad_token(&self) {
        self.count_other("bad");
        if let Some(line) = due_line(LogCause::BadHoldToken, "") {
            tracing::warn!(
                suppressed = line.suppressed,
                "a commit has no effect: its token is of another domain, was not made by this service, is signed with \
                 another key, has ended long ago, or is one of too many in its call"
            );
        }
    }

    /// Counts a token whose rule is not known.
    fn count_other(&self, outcome: &'static str) {
        self.holds.add(1, &[KeyValue::new("rule", "other"), KeyValue::new("outcome", outcome)]);
    }

    /// Returns the rule, if it is in force.
    fn count<'rules>(
        &self,
        rules: &'rules RuleSet,
        policy: &HoldPolicy,
        outcome: &'static str,
    ) -> Option<&'rules Arc<str>> {
        let rule = rules.holding_limit(policy.number).map(|holding| &holding.rule);
        let label = rule.map_or_else(|| "other".into(), Arc::clone);
        self.holds.add(1, &[KeyValue::new("rule", label), KeyValue::new("outcome", outcome)]);
        rule
    }

    /// The digest by which lists and log lines show a descriptor.
    pub(super) fn digest(&self, id: u64) -> String {
        self.keys.digest(id)
    }

    /// See [`HoldKeys::digests`].
    pub(super) fn digests(&self, id: u64) -> Vec<String> {
        self.keys.digests(id)
    }

    /// See [`HoldKeys::make_digests`].
    pub(super) fn make_digests(&self) {
        self.keys.make_digests();
    }

    /// See [`HoldKeys::prepare_digests`].
    pub(super) async fn prepare_digests(&self) {
        self.keys.prepare_digests().await;
    }

    /// Forgets the series of rules that are not among these, each with an empty domain.
    pub(super) fn retain(&self, in_force: &HashSet<[String; 2]>) {
        self.holds.retain(in_force);
        self.open.retain(in_force);
    }

    fn next_id(&self) -> HoldId {
        self.first_id.plus(self.taken.fetch_add(1, Ordering::Relaxed))
    }
}

/// What the calls of a request have taken that only their tokens can give back.
#[derive(Debug, Default)]
pub struct Taken {
    domain: String,
    holds: Vec<String>,
}

impl Taken {
    pub(crate) fn add(&mut self, request: &Request, decision: &Decision) {
        if let Some(hold) = &decision.token {
            request.domain.clone_into(&mut self.domain);
            self.holds.push(hold.clone());
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// What commits that nothing was used, of each hold.
    pub(super) fn releases(self) -> impl Iterator<Item = Request> {
        let Self { domain, holds } = self;
        let entry = |key: &'static str, value| Entry { key: key.into(), value };
        holds.into_iter().map(move |hold| {
            let entries = vec![entry("hold.commit", hold.into()), entry("hold.used", "0".into())];
            let descriptor =
                Descriptor { entries, hits: Hits::Check, states_hits: true, limit: None };
            Request { domain: domain.clone(), descriptors: vec![descriptor] }
        })
    }
}

/// Whether all counters are of this domain: a client may be limited to some.
fn is_of_domain(hold: &TakenHold, domain: &str) -> bool {
    let part = key::caller(domain.as_bytes());
    hold.charges.iter().all(|charge| charge.counter.domain_part() == &*part)
}
