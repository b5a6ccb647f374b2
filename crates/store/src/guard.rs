//! Every call is answered within the decision budget: by the store, or by the `on_store_failure` of its
//! limits. Recent denials are answered without asking the store.

mod failure_mode;

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{self, Instant},
};
use tollkeeper_base::process::calls::client_has_left;
use tollkeeper_engine::{
    key::Counter,
    ledger::{Charge, CounterState, Verdict},
    rule::FailureMode,
};

use super::{
    AtOnce, Clear, CounterReading, Store, StoreError,
    fallback::Fallback,
    lateness,
    metrics::StoreMetrics,
    over_limit_cache::OverLimitCache,
    read_turns::{READ_AT_A_TIME, ReadTurns},
    redis::RedisStore,
};

/// When a call arrived, and how long its caller waits, if that is announced.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// When its message was there.
    pub at: Instant,
    pub timeout: Option<Duration>,
}

/// Of the time that a caller waits, this part is for the decision, and the rest for the way of the answer: 15 ms of
/// Envoy's 20 ms.
const DECISION_PART: (u32, u32) = (3, 4);

/// How long an operator waits for an answer about counters, as for one about overrides: longer than calls, since they are
/// asked about when the store is slow.
const OPERATOR_WAITS: Duration = Duration::from_secs(1);

/// How many charges may wait for the store in calls that have at most [`FEW`]. Larger calls may have as many again; larger ones that
/// count work that is done, and those that read counters, half as many each: some 220 MiB in all.
const WAITING_MAX: usize = 1 << 17;

/// Calls with more charges than this have a bound of their own, so that they do not keep small calls out.
const FEW: usize = 32;

/// A store whose calls have a time limit, and an answer if it fails.
#[derive(Debug, Clone)]
pub struct Guard {
    store: Arc<Store>,
    over_limit: Arc<OverLimitCache>,
    fallback: Arc<Fallback>,
    read_turns: Arc<ReadTurns>,
    /// For operators, so that the readings of callers do not delay theirs.
    operator_turns: Arc<ReadTurns>,
    waiting: Arc<Waiting>,
    timeouts: Timeouts,
    metrics: StoreMetrics,
    began: Instant,
}

/// One permit for each charge that may wait for the store.
#[derive(Debug)]
struct Waiting {
    in_few: Semaphore,
    in_many: Semaphore,
    /// In calls of many that count work that is done.
    with_done: Semaphore,
    readings: Semaphore,
}

#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For callers that announce no timeout.
    pub budget: Duration,
    /// For callers that announce a timeout, at most; a decision takes three quarters of it.
    pub announced_max: Duration,
}

impl Arrival {
    /// A call that arrives now, of a caller who waits as long as it takes.
    pub fn now() -> Self {
        Self { at: Instant::now(), timeout: None }
    }
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            in_few: Semaphore::new(WAITING_MAX),
            in_many: Semaphore::new(WAITING_MAX),
            with_done: Semaphore::new(WAITING_MAX / 2),
            readings: Semaphore::new(WAITING_MAX / 2),
        }
    }
}

impl Guard {
    /// Guards `store`: no call waits longer than `timeouts` says. `over_limit` answers first, and `fallback` if
    /// the store fails.
    pub fn new(
        store: Arc<Store>,
        over_limit: OverLimitCache,
        fallback: Fallback,
        timeouts: Timeouts,
        metrics: StoreMetrics,
    ) -> Self {
        let (over_limit, fallback) = (Arc::new(over_limit), Arc::new(fallback));
        Self {
            store,
            over_limit,
            fallback,
            read_turns: Arc::default(),
            operator_turns: Arc::default(),
            waiting: Arc::default(),
            timeouts,
            metrics,
            began: Instant::now(),
        }
    }

    /// The same store for an operator, who waits for a second, as others do who read counters and announce no timeout.
    #[must_use]
    pub fn for_operator(&self) -> Self {
        let budget = self.timeouts.budget.max(OPERATOR_WAITS);
        Self { timeouts: Timeouts { budget, ..self.timeouts }, ..self.clone() }
    }

    /// Like [`Store::charge`], within the budget from the call's arrival on. It fails if the `on_store_failure` of a
    /// limit is `error`.
    pub async fn charge(
        &self,
        charges: &[Charge],
        arrival: Arrival,
    ) -> Result<Verdict, StoreError> {
        match self.charge_store(charges, arrival).await {
            // The store has applied the failure modes of the charges that have no counter.
            Err(error @ (StoreError::Corrupt(_) | StoreError::Unreachable { .. })) => Err(error),
            Err(error) => self.without_answer(charges, error),
            Ok(verdict) => Ok(verdict),
        }
    }

