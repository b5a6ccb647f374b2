//! The self-audit: in some windows of counters, hits are counted a second time, by what was answered. After the window, each
//! replica puts its sum beside the counter in the store, and the first one that reads the sums of all compares them with the
//! limit.
//!
//! Which windows of `fixed_window` are audited follows from a hash that all replicas share. A call only adds to a sum in
//! memory; one task exchanges sums with the store.

mod answered;
mod report;

use std::{
    cell::LazyCell,
    collections::BTreeMap,
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, future::join_all, stream};
use hashbrown::HashMap;
use opentelemetry::metrics::Meter;
use parking_lot::Mutex;
use redis::{Value, cmd, from_redis_value};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use self::report::INSTRUMENTS;
use self::{
    answered::{Answered, Doubt, Finding},
    report::{AuditInstruments, Reports},
};
use crate::{
    engine::{
        decision::Matched,
        key::Counter,
        ledger::{Asked, JudgedBy, Verdict},
        plan::Plan,
        rule::Algorithm,
        time::Timestamp,
    },
    process::{clock::system_clock, pause::random},
    store::{Store, redis::topology::by_key::Steps},
    top_keys::{KeyName, TopKeyNames},
};

/// The most windows that are audited at a time.
const WINDOWS_MAX: usize = 5_000;

/// How many more windows have room of which it is only known that their counter was changed.
const CHANGED_MAX: usize = 1_000;

/// Windows longer than this may take only half of the room.
const LONG_MS: u64 = 3_600_000;

/// The longest business ID of a counter that is audited, in bytes, so that their number bounds the memory.
const ID_BYTES_MAX: usize = 1024;

/// How long after the end of a window its calls may be answered.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// How long it may then take until the sums of all replicas are in the store.
const ADDED_WITHIN: Duration = Duration::from_secs(3);

/// How long sums live after that.
const KEPT_FOR: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The most windows that are taken at a time, about.
const DUE_MAX: usize = 200;

/// How many windows are exchanged with the store at a time, so that thousands do not come late.
const AT_A_TIME: usize = 4;

/// The time between two such exchanges.
const PAUSE: Duration = Duration::from_millis(1);

const EXCHANGED_WITHIN: Duration = Duration::from_secs(1);

/// How far the clocks of hosts differ, in milliseconds.
const SKEW_MS: u64 = 1_000;

/// The field of the hash that names the replica that reports. Each other field is the sum of one replica.
const REPORTER: &str = "reporter";

/// The windows that this replica audits.
#[derive(Debug)]
pub struct SelfAudit {
    store: Arc<Store>,
    /// One window in this many is audited.
    one_in: u64,
    /// Whether a counter denies no call that would fit, not even for an instant.
    denies_exactly: fn(&Counter) -> bool,
    names: TopKeyNames,
    replica: String,
    /// By the keys of their counters.
    windows: Mutex<HashMap<String, AuditedWindow>>,
    /// Since when the rules are in force, in Unix milliseconds. Other rules may have charged other hits before.
    rules_since_ms: AtomicU64,
    /// Until when windows found no room, in Unix milliseconds. Of those that began before and find room later, a part is known.
    left_out_until_ms: AtomicU64,
    metrics: AuditInstruments,
}

/// One counter in one window.
#[derive(Clone)]
struct AuditedWindow {
    counter: Counter,
    start: Timestamp,
    ends: Instant,
    name: KeyName,
    /// The descriptor, or its digest.
    key: String,
    answered: Answered,
    step: Step,
}

/// What was done last for a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Begun,
    /// The other replicas know that this one has answered.
    Registered,
    Added,
    Compared,
}

/// The fields of all replicas, whether this one reports, whether they expire, and what the counter had.
type Sums = (BTreeMap<String, String>, u64, u64, Option<u64>);

impl SelfAudit {
    pub fn new(
        store: Arc<Store>,
        one_in: u64,
        denies_exactly: fn(&Counter) -> bool,
        names: TopKeyNames,
        meter: &Meter,
    ) -> Self {
        let audit = Self {
            store,
            one_in,
            denies_exactly,
            names,
            replica: format!("{:08x}{:08x}", random(), random()),
            windows: Mutex::default(),
            rules_since_ms: AtomicU64::default(),
            left_out_until_ms: AtomicU64::default(),
            metrics: AuditInstruments::of_meter(meter),
        };
        audit.rules_changed(system_clock());
        audit
    }

    /// Other rules are in force since `now`.
    pub fn rules_changed(&self, now: Timestamp) {
        let since = now.plus_millis(SKEW_MS);
        self.rules_since_ms.store(since.as_millis(), Ordering::Relaxed);
    }

    /// An operator changes a counter at `now`.
    pub fn counter_changed(&self, matched: &Matched, counter: &Counter, now: Timestamp) {
        if self.is_audited(counter, now) {
            self.add(matched, counter, now, Answered::changed(&counter.limit), |_| String::new());
        }
    }

