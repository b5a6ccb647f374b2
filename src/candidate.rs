//! A candidate: rules that judge a part of the keys beside those in force, on counters of its own. A call never waits for
//! it, and gets the same answer without it. Operators put it in force on all replicas, or end it (`follow`, `kept`).

mod follow;
mod kept;
mod order;
mod report;
mod trial;

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Counter as Count, Meter},
};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

pub use self::order::{Order, OrderKind};
use self::{
    order::KnownOrders,
    trial::{Compared, RuleName, Trial},
};
use crate::{
    engine::{
        decision::{Code, Decision, Matched, Outcome, Status},
        directive::Directives,
        key::Counter,
        ledger::{Charge, Few, HoldAction, JudgedBy},
        parameters::Parameters,
        plan::Plan,
        request::{Descriptor, HitsMeaning, Request},
        rule::{Limit, Mode},
        time::Timestamp,
    },
    rules::Rules,
    store::{
        Clear, Store,
        guard::{Arrival, Guard},
    },
    telemetry::instruments,
    top_keys::{TopKeys, TopList},
};

instruments! {
    struct CandidateInstruments {
        left_out: Count<u64> => LEFT_OUT = Counter("ratelimit.candidate.left_out", [],
            "calls in the sample that the candidate has not judged, since too many waited, or its counters gave no answer");
    }
    DECISIONS = Counter("ratelimit.candidate.decisions", ["domain", "rule", "result"],
        "descriptors in the sample of the candidate: the `same` as in force, newly `denied` (by its rule), or newly `admitted` (by the rule in force)");
}

/// The most calls that wait for the candidate.
const WAITING_MAX: usize = 1_000;

/// The most business IDs of a call that waits, in bytes, and the most descriptors, so that their number bounds the memory.
const ID_BYTES_MAX: usize = 4_096;
const DESCRIPTORS_MAX: usize = 64;

/// How many calls are judged at a time.
const AT_A_TIME: usize = 100;

/// How long the last calls may take when the service stops.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Candidate {
    rules: Arc<Rules>,
    in_force: Arc<Rules>,
    /// Where replicas share what operators order.
    store: Arc<Store>,
    counters: Guard,
    /// One key in this many is judged.
    one_in: u64,
    is_judged: AtomicBool,
    sender: Sender<Sampled>,
    receiver: Mutex<Option<Receiver<Sampled>>>,
    trial: Mutex<Trial>,
    known: Mutex<KnownOrders>,
    /// Held during an exchange with the store, so that none learns older orders than the one before.
    turn: tokio::sync::Mutex<()>,
    has_asked: AtomicBool,
    metrics: CandidateInstruments,
}

/// A call as the rules in force have decided it.
pub(crate) struct DecidedCall<'call> {
    pub(crate) directives: Option<&'call Directives>,
    pub(crate) request: &'call Request,
    pub(crate) meaning: HitsMeaning,
    pub(crate) decision: &'call Decision,
    /// Of a denied call, a counter of each descriptor that has one.
    pub(crate) counters: Vec<Option<Counter>>,
    pub(crate) at: Timestamp,
}

/// A call that the candidate judges.
struct Sampled {
    plan: Plan,
    /// What the rules in force have said of each descriptor that is compared.
    in_force: Vec<Option<InForce>>,
    /// When it was decided, and since when it waits.
    at: Timestamp,
    since: Instant,
}

/// What the rules in force have said of a descriptor.
struct InForce {
    status: Status,
    counter: Option<Counter>,
    /// Whether it denies the call.
    is_over: bool,
}