    /// The answer to a call for which the store gives none.
    pub fn without_answer(
        &self,
        charges: &[Charge],
        error: StoreError,
    ) -> Result<Verdict, StoreError> {
        self.fallback.answer(charges, error)
    }

    /// Keeps what counts work that is done, where the store is not asked.
    pub fn keep(&self, charges: &[Charge]) {
        self.store.keep(charges);
    }

    /// The store, if it answers at once, and so needs no guard.
    pub fn at_once(&self) -> Option<AtOnce<'_>> {
        self.store.at_once()
    }

    pub fn servers(&self) -> Option<&RedisStore> {
        self.store.servers()
    }

    /// Whether the caller has given up by now: its own timeout has passed, or the budget and the time for the way.
    pub fn is_late(&self, arrival: Arrival) -> bool {
        let (part, whole) = DECISION_PART;
        arrival.at.elapsed() > arrival.timeout.unwrap_or(self.timeouts.budget * whole / part)
    }

    async fn charge_store(
        &self,
        charges: &[Charge],
        arrival: Arrival,
    ) -> Result<Verdict, StoreError> {
        if charges.is_empty() {
            return Ok(Verdict::default());
        }
        // Before the cache: what was charged in advance is left though all else is used.
        if let Some(verdict) = self.store.spend(charges) {
            return Ok(verdict);
        }
        // The cache's answer proves nothing about the store's health.
        if !self.over_limit.is_quiet(arrival.at)
            && let Some(tallies) = self.over_limit.answer(charges, Instant::now())
        {
            return Ok(Verdict { denied: true, tallies, ..Verdict::default() });
        }
        let until = self.deadline(arrival);
        // Boxed, so that it does not enlarge the future of a call in memory.
        let asked = Box::pin(async {
            let Some(_waiting) = self.may_wait(charges) else {
                self.store.keep(charges);
                return Ok(Err(too_many_wait()));
            };
            lateness::until(until, pin!(self.ask(charges, arrival.at, until))).await
        });
        let answer = asked.await.unwrap_or_else(|late| {
            lateness::starved(late, &self.metrics);
            Err(StoreError::TimedOut)
        });
        // Even without an answer, the refunds of this call may have been applied.
        if charges.iter().any(|charge| charge.hits.asks_nothing()) {
            self.over_limit.forget_refunded(charges, Instant::now());
        }
        answer
    }

    /// A permit for these charges to wait for the store, or `None` if too many wait.
    fn may_wait(&self, charges: &[Charge]) -> Option<SemaphorePermit<'_>> {
        let waiting = match charges.len() {
            0..=FEW => &self.waiting.in_few,
            _ if charges.iter().any(Charge::outlives_caller) => &self.waiting.with_done,
            _ => &self.waiting.in_many,
        };
        waiting.try_acquire_many(u32::try_from(charges.len()).ok()?).ok()
    }

    /// Until when a call that arrived so is decided.
    pub fn deadline(&self, arrival: Arrival) -> Instant {
        let (part, whole) = DECISION_PART;
        let announced = arrival.timeout.map(|timeout| timeout / whole * part);
        let Timeouts { budget, announced_max } = self.timeouts;
        arrival.at + announced.map_or(budget, |announced| announced.min(announced_max))
    }

    /// The hits of a counter that this replica has leased and not spent, if the store leases.
    pub fn credit(&self, counter: &Counter) -> Option<u64> {
        self.store.servers().map(|servers| servers.credit(counter))
    }

    /// Counts hits that callers have leased, or have given back.
    pub fn lent(&self, event: &'static str, hits: u64) {
        if hits > 0 {
            self.metrics.leased(event, hits);
        }
    }

    /// Whether what was charged so long ago was counted in memory that is gone.
    pub fn has_lost(&self, charged: Duration) -> bool {
        self.store.servers().is_none() && self.began.elapsed() < charged
    }

    /// Shows the keys of the counters of a domain, in the form of a key, and perhaps others, as long as `found` wants more.
    /// Returns whether these are all.
    pub async fn keys(
        &self,
        domain_part: &str,
        found: &mut (dyn FnMut(&str) -> bool + Send),
        until: Instant,
    ) -> Result<bool, StoreError> {
        self.store.keys(domain_part, found, &self.operator_turns, until).await
    }

    /// The states of the counters of these charges, in turns. None is read after `until`, or when the client has left.
    pub async fn states(
        &self,
        charges: &[Charge],
        until: Instant,
    ) -> Result<Vec<CounterState>, StoreError> {
        let count = u32::try_from(charges.len()).unwrap_or(u32::MAX);
        let waiting = self.waiting.readings.try_acquire_many(count);
        let _waiting = waiting.map_err(|_| too_many_wait())?;
        let mut states = Vec::with_capacity(charges.len());
        for some in charges.chunks(READ_AT_A_TIME) {
            for answer in self.read_in_turn(&self.read_turns, some, Clear::No, until).await {
                states.push(answer?);
            }
        }
        Ok(states)
    }

    /// Like [`read_counter`](Self::read_counter), of the counters of all these charges, in turns and within one budget.
    pub async fn read_counters(&self, charges: &[Charge], clear: Clear) -> Vec<CounterReading> {
        let until = Instant::now() + self.timeouts.budget;
        let mut readings = Vec::with_capacity(charges.len());
        for some in charges.chunks(READ_AT_A_TIME) {
            let answers = self.read_in_turn(&self.operator_turns, some, clear, until).await;
            let reading =
                |(charge, answer): (&Charge, _)| self.reading(&charge.counter, clear, answer);
            readings.extend(some.iter().zip(answers).map(reading));
        }
        readings
    }

    /// Like [`Store::read_counter`], at once and within the budget.
    pub async fn read_counter(&self, counter: &Counter, clear: Clear) -> CounterReading {
        let answer =
            time::timeout(self.timeouts.budget, self.store.read_counter(counter, clear)).await;
        self.reading(counter, clear, answer.unwrap_or(Err(StoreError::TimedOut)))
    }

    /// Reads the counters of at most [`READ_AT_A_TIME`] charges together.
    async fn read_in_turn(
        &self,
        turns: &ReadTurns,
        charges: &[Charge],
        clear: Clear,
        until: Instant,
    ) -> Vec<Result<CounterState, StoreError>> {
        let read = async |charge: &Charge| {
            // A reset is done also for a client that has left.
            if !clear.ends_holds() && self.reads_no_more(until) {
                return Err(StoreError::TimedOut);
            }
            let answer = self.store.read_counter(&charge.counter, clear);
            time::timeout_at(until, answer).await.unwrap_or(Err(StoreError::TimedOut))
        };
        let reading = join_all(charges.iter().map(read));
        if self.servers().is_none() {
            return reading.await;
        }
        let read = turns.read(charges.len(), until, reading).await;
        read.unwrap_or_else(|| vec![Err(StoreError::TimedOut); charges.len()])
    }

    /// Checks that there is room for this many counters to wait until they are read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if too many others wait.
    pub fn may_read(&self, counters: usize) -> Result<(), StoreError> {
        let may_wait = self.waiting.readings.available_permits() >= counters;
        may_wait.then_some(()).ok_or_else(too_many_wait)
    }

    /// Whether nothing is to be read any more for the request of this task, which has time until then.
    pub fn reads_no_more(&self, until: Instant) -> bool {
        client_has_left() || self.servers().is_some() && Instant::now() >= until
    }

    fn reading(
        &self,
        counter: &Counter,
        clear: Clear,
        answer: Result<CounterState, StoreError>,
    ) -> CounterReading {
        if clear == Clear::Yes {
            self.over_limit.forget(counter, Instant::now());
        }
        match answer {
            Ok(state) => CounterReading::State(state),
            Err(StoreError::Corrupt(_)) => CounterReading::Corrupt,
            Err(error) => {
                let server = self.store.servers().and_then(|servers| servers.server_of(counter));
                let server = server.as_deref().unwrap_or("the store");
                CounterReading::NoAnswer(format!("no answer from {server}: {error}"))
            }
        }
    }

    async fn ask(
        &self,
        charges: &[Charge],
        sent: Instant,
        until: time::Instant,
    ) -> Result<Verdict, StoreError> {
        let mut answer = self.store.charge(charges, until).await;
        if let Err(error) = &answer {
            let is_local = |index: &usize| failure_mode(charges, *index) == FailureMode::Local;
            let left = error.by_failure_mode();
            let local: Vec<usize> = left.iter().copied().filter(is_local).collect();
            if !local.is_empty() {
                // Boxed, so that this rare case does not enlarge the future of every call.
                answer = Box::pin(self.charge_with_local(charges, &local, error, until)).await;
            }
        }
        if let Ok(verdict) = &answer {
            self.over_limit.learn(charges, verdict, sent);
        }
        answer
    }
}

fn too_many_wait() -> StoreError {
    StoreError::Unavailable("too many calls wait for the store".to_owned())
}

fn failure_mode(charges: &[Charge], index: usize) -> FailureMode {
    let charge = charges.get(index);
    charge.map_or(FailureMode::Error, |charge| charge.counter.limit.failure_mode())
}