    /// Adds what a call was answered that arrived at `arrived`. `now` is the store's time.
    pub fn record(
        &self,
        plan: &Plan,
        verdict: Option<&Verdict>,
        arrived: Instant,
        now: impl Fn() -> Timestamp,
        digest: impl Fn(u64) -> String,
    ) {
        let (now, asked) = (LazyCell::new(now), Asked::by(&plan.charges));
        for (index, (matched, directive, charge)) in plan.matched_charges().enumerate() {
            let counter = &charge.counter;
            if counter.limit.algorithm != Algorithm::FixedWindow {
                continue;
            }
            let tally = verdict.and_then(|verdict| verdict.tallies.get(index));
            let times = if tally.is_some_and(|tally| tally.judged_by == JudgedBy::Counter) {
                // A cached denial has no time, and repeats one that has.
                let at = verdict.and_then(|verdict| verdict.at.get(index).or(verdict.at.first()));
                [at.copied(), None]
            } else {
                // It may have been charged at any time since it arrived.
                let waited_ms = i64::try_from(arrived.elapsed().as_millis()).unwrap_or(i64::MAX);
                let (now, window) = (*now, &counter.limit.window);
                let began = now.shifted(waited_ms.saturating_neg());
                [Some(now), Some(began).filter(|began| window.at(*began) != window.at(now))]
            };
            for (earlier, at) in times.into_iter().flatten().enumerate() {
                if self.is_audited(counter, at)
                    && let Some(answered) =
                        Answered::new((matched, directive, charge), index, &asked, verdict)
                {
                    // Its hits count once.
                    let answered = if earlier > 0 { answered.without_hits() } else { answered };
                    self.add(matched, counter, at, answered, &digest);
                }
            }
        }
    }

    /// Whether the window of this counter at `at` is audited.
    fn is_audited(&self, counter: &Counter, at: Timestamp) -> bool {
        let start = counter.limit.window.at(at).start;
        counter.limit.algorithm == Algorithm::FixedWindow
            && counter.hash_of_window(start).is_multiple_of(self.one_in)
            && counter.id_bytes() <= ID_BYTES_MAX
    }

    #[cold]
    fn add(
        &self,
        matched: &Matched,
        counter: &Counter,
        at: Timestamp,
        mut answered: Answered,
        digest: impl Fn(u64) -> String,
    ) {
        if !(self.denies_exactly)(counter) {
            answered.least_denied = None;
        }
        let span = counter.limit.window.at(at);
        let key = counter.key(span.start);
        let mut windows = self.windows.lock();
        if let Some(known) = windows.get_mut(&key) {
            return known.answered.add(&answered);
        }
        // Long windows leave half of the room to short ones.
        let is_long = span.start.plus_millis(LONG_MS) < span.end;
        let room = if is_long { WINDOWS_MAX / 2 } else { WINDOWS_MAX };
        // The others must learn that their sums say nothing.
        let kept_free = if answered.doubt == Doubt::Changed { CHANGED_MAX } else { 0 };
        if windows.len() >= room + kept_free {
            self.left_out_until_ms.fetch_max(at.plus_millis(1).as_millis(), Ordering::Relaxed);
            return self.metrics.left_out.add(1, &[]);
        }
        if began_before(span.start, &self.left_out_until_ms) {
            answered.doubt(Doubt::Incomplete);
        }
        let name = KeyName::new(matched, None, counter, self.names);
        let window = AuditedWindow {
            counter: counter.clone(),
            start: span.start,
            ends: Instant::now() + at.until(span.end),
            key: name.text(digest),
            name,
            answered,
            step: Step::Begun,
        };
        windows.insert(key, window);
    }

    /// Exchanges sums with the store, until `stop`.
    pub async fn follow(&self, stop: CancellationToken) {
        let mut reports = Reports::new(self.metrics.clone());
        let mut pause = LOOK_EVERY;
        while stop.run_until_cancelled(sleep(pause)).await.is_some() {
            let due = self.due(Instant::now());
            pause = if due.len() < DUE_MAX { LOOK_EVERY } else { PAUSE };
            for some in due.chunks(AT_A_TIME) {
                let found = join_all(some.iter().map(|window| self.exchange(window))).await;
                for (window, all, finding) in found.into_iter().flatten() {
                    reports.add(&window.name, &window.key, &all, finding);
                }
                sleep(PAUSE).await;
                if stop.is_cancelled() {
                    break;
                }
            }
            reports.forget();
        }
        let windows = mem::take(&mut *self.windows.lock());
        let putting = stream::iter(windows.values())
            .for_each_concurrent(AT_A_TIME, |window| self.put(window));
        drop(timeout(EXCHANGED_WITHIN, putting).await);
    }

