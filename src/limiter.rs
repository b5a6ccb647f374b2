//! Decides one call: find the rules, charge the store, settle.

mod decision_line;
mod effect;
pub mod holds;
mod lent;
pub mod listing;
mod matched;
pub mod metrics;
pub mod once;
mod refused_debits;
mod span;

use std::{iter, pin::Pin, sync::Arc};

use futures_util::future::join_all;

use self::{
    decision_line::log_decision,
    holds::{Holds, Taken},
    metrics::{CallMetrics, rule_counters::KnownRules},
    refused_debits::RefusedDebits,
};

use crate::{
    candidate::{Candidate, DecidedCall, first_counters},
    engine::{
        decision::{Decision, Matched, Status},
        directive::Directives,
        key::Counter,
        ledger::{self, Charge, CounterState, JudgedBy, Verdict},
        plan::Plan,
        request::{Hits, HitsMeaning, Request},
        rule::{Algorithm, FailureMode, Lease, Limit, Mode, WhenDenied},
        rule_set::RequireMode,
        time::Timestamp,
    },
    explain::Explanation,
    notices::Notices,
    overrides::Overrides,
    process::{calls::client_has_left, turns::WorkTurns},
    recording::{Recorded, Recorder},
    rules::{InForce, Rules},
    self_audit::SelfAudit,
    store::{
        AtOnce, Clear, CounterReading, StoreError,
        guard::{Arrival, Guard},
        outage,
    },
    telemetry::{LogCause, due_line, with_call},
    text::did_you_mean::hint,
    top_keys::{TopKeys, TopReport},
};
use tokio::{
    sync::Mutex,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

/// The counter of one limit of a descriptor.
#[derive(Debug)]
pub struct LimitUsage {
    pub descriptor: usize,
    pub matched: Matched,
    pub limit: Arc<Limit>,
    pub state: CounterState,
}

/// What decides the calls of a request: the rules, and what operators have set.
pub struct Deciding {
    rules: Arc<InForce>,
    directives: arc_swap::Guard<Option<Arc<Directives>>>,
    counters: KnownRules,
    /// Whether calls on one counter are judged in the order in which they stand in the request.
    pub keeps_order: bool,
}

/// Why a call gets no decision.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    /// Places are for whole calls in flight.
    #[error("mode: must not be PART where a limit is `in_flight`")]
    PartOfPlaces,
    /// Nothing may be charged in advance.
    #[error(
        "mode: must not be LEASE: the rule {rule:?} has a limit that does not lease, or is charged twice"
    )]
    NotLeased { rule: String },
    #[error(
        "descriptors: with mode LEASE, they must make at most {} charges, whose names fit a token of {} characters",
        holds::TOKEN_CHARGES_MAX,
        holds::TOKEN_CHARS_MAX
    )]
    LeaseWithoutToken,
    /// Its charges cost too much.
    #[error("descriptors: charges of weight {weight} exceed {max} (`--max-charges`)")]
    TooHeavy { weight: usize, max: usize },
    /// The requests before it take too long.
    #[error("too many concurrent requests")]
    TooMany,
    #[error(transparent)]
    NoAnswer(#[from] StoreError),
}

#[derive(Debug)]
pub struct Limiter {
    rules: Arc<Rules>,
    overrides: Arc<Overrides>,
    store: Guard,
    metrics: CallMetrics,
    top_keys: TopKeys,
    notices: Option<Notices>,
    recorder: Option<Arc<Recorder>>,
    self_audit: Option<Arc<SelfAudit>>,
    candidate: Option<Arc<Candidate>>,
    holds: Holds,
    /// The most that the charges of one call weigh.
    weight_max: usize,
    /// Whether decisions have each limit of a descriptor.
    lists_limits: bool,
    refused_debits: RefusedDebits,
    /// Locked while a request is explained.
    explaining: Mutex<()>,
    /// Locked while the keys are walked for a request.
    walking: Mutex<()>,
    /// The turns of large calls.
    turns: WorkTurns,
}

/// A call of more descriptors waits for its turn, so that it delays small calls little.
pub(crate) const FEW_DESCRIPTORS: usize = 16;

