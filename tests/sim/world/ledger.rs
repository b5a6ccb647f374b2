//! What clients were answered, and what the server has: the promises, by arithmetic that shares nothing with the service.

use std::{
    collections::BTreeMap,
    ops::{Add as _, Range},
};

use tollkeeper_sim::redis::database::{Database, Value};

use super::{
    Plan,
    places::{HELD_MS, Places},
};

/// The length of the windows in milliseconds, and the limit, by the key of the rule.
const WINDOWS: [(&str, u64, u64); 7] = [
    ("second", 1000, 4),
    ("minute", 60_000, 40),
    ("hot", 1000, 200),
    ("work", 86_400_000, u64::MAX),
    ("tokens", 3_600_000, 1000),
    ("anonymous", 3_600_000, u64::MAX),
    ("slots", HELD_MS, u64::MAX),
];

/// A key lives this much longer than its window, at most, and one of the service itself as long as an override may last.
const KEPT_AFTER_MS: u64 = 301_000;
const KEPT_MAX_MS: u64 = 31 * 86_400_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Charge,
    /// Work that is done: it counts whether it fits or not.
    Debit,
    Refund,
}

/// What a client asks.
#[derive(Debug, Clone)]
pub struct Call {
    pub counters: Vec<String>,
    pub hits: u64,
    pub kind: Kind,
}

/// What it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Whether it may pass; `None` without a decision.
    pub admitted: Option<bool>,
    /// When the store has decided, in Unix milliseconds by its clock; `None` if it has not.
    pub at: Option<u64>,
    /// Whether it took no time, since the replica sent nothing.
    pub was_at_once: bool,
    /// Whether the replica lived until it answered.
    pub was_heard: bool,
    /// Whether hits were spent that the replica had leased.
    pub by_credit: bool,
}

/// Hits that are held for work under way, by a token.
#[derive(Debug)]
struct Take {
    counter: String,
    estimate: u64,
    /// The true number, which all of its commits state.
    used: u64,
    answer: Answer,
    commits: Vec<Commit>,
}

/// The answer that a client got to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    Applied,
    Repeated,
    /// The service has it, and no answer yet.
    Kept,
    /// The service could not read its token.
    Unread,
    /// Nobody knows whether it was applied.
    Lost,
}

impl Answer {
    /// The caller has heard nothing.
    pub const NONE: Self =
        Self { admitted: None, at: None, was_at_once: false, was_heard: false, by_credit: false };
}

#[derive(Default)]
pub struct Ledger {
    /// The hits that all replicas may have leased of a limit, of each hundred, if they lease; all of them if answers may be
    /// lost.
    leased_percent: u64,
    calls: Vec<(Call, Answer)>,
    takes: Vec<Take>,
    pub places: Places,
    /// When the server lost its data, by its clock, and the latest time that it had shown.
    losses_ms: Vec<(u64, u64)>,
    /// When its clock was set back: from when, and to when.
    jumps_ms: Vec<(u64, u64)>,
    /// The number of calls when the last connection may have been cut.
    calls_until_cut: usize,
    broken: Option<String>,
}

/// The least and the most hits that a counter can have.
#[derive(Debug, Default, Clone, Copy)]
struct Bounds {
    least: i64,
    most: i64,
}

impl Bounds {
    fn exactly(hits: u64) -> Self {
        Self { least: hits as i64, most: hits as i64 }
    }

    fn up_to(hits: u64) -> Self {
        Self { least: 0, most: hits as i64 }
    }

    fn add(&mut self, other: Self) {
        self.least += other.least;
        self.most += other.most;
    }

    fn negative(self) -> Self {
        Self { least: -self.most, most: -self.least }
    }
}

impl Ledger {
    pub fn of(plan: &Plan) -> Self {
        let leased_percent = match plan {
            Plan { leases: false, .. } => 0,
            // What is in hand, and what is on its way back.
            Plan { faults_max: 0, .. } => 20,
            _ => 100,
        };
        Self { leased_percent, ..Self::default() }
    }