    /// Windows for which something is to be done now, each with that as its step. Others must soon learn which were changed.
    fn due(&self, now: Instant) -> Vec<AuditedWindow> {
        let mut due = Vec::new();
        self.windows.lock().retain(|_, window| {
            if due.len() >= DUE_MAX && window.answered.doubt != Doubt::Changed {
                return true;
            }
            let Some(step) = window.next_step(now) else { return true };
            window.step = step;
            due.push(window.clone());
            step != Step::Compared
        });
        due
    }

    /// The sum of this replica, with its doubts.
    fn sum(&self, window: &AuditedWindow) -> Answered {
        let mut sum = window.answered;
        if matches!(window.step, Step::Begun | Step::Registered) {
            sum.doubt(Doubt::Incomplete);
        }
        if began_before(window.start, &self.rules_since_ms) {
            sum.doubt(Doubt::Changed);
        }
        sum
    }

    /// Does what is due. Returns the sum of all replicas and what it shows, if this one has to report it.
    async fn exchange<'window>(
        &self,
        window: &'window AuditedWindow,
    ) -> Option<(&'window AuditedWindow, Answered, Finding)> {
        if window.step != Step::Compared {
            self.put(window).await;
            return None;
        }
        let (all, finding) = self.compare(window).await?;
        Some((window, all, finding))
    }

    async fn put(&self, window: &AuditedWindow) {
        let AuditedWindow { counter, start, ends, .. } = window;
        let sum = serde_json::to_string(&self.sum(window));
        let (Some(servers), Ok(sum)) = (self.store.servers(), sum) else { return };
        let remaining = ends.saturating_duration_since(Instant::now());
        let lives = remaining + ANSWERED_WITHIN + ADDED_WITHIN + KEPT_FOR;
        let commands = |prefix: &str| {
            let key = format!("{prefix}{}", counter.answered_key(*start));
            let put = cmd("HSET").arg(&key).arg(&self.replica).arg(sum).take();
            vec![put, cmd("PEXPIRE").arg(&key).arg(millis(lives)).take()]
        };
        // Without an answer, what is found later is incomplete.
        drop(servers.run_beside(counter.hash_tag(), EXCHANGED_WITHIN, Steps::One, commands).await);
    }

    async fn sums(&self, AuditedWindow { counter, start, .. }: &AuditedWindow) -> Option<Sums> {
        let commands = |prefix: &str| {
            let keys = [counter.answered_key(*start), counter.key(*start)];
            let [key, of_counter] = keys.map(|key| format!("{prefix}{key}"));
            vec![
                cmd("HGETALL").arg(&key).take(),
                cmd("HSET").arg(&key).arg(REPORTER).arg(&self.replica).take(),
                cmd("PEXPIRE").arg(&key).arg(millis(KEPT_FOR)).take(),
                cmd("GET").arg(&of_counter).take(),
            ]
        };
        let (servers, tag) = (self.store.servers()?, counter.hash_tag());
        let answers = servers.run_beside(tag, EXCHANGED_WITHIN, Steps::One, commands).await.ok()?;
        from_redis_value(Value::Array(answers)).ok()
    }

    /// The sum of all replicas and what it shows; `None` if another replica reports it.
    async fn compare(&self, window: &AuditedWindow) -> Option<(Answered, Finding)> {
        let (mut all, mut used) = (self.sum(window), None);
        match self.sums(window).await {
            Some((_, 0, ..)) => return None,
            Some((mut sums, _, _, of_counter)) => {
                if sums.remove(&self.replica).is_none() {
                    all.doubt(Doubt::Incomplete);
                }
                for text in sums.values() {
                    match serde_json::from_str(text) {
                        Ok(sum) => all.add(&sum),
                        Err(_) => all.doubt(Doubt::Changed),
                    }
                }
                used = of_counter;
            }
            None => all.doubt(Doubt::Incomplete),
        }
        Some((all, all.finding(used)))
    }
}

impl AuditedWindow {
    fn next_step(&mut self, now: Instant) -> Option<Step> {
        let add_at = self.ends + ANSWERED_WITHIN;
        let compare_at = add_at + ADDED_WITHIN;
        match self.step {
            Step::Begun | Step::Registered if now >= add_at => {
                if now >= compare_at {
                    // The others have not waited, and what they have put may be gone.
                    self.answered.doubt(Doubt::Incomplete);
                }
                Some(Step::Added)
            }
            Step::Begun => Some(Step::Registered),
            Step::Added if now >= compare_at => Some(Step::Compared),
            Step::Registered | Step::Added | Step::Compared => None,
        }
    }
}

/// Blank, since a descriptor holds values of a request.
impl fmt::Debug for AuditedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditedWindow").finish_non_exhaustive()
    }
}

fn began_before(start: Timestamp, ms: &AtomicU64) -> bool {
    start.as_millis() < ms.load(Ordering::Relaxed)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