impl Limiter {
    /// A limiter with these rules and overrides, on this store.
    pub fn new(
        rules: Arc<Rules>,
        overrides: Arc<Overrides>,
        store: Guard,
        metrics: CallMetrics,
        top_keys: TopKeys,
        holds: Holds,
        weight_max: usize,
    ) -> Self {
        let refused_debits = RefusedDebits::default();
        let lists_limits = false;
        let limiter = Self {
            rules,
            overrides,
            store,
            metrics,
            top_keys,
            notices: None,
            recorder: None,
            self_audit: None,
            candidate: None,
            holds,
            weight_max,
            lists_limits,
            refused_debits,
            explaining: Mutex::new(()),
            walking: Mutex::new(()),
            turns: WorkTurns::of_workers(0),
        };
        limiter.rules_changed();
        limiter
    }

    /// Also gives the outcome of each of several limits, for headers that list them.
    #[must_use]
    pub fn listing_limits(self, lists_limits: bool) -> Self {
        Self { lists_limits, ..self }
    }

    /// Also gives notices of limits with `notify_at`.
    #[must_use]
    pub fn giving(self, notices: Notices) -> Self {
        Self { notices: Some(notices), ..self }
    }

    /// Decides large calls of this number of workers in turns.
    #[must_use]
    pub fn on_workers(self, count: usize) -> Self {
        Self { turns: WorkTurns::of_workers(count), ..self }
    }

    pub(crate) const fn turns(&self) -> &WorkTurns {
        &self.turns
    }

    /// Also records calls.
    #[must_use]
    pub fn recording(self, recorder: Option<Arc<Recorder>>) -> Self {
        Self { recorder, ..self }
    }

    /// Also counts hits a second time.
    #[must_use]
    pub fn auditing(self, self_audit: Option<SelfAudit>) -> Self {
        Self { self_audit: self_audit.map(Arc::new), ..self }
    }

    /// Also lets a candidate judge a part of the calls.
    #[must_use]
    pub fn judging(self, candidate: Option<Arc<Candidate>>) -> Self {
        Self { candidate, ..self }
    }

    pub const fn candidate(&self) -> Option<&Arc<Candidate>> {
        self.candidate.as_ref()
    }

    /// Lets the candidate judge calls, and follows its orders, until `stop`.
    pub async fn follow_candidate(&self, stop: CancellationToken) {
        let Some(candidate) = &self.candidate else { return };
        let following = candidate.follow(|| self.overrides.now(), || self.rules_changed());
        let following = stop.run_until_cancelled(following);
        tokio::join!(candidate.judge_all(&self.top_keys, stop.clone()), following);
    }

    pub fn self_audit(&self) -> Option<Arc<SelfAudit>> {
        self.self_audit.clone()
    }