impl Candidate {
    pub fn new(
        rules: Arc<Rules>,
        in_force: Arc<Rules>,
        store: Arc<Store>,
        counters: Guard,
        one_in: u64,
        meter: &Meter,
    ) -> Arc<Self> {
        let (sender, receiver) = channel(WAITING_MAX);
        let candidate = Arc::new(Self {
            rules,
            in_force,
            store,
            counters,
            one_in,
            is_judged: AtomicBool::new(false),
            sender,
            receiver: Mutex::new(Some(receiver)),
            trial: Mutex::default(),
            known: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            has_asked: AtomicBool::new(false),
            metrics: CandidateInstruments::of_meter(meter),
        });
        let observed = Arc::downgrade(&candidate);
        DECISIONS.observe_counts(meter, move |to: &dyn AsyncInstrument<u64>| {
            for ((domain, rule), counts) in observed.upgrade().iter().flat_map(|one| one.counts()) {
                for (result, count) in Compared::ALL.into_iter().zip(counts) {
                    let labels = [("domain", &domain), ("rule", &rule)];
                    let labels = labels.map(|(name, value)| KeyValue::new(name, Arc::clone(value)));
                    let [domain, rule] = labels;
                    to.observe(count, &[domain, rule, KeyValue::new("result", result.name())]);
                }
            }
        });
        candidate
    }

    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules)
    }

    fn counts(&self) -> Vec<(RuleName, [u64; 3])> {
        self.trial.lock().counts().collect()
    }

    /// Whether calls are judged.
    pub(crate) fn is_judged(&self) -> bool {
        self.is_judged.load(Ordering::Relaxed)
    }

    /// Lets the candidate judge the part of a call that is in the sample, later.
    pub(crate) fn sample(&self, call: DecidedCall<'_>) {
        let DecidedCall { directives, request, meaning, decision, counters, at } = call;
        let rules = self.rules.current();
        let mut plan = Plan::draw_as(&rules.rules, directives, request, &[], meaning);
        if plan.is_refused() || plan.lacking.is_some() {
            return;
        }
        let counters = counters.into_iter().chain(iter::repeat(None));
        let counters: Few<Option<Counter>> = counters.take(decision.statuses.len()).collect();
        // What a hold was charged for is known to the rules in force alone.
        let commits = |sent: &Descriptor| {
            let token = || Parameters::of(&sent.entries)?.commit();
            !decision.commits.is_empty() && token().is_some()
        };
        let is_sampled =
            |((sent, counter), charges): ((&Descriptor, &Option<Counter>), &[Charge])| {
                let judged = charges.first().map(|charge| &charge.counter).or(counter.as_ref());
                judged.is_some_and(|counter| self.is_sampled(counter))
                    && charges.iter().all(is_comparable)
                    && !commits(sent)
            };
        let descriptors = request.descriptors.iter().zip(&counters).zip(plan.by_descriptor());
        let kept: Few<bool> = descriptors.map(is_sampled).collect();
        if !kept.contains(&true) {
            return;
        }
        let is_denied = decision.code == Code::OverLimit;
        let is_over = |status: &Status| is_denied && status.outcome.code() == Code::OverLimit;
        let denied_by = |is_kept: bool| {
            let statuses = decision.statuses.iter().zip(&kept);
            statuses.filter(move |(_, kept)| **kept == is_kept).any(|(status, _)| is_over(status))
        };
        // What is sampled does not say why, and only what counts denied calls, gives back, or begins a ban, is charged.
        let is_compared = !denied_by(false) && is_denied == denied_by(true);
        plan.keep(|index, charge| {
            let is_over = decision.statuses.get(index).is_some_and(is_over);
            kept.get(index) == Some(&true)
                && (is_compared
                    || charge.applies_when_denied()
                    || is_over && charge.counter.limit.ban_ms.is_some())
        });
        if plan.charges.is_empty() && !is_compared {
            return;
        }
        let own = plan.charges.iter().map(|charge| &charge.counter);
        let id_bytes: usize = own.chain(counters.iter().flatten()).map(Counter::id_bytes).sum();
        let statuses = decision.statuses.iter().zip(counters).zip(&kept);
        let in_force =
            statuses.zip(&request.descriptors).map(|(((status, counter), is_kept), sent)| {
                let judged = InForce { status: status.clone(), counter, is_over: is_over(status) };
                // No rule has the limit that a caller sends: it only counts.
                (*is_kept && is_compared && sent.limit.is_none()).then_some(judged)
            });
        let sampled = Sampled { plan, in_force: in_force.collect(), at, since: Instant::now() };
        if id_bytes > ID_BYTES_MAX
            || kept.len() > DESCRIPTORS_MAX
            || self.sender.try_send(sampled).is_err()
        {
            self.leave_out();
        }
    }

    /// The same keys on every replica.
    fn is_sampled(&self, counter: &Counter) -> bool {
        counter.hash_of_window(Timestamp::default()).is_multiple_of(self.one_in)
    }

    fn leave_out(&self) {
        self.metrics.left_out.add(1, &[]);
        self.trial.lock().left_out += 1;
    }

    /// Judges the calls of the sample until `stop`.
    pub(crate) async fn judge_all(&self, top_keys: &TopKeys, stop: CancellationToken) {
        let Some(receiver) = self.receiver.lock().take() else { return };
        let sampled = futures_util::stream::unfold(receiver, async |mut receiver| {
            Some((receiver.recv().await?, receiver))
        });
        let sampled = sampled.take_until(stop.cancelled());
        let judging =
            sampled.for_each_concurrent(AT_A_TIME, |sampled| self.judge(sampled, top_keys));
        tokio::pin!(judging);
        tokio::select! {
            () = &mut judging => {}
            () = stop.cancelled() => drop(time::timeout(ENDS_WITHIN, judging).await),
        }
        if let Some(servers) = self.counters.servers() {
            servers.ended().await;
        }
    }

    /// Follows the Redis servers of its counters, and the orders; never ends. Calls `on_change` when other rules are in force.
    pub(crate) async fn follow(&self, now: impl Fn() -> Timestamp, on_change: impl Fn()) {
        let servers = async {
            if let Some(servers) = self.counters.servers() {
                servers.follow().await;
            }
        };
        tokio::join!(servers, self.follow_orders(now, on_change));
    }

    async fn judge(&self, sampled: Sampled, top_keys: &TopKeys) {
        let Sampled { plan, in_force, at, since } = sampled;
        let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_over = |charge: &Charge| {
            let Limit { algorithm, window, .. } = &*charge.counter.limit;
            algorithm.is_aligned() && window.at(at) != window.at(at.plus_millis(waited_ms))
        };
        // In the next window, its hits would take the room of others.
        if plan.charges.iter().any(is_over) {
            return;
        }
        let verdict = match self.counters.charge(&plan.charges, Arrival::now()).await {
            Ok(verdict)
                if verdict.tallies.iter().all(|tally| tally.judged_by == JudgedBy::Counter) =>
            {
                verdict
            }
            Ok(_) | Err(_) => return self.leave_out(),
        };
        let counters = |charges: &[Charge]| -> Few<Counter> {
            charges.iter().map(|charge| charge.counter.clone()).collect()
        };
        let counters: Vec<Few<Counter>> = plan.by_descriptor().map(counters).collect();
        let decision = plan.settle(verdict);
        let (before, at) = (at, decision.at.unwrap_or(at));
        let is_denied = decision.code == Code::OverLimit;
        for ((status, counters), in_force) in
            decision.statuses.into_iter().zip(counters).zip(in_force)
        {
            let Some(in_force) = in_force else { continue };
            let is_over = is_denied && status.outcome.code() == Code::OverLimit;
            let Some(result) = self.compare(&in_force, is_over, &counters, [before, at]) else {
                continue;
            };
            let (list, status, counter) = match result {
                Compared::Same => (None, status, None),
                Compared::Denied => {
                    (Some(TopList::NewlyDenied), status, counters.into_iter().next())
                }
                Compared::Admitted => {
                    (Some(TopList::NewlyAdmitted), in_force.status, in_force.counter)
                }
            };
            let Matched::Rule(domain, rule) = &status.matched else { continue };
            self.trial.lock().add(domain, &rule.path, result);
            if let (Some(list), Some(counter), Outcome::Over { limit, .. }) =
                (list, counter, &status.outcome)
            {
                let counter = counter.with_limit(Arc::clone(limit));
                let directive = status.directive.as_ref();
                top_keys.record_in(list, &status.matched, directive, &counter);
            }
        }
    }

    /// Compares what was said of a descriptor with these counters of the candidate, at two times; `None` if they cannot be
    /// compared.
    fn compare(
        &self,
        in_force: &InForce,
        is_over: bool,
        counters: &[Counter],
        [before, at]: [Timestamp; 2],
    ) -> Option<Compared> {
        let mut limits = counters.iter().map(|counter| &*counter.limit);
        let is_same_window = |limit: &Limit| {
            !limit.algorithm.is_aligned() || limit.window.at(at) == limit.window.at(before)
        };
        if !limits.clone().all(is_same_window) {
            return None;
        }
        match (in_force.is_over, is_over) {
            (false, true) => Some(Compared::Denied),
            (true, false) => {
                let over = in_force.status.outcome.of_limit().map(|(limit, ..)| limit);
                let ban_ms = over.and_then(|limit| limit.ban_ms).unwrap_or(0);
                // Its counters lack what was charged before the trial.
                let trial = self.trial.lock();
                limits.all(|limit| trial.is_whole(limit, ban_ms, at)).then_some(Compared::Admitted)
            }
            (false, false) | (true, true) => Some(Compared::Same),
        }
    }

    /// Resets the counters of a request, since those in force are reset.
    pub(crate) async fn reset(&self, request: &Request) {
        let rules = self.rules.current();
        let plan = Plan::draw_as(&rules.rules, None, request, &[], HitsMeaning::Read);
        let mut charges = plan.charges;
        charges.retain(|charge| self.is_sampled(&charge.counter));
        self.counters.read_counters(&charges, Clear::Yes).await;
    }
}

/// Whether a part of the calls says what all would: groups of quotas, and what is in flight or held, are judged as a whole.
fn is_comparable(charge: &Charge) -> bool {
    let limit = &charge.counter.limit;
    limit.mode != Mode::Quota
        && limit.hold.is_none()
        && !limit.counts_calls()
        && matches!(charge.hold, None | Some(HoldAction::Ban { .. }))
}

/// A counter of each descriptor that has one.
pub(crate) fn first_counters(plan: &Plan) -> Vec<Option<Counter>> {
    let of_each = plan.by_descriptor().map(<[Charge]>::first);
    of_each.map(|charge| charge.map(|charge| charge.counter.clone())).collect()
}