    /// The hits of a limit that may be charged, and not used.
    fn leased(&self, counter: &str) -> i64 {
        let (name, _, limit) = window_of(counter);
        let is_leased = ["minute", "hot"].contains(&name);
        if is_leased { (limit * self.leased_percent / 100) as i64 } else { 0 }
    }

    /// Notes the first promise that is broken.
    pub fn breaks(&mut self, promise: String) {
        self.broken.get_or_insert(promise);
    }

    pub fn broken(&self) -> Option<String> {
        self.broken.clone()
    }

    pub fn calls(&self) -> u64 {
        self.calls.len().add(self.takes.len()) as u64
    }

    pub fn answers(&self) -> BTreeMap<&'static str, u64> {
        let mut answers = BTreeMap::new();
        let of_takes = self.takes.iter().map(|take| take.answer);
        for answer in self.calls.iter().map(|(_, answer)| *answer).chain(of_takes) {
            let name = match (answer.admitted, answer.at) {
                _ if answer.by_credit => "admitted by credit",
                (None, _) => "error",
                (Some(true), Some(_)) => "admitted",
                (Some(false), Some(_)) => "denied",
                (Some(true), None) => "admitted without the store",
                (Some(false), None) => "denied without the store",
            };
            *answers.entry(name).or_default() += 1;
        }
        answers
    }

    pub fn answered(&mut self, call: Call, answer: Answer) {
        self.calls.push((call, answer));
    }

    /// A call has held this estimate of what it uses. Returns the number of the take.
    pub fn took(&mut self, counter: String, estimate: u64, used: u64, answer: Answer) -> usize {
        self.takes.push(Take { counter, estimate, used, answer, commits: Vec::new() });
        self.takes.len() - 1
    }

    pub fn committed(&mut self, take: usize, commit: Commit) {
        self.takes[take].commits.push(commit);
        let applied = self.takes[take].commits.iter().filter(|known| **known == Commit::Applied);
        if applied.count() > 1 && self.losses_ms.is_empty() {
            self.breaks(format!("a commit was applied twice: {:?}", self.takes[take]));
        }
    }

    /// Connections may be cut now: what is sent may run without an answer.
    pub fn cut(&mut self) {
        self.calls_until_cut = self.calls_until_cut.max(self.calls.len());
    }

    /// A replica was killed: what it had kept is lost.
    pub fn killed(&mut self, now_ms: u64) {
        self.cut();
        self.places.killed(now_ms);
        let kept = self.takes.iter_mut().flat_map(|take| &mut take.commits);
        kept.filter(|commit| **commit == Commit::Kept).for_each(|commit| *commit = Commit::Lost);
    }

    /// From now on connections may turn out to be cut.
    pub const fn cut_for_ever(&mut self) {
        self.calls_until_cut = usize::MAX;
    }

    /// Whether a connection may be half-open, which the service notices when it uses it next.
    pub const fn has_half_open(&self) -> bool {
        self.calls_until_cut == usize::MAX
    }

    pub fn lost_data(&mut self, at_ms: u64) {
        let latest = self.jumps_ms.iter().map(|(from, _)| *from).fold(at_ms, u64::max);
        self.losses_ms.push((at_ms, latest));
    }

    pub fn set_back(&mut self, from_ms: u64, to_ms: u64) {
        self.jumps_ms.push((from_ms, to_ms));
    }

    /// Whether the promise names a reason for which this window may admit more.
    fn is_excused(&self, window: &Range<u64>) -> bool {
        let has_ended_before = |(from, to): &(u64, u64)| (to + 1..=*from).contains(&window.end);
        let had_begun = |(at, latest): &(u64, u64)| window.end > *at && window.start <= *latest;
        self.losses_ms.iter().any(had_begun) || self.jumps_ms.iter().any(has_ended_before)
    }

    /// Checks that a limit holds on what the server has now: estimates are never below what is used.
    pub fn check_limit(&mut self, database: &mut Database, counter: &str) {
        let ((_, _, limit), used) = (window_of(counter), used(database, counter));
        if used > limit {
            self.breaks(format!("{counter} has {used} hits of {limit}"));
        }
    }

    /// Compares all answers with what the server has at the end.
    pub fn close(&mut self, database: &mut Database) {
        // By counter and window: what was admitted, and what may have been charged without an answer.
        let mut windows: BTreeMap<(String, u64), Bounds> = BTreeMap::new();
        // By counter, in all windows.
        let mut totals: BTreeMap<String, Bounds> = BTreeMap::new();
        let mut perhaps: BTreeMap<String, u64> = BTreeMap::new();
        for (index, (call, answer)) in self.calls.iter().enumerate() {
            for counter in &call.counters {
                let (_, length_ms, _) = window_of(counter);
                if call.kind == Kind::Charge {
                    match answer.at {
                        Some(at) => {
                            let hits = if answer.admitted == Some(true) { call.hits } else { 0 };
                            let window = windows.entry((counter.clone(), at / length_ms));
                            window.or_default().add(Bounds::exactly(hits));
                        }
                        None if answer.was_at_once => {}
                        None => *perhaps.entry(counter.clone()).or_default() += call.hits,
                    }
                    continue;
                }
                // What is kept while the breaker is open is counted later, unless it is cut when it is sent.
                let is_kept = answer.was_at_once && index >= self.calls_until_cut;
                let counts = answer.at.is_some() || is_kept && answer.admitted.is_some();
                let hits = [Bounds::up_to, Bounds::exactly][usize::from(counts)](call.hits);
                let hits = if call.kind == Kind::Refund { hits.negative() } else { hits };
                totals.entry(counter.clone()).or_default().add(hits);
            }
        }
        for take in &self.takes {
            totals.entry(take.counter.clone()).or_default().add(take.counts());
        }
        for ((counter, _), bounds) in &mut windows {
            bounds.most += perhaps.get(counter).map_or(0, |hits| *hits as i64);
        }
        self.check_denials(&windows, &perhaps);
        for ((counter, window), bounds) in windows {
            let (_, length_ms, limit) = window_of(&counter);
            let span = window * length_ms..(window + 1) * length_ms;
            if self.is_excused(&span) {
                continue;
            }
            if bounds.least > limit as i64 {
                let (start, admitted) = (span.start, bounds.least);
                self.breaks(format!(
                    "{counter} admitted {admitted} of {limit} in the window at {start}"
                ));
            }
            // What was denied is not charged.
            let bounds = Bounds { most: bounds.most + self.leased(&counter), ..bounds };
            if let Some(used) = used_in(database, &counter, span.start) {
                self.check_used(&counter, used, bounds);
            }
        }
        for (counter, bounds) in totals {
            if self.losses_ms.is_empty() {
                self.check_used(&counter, used(database, &counter), bounds);
            }
        }
        let now_ms = database.now_ms();
        for key in database.keys() {
            if let Some((_, rest)) = key_text(&key).split_once("{shop|slots=")
                && let Some(Value::Sorted(set)) = database.value(&key)
            {
                let is_open = |(score, _): &&(f64, Vec<u8>)| *score < -(now_ms as f64);
                let in_flight = set.members().iter().filter(is_open).count();
                let counter = format!("slots={}", rest.trim_end_matches('}'));
                self.places.check_end(&counter, in_flight, now_ms);
            }
        }
        if let Some(broken) = self.places.broken() {
            self.breaks(broken);
        }
        self.check_keys(database);
    }

    /// A counter holds what was charged for certain, and at most what may have been charged too.
    fn check_used(&mut self, counter: &str, used: u64, bounds: Bounds) {
        let Bounds { least, most } = bounds;
        if !(least..=most).contains(&(used as i64)) {
            self.breaks(format!("{counter} has {used} hits, which are not {least} to {most}"));
        }
    }

    /// What the server has denied did not fit.
    fn check_denials(
        &mut self,
        windows: &BTreeMap<(String, u64), Bounds>,
        perhaps: &BTreeMap<String, u64>,
    ) {
        let fits = |call: &Call, at: u64| {
            call.counters.iter().all(|counter| {
                let (_, length_ms, limit) = window_of(counter);
                let none = perhaps.get(counter).map_or(0, |hits| *hits as i64);
                let known = windows.get(&(counter.clone(), at / length_ms));
                let most = known.map_or(none, |bounds| bounds.most) + self.leased(counter);
                most + call.hits as i64 <= limit as i64
            })
        };
        let wrong = self.calls.iter().find(|(call, answer)| {
            call.kind == Kind::Charge
                && answer.admitted == Some(false)
                && answer.at.is_some_and(|at| fits(call, at))
        });
        if let Some((call, answer)) = wrong {
            self.breaks(format!("{call:?} was denied, and fits: {answer:?}"));
        }
    }

    fn check_keys(&mut self, database: &mut Database) {
        let now = database.now_ms();
        for key in database.keys() {
            let name = key_text(&key);
            let is_of = |(rule, ..): &&(&str, u64, u64)| name.contains(&format!("|{rule}="));
            let of_rule = WINDOWS.iter().find(is_of);
            let lives_ms = of_rule.map_or(KEPT_MAX_MS, |(_, length, _)| length + KEPT_AFTER_MS);
            match database.ends(&key).flatten() {
                Some(ends) if ends <= now + lives_ms => {}
                ends => self.breaks(format!("the key {name} ends at {ends:?}, now is {now}")),
            }
        }
    }
}