    /// What records its calls, if they are recorded.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    pub const fn notices(&self) -> Option<&Notices> {
        self.notices.as_ref()
    }

    pub async fn decide(&self, request: &Request, arrival: Arrival) -> Result<Decision, Undecided> {
        let (by, meaning) = (self.deciding(), HitsMeaning::Charged);
        let decided = match self.store.at_once() {
            Some(store) => self.decide_at_once(store, &by, request, meaning, arrival),
            None => self.decide_by(&by, request, meaning, arrival, None).await,
        };
        self.report_late(arrival, 1);
        if let Ok(decision) = &decided
            && decision.token.is_some()
            && client_has_left()
        {
            let mut taken = Taken::default();
            taken.add(request, decision);
            self.give_back(taken).await;
        }
        decided
    }

    /// Gives back what calls have taken whose client will not have the answer. In a box, since it is rare.
    pub(crate) fn give_back(&self, taken: Taken) -> Pin<Box<impl Future<Output = ()> + Send>> {
        Box::pin(async move {
            let by = self.deciding();
            for release in taken.releases() {
                let (meaning, arrival) = (HitsMeaning::Charged, Arrival::now());
                drop(self.decide_by(&by, &release, meaning, arrival, None).await);
            }
        })
    }

    pub fn deciding(&self) -> Deciding {
        Deciding {
            rules: self.rules.current(),
            directives: self.overrides.in_force(),
            counters: self.metrics.known_rules(),
            keeps_order: false,
        }
    }

    /// Decides one call whose hits have this meaning. If the store is `away` for a call that its client may repeat, nothing is kept
    /// for later, and `on_store_failure` decides; only a store that takes no writes is asked, since it denies what is over.
    pub async fn decide_by(
        &self,
        by: &Deciding,
        request: &Request,
        meaning: HitsMeaning,
        arrival: Arrival,
        away: Option<StoreError>,
    ) -> Result<Decision, Undecided> {
        let until = self.store.deadline(arrival);
        let unknown = || {
            StoreError::Unavailable("the key that signs tokens of holds is not known".to_owned())
        };
        let can_read = self.holds.can_read(request, until).await;
        let plan = self.plan(by, request, meaning)?;
        let is_repeated = away.is_some();
        let can_ask = |error: &StoreError| {
            matches!(error, StoreError::TakesNoWrites(_))
                && !plan.charges.iter().any(Charge::outlives_caller)
        };
        let away = away.filter(|error| !can_ask(error));
        let away = match away {
            None if !can_read || !self.holds.can_sign(&plan, until).await => Some(unknown()),
            away => away,
        };
        let verdict = match away {
            // It only commits.
            Some(error) if !can_read && plan.charges.is_empty() => Err(error),
            None => self.store.charge(&plan.charges, arrival).await,
            Some(error) => {
                if !is_repeated {
                    self.store.keep(&plan.charges);
                }
                self.store.without_answer(&plan.charges, error)
            }
        };
        self.settle(by, request, meaning, arrival, plan, verdict)
    }

    /// Like [`decide_by`](Self::decide_by), on a store that answers at once. It costs less than a future.
    pub fn decide_at_once(
        &self,
        store: AtOnce<'_>,
        by: &Deciding,
        request: &Request,
        meaning: HitsMeaning,
        arrival: Arrival,
    ) -> Result<Decision, Undecided> {
        let plan = self.plan(by, request, meaning)?;
        let verdict = Ok(store.charge(&plan.charges));
        self.settle(by, request, meaning, arrival, plan, verdict)
    }

    /// Checks what a call asks for, before anything is noted of it.
    pub fn check(
        &self,
        by: &Deciding,
        request: &Request,
        meaning: HitsMeaning,
    ) -> Result<(), Undecided> {
        let Deciding { rules, directives, .. } = by;
        let plan = Plan::draw_as(&rules.rules, directives.as_deref(), request, &[], meaning);
        let counts_calls = |charge: &Charge| charge.counter.limit.counts_calls();
        if meaning == HitsMeaning::Part && plan.charges.iter().any(counts_calls) {
            return Err(Undecided::PartOfPlaces);
        }
        self.check_weight(&plan)
    }

    fn check_weight(&self, plan: &Plan) -> Result<(), Undecided> {
        match (plan.weight(), self.weight_max) {
            (weight, max) if weight > max => Err(Undecided::TooHeavy { weight, max }),
            _ => Ok(()),
        }
    }

    pub fn at_once(&self) -> Option<AtOnce<'_>> {
        self.store.at_once()
    }

    fn draw(&self, by: &Deciding, request: &Request, meaning: HitsMeaning) -> Plan {
        let commits = self.holds.named_by(request, || self.overrides.now());
        Plan::draw_as(&by.rules.rules, by.directives.as_deref(), request, &commits, meaning)
    }

    fn plan(
        &self,
        by: &Deciding,
        request: &Request,
        meaning: HitsMeaning,
    ) -> Result<Plan, Undecided> {
        let mut plan = self.draw(by, request, meaning);
        self.check_weight(&plan)?;
        self.check_lent(&mut plan, meaning)?;
        plan.lists_limits = self.lists_limits;
        plan.charges.iter_mut().for_each(|charge| charge.keeps_order = by.keeps_order);
        self.holds.prepare(&mut plan, &request.domain);
        if let Some((domain, mode)) = &plan.lacking {
            self.report_incomplete(domain, *mode);
        }
        Ok(plan)
    }

    fn settle(
        &self,
        by: &Deciding,
        request: &Request,
        meaning: HitsMeaning,
        arrival: Arrival,
        plan: Plan,
        verdict: Result<Verdict, StoreError>,
    ) -> Result<Decision, Undecided> {
        let (corrupt, absent) = match &verdict {
            Ok(Verdict { tallies, .. }) => {
                let indices = |judged_by| ledger::indices_judged_by(judged_by, tallies);
                (indices(JudgedBy::Corrupt), indices(JudgedBy::Absent))
            }
            Err(StoreError::Corrupt(corrupt)) => (corrupt.clone(), Vec::new()),
            Err(StoreError::Unreachable { charges, .. }) => (Vec::new(), charges.clone()),
            Err(_) => (Vec::new(), (0..plan.charges.len()).collect()),
        };
        self.report_fallbacks(&plan, &absent);
        let without_store = !absent.is_empty() || !corrupt.is_empty();
        for charge in corrupt {
            self.report_corrupt(&request.domain, &plan.label(charge));
        }
        let (now, digest) = (|| self.overrides.now(), |id| self.holds.digest(id));
        if let Some(audit) = &self.self_audit {
            audit.record(&plan, verdict.as_ref().ok(), arrival.at, now, digest);
        }
        let verdict = verdict.or_else(|error| plan.refusal().ok_or(error))?;
        self.top_keys.record(&plan, &verdict, arrival.at, digest);
        if let Some(notices) = &self.notices {
            notices.record(&by.rules.rules, &plan, &verdict, arrival.at, digest);
        }
        let candidate = self.candidate().filter(|candidate| candidate.is_judged());
        let candidate = candidate.filter(|_| !without_store);
        let is_compared = candidate.is_some() && verdict.denied;
        let counters = if is_compared { first_counters(&plan) } else { Vec::new() };
        let mut decision = plan.settle(verdict);
        decision.token = self.holds.settle(&by.rules.rules, &decision);
        self.report_lent(&decision);
        if let Some(recorder) = self.recorder().filter(|recorder| recorder.is_on()) {
            let at = decision.at.unwrap_or_else(now);
            let call = Recorded { request, meaning, decision: &decision, at, without_store };
            recorder.record(&by.rules.rules, call);
        }
        if let Some(candidate) = candidate {
            let at = decision.at.unwrap_or_else(now);
            let (directives, decision) = (by.directives.as_deref(), &decision);
            candidate.sample(DecidedCall { directives, request, meaning, decision, counters, at });
        }
        let granted = decision.part.map(|hits| request.with_hits(hits));
        let request = granted.as_ref().unwrap_or(request);
        with_call(|call| {
            call.record(span::decided(&decision));
            call.record(span::holds(&decision));
            call.record(span::directives(&decision));
        });
        log_decision(&by.rules.rules, request, &decision, digest);
        self.report(by, request, &decision, meaning);
        Ok(decision)
    }

    pub fn rules(&self) -> Arc<InForce> {
        self.rules.current()
    }

    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// What the counters hold that this request would charge, each reset with [`Clear::Yes`].
    pub async fn read_counters(
        &self,
        request: &Request,
        clear: Clear,
    ) -> Vec<(Charge, CounterReading)> {
        let plan = self.plan_of_reading(&self.deciding(), request);
        if clear == Clear::Yes {
            self.note_changes(request, |_| true);
        }
        let of_candidate = async {
            if let Some(candidate) = self.candidate().filter(|_| clear == Clear::Yes) {
                candidate.reset(request).await;
            }
        };
        let store = self.store.for_operator();
        let (readings, ()) = tokio::join!(store.read_counters(&plan.charges, clear), of_candidate);
        plan.charges.into_iter().zip(readings).collect()
    }

    fn plan_of_reading(&self, by: &Deciding, request: &Request) -> Plan {
        let plan = self.draw(by, request, HitsMeaning::Read);
        // Exempt and banned descriptors still have counters; calls do not charge them.
        if plan.charges.is_empty() {
            return Plan::draw_as(&by.rules.rules, None, request, &[], HitsMeaning::Read);
        }
        plan
    }

    /// Sets what a counter of a request has used in one step, and returns what it holds then. Hits that are counted later are
    /// added.
    pub async fn set_used(
        &self,
        request: &Request,
        counter: &Counter,
        used: u64,
    ) -> Result<CounterReading, String> {
        self.note_changes(request, |other| other.same_counter(counter));
        let store = self.store.for_operator();
        let clear = match counter.limit.algorithm {
            // The hits of the window before count too, and no refund takes them back.
            Algorithm::SlidingWindow => Clear::Yes,
            // What was held or leased would go back behind it, although the rules may not hold or lease any more.
            _ => Clear::Holds,
        };
        drop(store.read_counter(counter, clear).await);
        let limit = Limit {
            when_denied: WhenDenied::Counted,
            mode: Mode::Enforced,
            on_store_failure: FailureMode::Error,
            hold: None,
            ..Limit::clone(&counter.limit)
        };
        let limit = Arc::new(limit);
        // A call gives back before it charges.
        let hits = iter::once(Hits::Refund(Hits::MAX));
        let hits = hits.chain((used > 0).then_some(Hits::Charge(used)));
        let charge = |hits| Charge::new(counter.with_limit(Arc::clone(&limit)), hits);
        let charges: Vec<Charge> = hits.map(charge).collect();
        match store.charge(&charges, Arrival::now()).await {
            Ok(_) => Ok(store.read_counter(counter, Clear::No).await),
            Err(error) => Err(format!("{error}; the counter may have been set")),
        }
    }

    /// Notes that an operator changes counters of a request.
    fn note_changes(&self, request: &Request, is_changed: impl Fn(&Counter) -> bool) {
        let Some(audit) = &self.self_audit else { return };
        let rules = self.rules.current();
        let plan = Plan::draw_as(&rules.rules, None, request, &[], HitsMeaning::Read);
        for (matched, _, Charge { counter, .. }) in plan.matched_charges() {
            if is_changed(counter) {
                audit.counter_changed(matched, counter, self.overrides.now());
            }
        }
    }

    /// The counters of each limit of each descriptor, if all can be read in the time that their caller waits.
    pub async fn usage(
        &self,
        by: &Deciding,
        request: &Request,
        arrival: Arrival,
    ) -> Result<Vec<LimitUsage>, Undecided> {
        let until = self.store.for_operator().deadline(arrival);
        if self.store.reads_no_more(until) {
            return Err(StoreError::TimedOut.into());
        }
        // Most descriptors have a counter: those that could not wait need no plan.
        self.store.may_read(request.descriptors.len())?;
        let plan = self.draw(by, request, HitsMeaning::Charged);
        self.check_weight(&plan)?;
        let states = self.store.states(&plan.charges, until).await?;
        let charges = plan.by_descriptor().enumerate();
        let descriptors = charges.flat_map(|(index, own)| iter::repeat_n(index, own.len()));
        let of_each = descriptors.zip(plan.matched_charges()).zip(states);
        let usage =
            |((descriptor, (matched, _, charge)), state): ((_, (&Matched, _, &Charge)), _)| {
                let (matched, limit) = (matched.clone(), Arc::clone(&charge.counter.limit));
                LimitUsage { descriptor, matched, limit, state }
            };
        Ok(of_each.map(usage).collect())
    }

    /// What this request would match and charge at `now`, and the decision; changes no counter. One request is explained at
    /// a time.
    pub async fn explain(
        &self,
        request: &Request,
        now: Timestamp,
    ) -> Result<Explanation, Undecided> {
        let (by, store) = (self.deciding(), self.store.for_operator());
        let until = store.deadline(Arrival::now());
        let Ok(_turn) = time::timeout_at(until, self.explaining.lock()).await else {
            return Err(Undecided::TooMany);
        };
        let plan = self.draw(&by, request, HitsMeaning::Charged);
        self.check_weight(&plan)?;
        let readings = store.read_counters(&plan.charges, Clear::No).await;
        let mut explanation = Explanation::new(&by.rules.rules, request, &plan, now);
        explanation.foresee(plan, readings);
        Ok(explanation)
    }

    /// Follows a reload, and forgets the rules that it has removed.
    pub fn rules_changed(&self) {
        let in_force = self.rules.current();
        outage::modes_in_force(&in_force.rules.failure_modes());
        self.holds.retain(&self.metrics.rules_in_force(&in_force.rules));
        self.refused_debits.retain(&in_force.rules);
        // Notices show digests.
        if in_force.rules.has_notices() {
            self.holds.make_digests();
        }
        if let Some(audit) = &self.self_audit {
            audit.rules_changed(self.overrides.now());
        }
    }

    pub fn metrics(&self) -> &CallMetrics {
        &self.metrics
    }

    /// The keys that lead now, with what open holds hold of their limits, and their credit; `None` if nothing is counted.
    pub async fn top(&self) -> Option<TopReport> {
        self.prepare_digests().await;
        let mut report = self.top_keys.report(Instant::now(), |id| self.holds.digest(id))?;
        let store = self.store.for_operator();
        let readings = report.keys_mut().map(async |key| {
            let Some(counter) = &key.counter else { return };
            if counter.limit.lease == Lease::Auto {
                key.credit = self.store.credit(counter);
            }
            if counter.limit.has_open_holds() {
                let charge = Charge::reading(counter.clone());
                let readings = store.read_counters(&[charge], Clear::No).await;
                if let [CounterReading::State(state)] = &readings[..] {
                    key.held = Some(state.held);
                }
            }
        });
        join_all(readings).await;
        Some(report)
    }

    /// Has the key of tokens made, also if no rule needs it.
    pub fn prepare_tokens(&self) {
        self.holds.make_digests();
    }

    /// Waits until digests are the same on all replicas, if lists show some.
    pub async fn prepare_digests(&self) {
        if self.top_keys.shows_digests() {
            self.holds.prepare_digests().await;
        }
    }

    /// The digest by which the lists of keys show a counter; `None` if they show values, or nothing.
    pub fn digest(&self, counter: &Counter) -> Option<String> {
        self.top_keys.shows_digests().then(|| self.holds.digest(counter.id()))
    }

    /// Reports this number of calls as late, if their caller has given up by now.
    pub fn report_late(&self, arrival: Arrival, calls: u64) {
        if self.store.is_late(arrival) {
            self.metrics.of.late.add(calls, &[]);
        }
    }

    fn report_fallbacks(&self, plan: &Plan, by_failure_mode: &[usize]) {
        if by_failure_mode.is_empty() {
            return;
        }
        let mut rules = Vec::with_capacity(by_failure_mode.len());
        for index in by_failure_mode {
            // A shadow limit decides nothing, with the store or without.
            if let Some(charge) = plan.charges.get(*index)
                && charge.counter.limit.mode != Mode::Shadow
            {
                rules.push((plan.label(*index), charge.counter.limit.failure_mode()));
            }
        }
        for (rule, mode) in &rules {
            self.metrics.failure_mode_applied(rule.clone(), *mode);
        }
        if !rules.is_empty() {
            with_call(|call| call.record(span::fell_back(rules)));
        }
    }

    fn report_incomplete(&self, domain: &Arc<str>, mode: RequireMode) {
        self.metrics.incomplete(Arc::clone(domain), mode);
        if let Some(line) = due_line(LogCause::Incomplete, domain) {
            tracing::warn!(
                %domain,
                require_mode = mode.name(),
                suppressed = line.suppressed,
                "no descriptor of a call has the entries that `require` names"
            );
        }
    }

    /// Records a gRPC call without descriptors, which is refused.
    pub fn empty_call(&self, peer: String) {
        if let Some(line) = due_line(LogCause::EmptyCall, &peer) {
            tracing::warn!(
                peer,
                suppressed = line.suppressed,
                "a call has no descriptors, and was refused: agentgateway sends such calls when the expression of a \
                 cost or of all descriptors fails"
            );
        }
        self.metrics.empty_call(peer);
    }

    /// The domain is a configured one: others have no counters.
    fn report_corrupt(&self, domain: &str, rule: &str) {
        self.metrics.corrupt_counter(rule);
        if let Some(line) = due_line(LogCause::CorruptCounter, &format!("{domain}\n{rule}")) {
            tracing::error!(
                rule,
                domain,
                suppressed = line.suppressed,
                "a counter of this rule holds something other than a count"
            );
        }
    }

    fn report(&self, by: &Deciding, request: &Request, decision: &Decision, meaning: HitsMeaning) {
        self.metrics.decided(&by.rules.rules, &by.counters, request, decision);
        // Only Envoy's calls do not say whether they are debits.
        let may_be_debits =
            if meaning == HitsMeaning::Charged { &request.descriptors[..] } else { &[] };
        for (descriptor, status) in may_be_debits.iter().zip(&decision.statuses) {
            if let Some(rule) = self.refused_debits.see(descriptor.hits, status) {
                self.metrics.debit_refused(rule);
            }
        }
        if decision.statuses.iter().any(is_unmatched)
            && let Some(line) = due_line(LogCause::Unmatched, "")
        {
            let (name, rules) = (&request.domain, &by.rules.rules);
            // A domain that no rule has may be anything, and so is not shown.
            let domain = match rules.domain(name) {
                Some(domain) => format!("the domain `{}`", domain.name),
                None => {
                    let names = rules.domains().into_iter().map(|domain| &*domain.name);
                    format!("a domain that no rule has{}", hint(name, names))
                }
            };
            tracing::warn!(
                suppressed = line.suppressed,
                "a descriptor matched no rule and passed: it is of {domain} (logged at most once a minute)"
            );
        }
    }
}

fn is_unmatched(status: &Status) -> bool {
    status.directive.is_none() && matches!(status.matched, Matched::NoDomain | Matched::NoRule(_))
}