impl Take {
    /// The hits that it has charged, once all of its commits have come.
    fn counts(&self) -> Bounds {
        let (estimate, used) = (Bounds::exactly(self.estimate), Bounds::exactly(self.used));
        let between = Bounds { least: self.used as i64, most: self.estimate as i64 };
        match (self.answer.admitted, self.answer.at) {
            (Some(true), Some(_)) if self.commits.is_empty() => estimate,
            (Some(true), Some(_))
                if self
                    .commits
                    .iter()
                    .all(|commit| matches!(commit, Commit::Unread | Commit::Lost)) =>
            {
                between
            }
            (Some(true), Some(_)) => used,
            (_, Some(_)) => Bounds::default(),
            (_, None) if self.answer.was_at_once => Bounds::default(),
            // It may have run, and nobody has its token.
            (_, None) => Bounds::up_to(self.estimate),
        }
    }
}

fn window_of(counter: &str) -> (&'static str, u64, u64) {
    let (key, _) = counter.split_once('=').unwrap();
    *WINDOWS.iter().find(|(name, ..)| *name == key).unwrap()
}

/// The hits in all windows of a counter.
fn used(database: &mut Database, counter: &str) -> u64 {
    let keys = database.keys().into_iter().filter(|key| is_of(key, counter)).collect::<Vec<_>>();
    keys.iter().map(|key| count(database, key)).sum()
}

/// The hits in the window that begins at this time; `None` if it has been forgotten.
fn used_in(database: &mut Database, counter: &str, start_ms: u64) -> Option<u64> {
    let end = format!(":{}", start_ms / 1000);
    let mut keys = database.keys().into_iter().filter(|key| is_of(key, counter));
    let key = keys.find(|key| key.ends_with(end.as_bytes()))?;
    Some(count(database, &key))
}

fn key_text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

fn is_of(key: &[u8], counter: &str) -> bool {
    let key = key_text(key);
    let of_domain = format!("{{shop}}|{counter}:");
    key.starts_with("tk1:fw:")
        && (key.contains(&format!("{{shop|{counter}}}")) || key.contains(&of_domain))
}

fn count(database: &mut Database, key: &[u8]) -> u64 {
    match database.value(key) {
        // A fault that is planted may have taken too much.
        Some(Value::Text(text)) => {
            String::from_utf8_lossy(text).parse::<i64>().unwrap().max(0) as u64
        }
        other => panic!("{other:?}"),
    }
}
