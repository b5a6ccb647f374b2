//! What clients were answered, and what the server has: the promises, by arithmetic that shares nothing with the service.

use std::{
    collections::BTreeMap,
    ops::{Add as _, Range},
    time::Duration,
};

use tollkeeper_sim::redis::database::{Database, Value};

use super::{
    Plan,
    histories::{self, Histories},
    places::{HELD_MS, Places},
};

/// The length of the windows in milliseconds, and the limit, by the key of the rule.
const WINDOWS: [(&str, u64, u64); 10] = [
    ("second", 1000, 4),
    ("minute", 60_000, 40),
    ("hot", 1000, 200),
    // The two limits of one key.
    ("long", 60_000, 50),
    ("short", 10_000, 16),
    ("work", 86_400_000, u64::MAX),
    ("tokens", 3_600_000, 1000),
    ("anonymous", 3_600_000, u64::MAX),
    ("slots", HELD_MS, u64::MAX),
    ("linear", histories::WINDOW_MS, histories::LIMIT),
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
    /// Which call it answers, in the order in which they were asked.
    pub asked: usize,
    /// Whether its counters may be on several servers: each reserves its part, and what the call does not keep is given back.
    pub is_split: bool,
    /// The number of the replica.
    pub replica: usize,
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
    pub const NONE: Self = Self {
        admitted: None,
        at: None,
        was_at_once: false,
        was_heard: false,
        by_credit: false,
        asked: 0,
        is_split: false,
        replica: 0,
    };
}

#[derive(Default)]
pub struct Ledger {
    /// The hits that all replicas may have leased of a limit, of each hundred, if they lease; all of them if answers may be
    /// lost.
    leased_percent: u64,
    calls: Vec<(Call, Answer)>,
    takes: Vec<Take>,
    pub places: Places,
    pub histories: Histories,
    /// The keys that servers have lost, or of which they have lost something.
    lost: Vec<Vec<u8>>,
    /// The counters that were reset, and by the server's clock since when, and until when at the latest.
    resets: Vec<(String, u64, u64)>,
    /// When its clock was set back: from when, and to when.
    jumps_ms: Vec<(u64, u64)>,
    /// The number of calls that were asked, and when the last connection may have been cut.
    asked: usize,
    asked_until_cut: usize,
    /// The number when an answer may last have been too late for the service.
    asked_until_late: usize,
    broken: Option<String>,
}

/// The least and the most hits that a counter can have.
#[derive(Debug, Default, Clone, Copy)]
struct Bounds {
    least: i64,
    most: i64,
    /// The hits that it had beyond the most for a moment, until they were given back.
    reserved: i64,
}

impl Bounds {
    fn exactly(hits: u64) -> Self {
        Self { least: hits as i64, most: hits as i64, reserved: 0 }
    }

    fn up_to(hits: u64) -> Self {
        Self { most: hits as i64, ..Self::default() }
    }

    fn add(&mut self, other: Self) {
        self.least += other.least;
        self.most += other.most;
        self.reserved += other.reserved;
    }

    fn negative(self) -> Self {
        Self { least: -self.most, most: -self.least, ..self }
    }
}

impl Ledger {
    pub fn of(plan: &Plan) -> Self {
        let leased_percent = match plan {
            Plan { leases: false, .. } => 0,
            // What is in hand, and what is on its way back.
            Plan { faults_max: 0, proxies: 0, .. } => 20,
            _ => 100,
        };
        Self { leased_percent, ..Self::default() }
    }

    /// The hits of a limit that may be charged, and not used.
    fn leased(&self, counter: &str) -> i64 {
        let (name, _, limit) = window_of(counter);
        let is_leased = ["minute", "hot", "long", "short"].contains(&name);
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

    /// A client asks. Returns which call it is.
    pub const fn asked(&mut self) -> usize {
        self.asked += 1;
        self.asked
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
    }

    /// Connections may be cut now: what is sent may run without an answer.
    pub fn cut(&mut self) {
        self.asked_until_cut = self.asked_until_cut.max(self.asked);
    }

    /// An answer may be too late now, which says that what was sent has not run.
    pub fn late(&mut self) {
        self.asked_until_late = self.asked_until_late.max(self.asked);
    }

    /// A replica was killed: what it had kept is lost.
    pub fn killed(&mut self, now_ms: u64) {
        self.cut();
        self.places.unreleased(now_ms);
        let kept = self.takes.iter_mut().flat_map(|take| &mut take.commits);
        kept.filter(|commit| **commit == Commit::Kept).for_each(|commit| *commit = Commit::Lost);
    }

    /// From now on connections may turn out to be cut.
    pub const fn cut_for_ever(&mut self) {
        self.asked_until_cut = usize::MAX;
    }

    /// Whether a connection may be half-open, which the service notices when it uses it next.
    pub const fn has_half_open(&self) -> bool {
        self.asked_until_cut == usize::MAX
    }

    /// A server has lost these keys, or something of them, and has what is `kept`.
    pub fn lost(&mut self, keys: &[Vec<u8>], kept: &mut Database, now_ms: u64, at: Duration) {
        self.lost.extend_from_slice(keys);
        for counter in histories::COUNTERS {
            for key in keys.iter().filter(|key| is_of(key, counter)) {
                let start_s = key_text(key).rsplit(':').next().unwrap().parse::<u64>().unwrap();
                let left = kept.value(key).is_some().then(|| count(kept, key));
                self.histories.lost(counter, 1000 * start_s, left.unwrap_or(0), at);
            }
        }
        if keys.iter().any(|key| key_text(key).contains("|slots=")) {
            self.places.disturbed(now_ms, now_ms);
        }
    }

    /// Whether something of a counter was lost, in any window, or the key of its tokens.
    fn has_lost(&self, counter: &str) -> bool {
        let name = format!("{{shop|{counter}");
        self.lost.iter().map(|key| key_text(key)).any(|key| {
            key.replace('}', "").contains(&name)
                || counter.starts_with("tokens") && key.contains("{hold-key")
        })
    }

    pub fn reset(&mut self, counter: String, from_ms: u64, to_ms: u64) {
        // The clock may have been set back meanwhile.
        self.resets.push((counter, from_ms.min(to_ms), from_ms.max(to_ms)));
    }

    pub fn set_back(&mut self, from_ms: u64, to_ms: u64) {
        self.jumps_ms.push((from_ms, to_ms));
    }

    /// Whether the promise names a reason for which this window may admit more.
    fn is_excused(&self, counter: &str, window: &Range<u64>) -> bool {
        self.lost.iter().any(|key| is_of_window(key, counter, window.start))
            || self.comes_again(window.end)
    }

    /// Whether the clock was set back behind the end of a window.
    fn comes_again(&self, end_ms: u64) -> bool {
        self.jumps_ms.iter().any(|(from, to)| (to + 1..=*from).contains(&end_ms))
    }

    /// The hits of a call on each of its counters.
    fn hits_of(&self, hits: u64, answer: Answer) -> Bounds {
        if answer.admitted == Some(true) {
            return Bounds::exactly(hits);
        }
        let is_back = !answer.is_split || answer.asked > self.asked_until_cut;
        let reserved = if answer.is_split { hits as i64 } else { 0 };
        Bounds { reserved, ..Bounds::up_to(if is_back { 0 } else { hits }) }
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
        for (call, answer) in &self.calls {
            for counter in &call.counters {
                let (_, length_ms, _) = window_of(counter);
                if call.kind == Kind::Charge {
                    match answer.at {
                        Some(at) => {
                            let window = windows.entry((counter.clone(), at / length_ms));
                            window.or_default().add(self.hits_of(call.hits, *answer));
                        }
                        None if answer.was_at_once => {}
                        None => *perhaps.entry(counter.clone()).or_default() += call.hits,
                    }
                    continue;
                }
                // What was not sent is kept, and what was sent runs: one is counted later, unless it is cut when it is sent.
                let is_known = answer.was_at_once || answer.asked > self.asked_until_late;
                let runs = is_known && answer.asked > self.asked_until_cut;
                let counts = answer.at.is_some() || runs && answer.admitted.is_some();
                let hits = [Bounds::up_to, Bounds::exactly][usize::from(counts)](call.hits);
                let hits = if call.kind == Kind::Refund { hits.negative() } else { hits };
                totals.entry(counter.clone()).or_default().add(hits);
            }
        }
        let is_applied = |commit: &&Commit| **commit == Commit::Applied;
        let twice = |take: &&Take| take.commits.iter().filter(is_applied).count() > 1;
        // Which writes are lost may be known later than that.
        let twice = self.takes.iter().filter(twice).find(|take| !self.has_lost(&take.counter));
        if let Some(take) = twice {
            let broken = format!("a commit was applied twice: {take:?}");
            self.breaks(broken);
        }
        for take in &self.takes {
            totals.entry(take.counter.clone()).or_default().add(self.counts(take));
        }
        for ((counter, _), bounds) in &mut windows {
            bounds.most += perhaps.get(counter).map_or(0, |hits| *hits as i64);
        }
        self.check_denials(&windows, &perhaps);
        for ((counter, window), bounds) in windows {
            let (_, length_ms, limit) = window_of(&counter);
            let span = window * length_ms..(window + 1) * length_ms;
            let has_reset = |(reset, from, to): &(String, u64, u64)| {
                *reset == counter && *from < span.end && span.start <= *to
            };
            if self.is_excused(&counter, &span) || self.resets.iter().any(has_reset) {
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
            if !self.has_lost(&counter) {
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
        if let Some(broken) = self.histories.broken(|end_ms| self.comes_again(end_ms)) {
            self.breaks(broken);
        }
        self.check_keys(database);
    }

    /// The hits that a take has charged, once all of its commits have come.
    fn counts(&self, take: &Take) -> Bounds {
        let Take { estimate, used, answer, commits, .. } = take;
        let is_unknown = |commit: &Commit| matches!(commit, Commit::Unread | Commit::Lost);
        match (answer.admitted, answer.at) {
            (Some(true), Some(_)) if commits.is_empty() => Bounds::exactly(*estimate),
            (Some(true), Some(_)) if commits.iter().all(is_unknown) => {
                Bounds { least: *used as i64, most: *estimate as i64, reserved: 0 }
            }
            (Some(true), Some(_)) => Bounds::exactly(*used),
            (_, Some(_)) => self.hits_of(*estimate, *answer),
            (_, None) if answer.was_at_once => Bounds::default(),
            // It may have run, and nobody has its token.
            (_, None) => Bounds::up_to(*estimate),
        }
    }

    /// A counter holds what was charged for certain, and at most what may have been charged too.
    fn check_used(&mut self, counter: &str, used: u64, bounds: Bounds) {
        let Bounds { least, most, .. } = bounds;
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
                let window = at / length_ms;
                let none = perhaps.get(counter).map_or(0, |hits| *hits as i64);
                let known = windows.get(&(counter.clone(), window));
                let most = known.map_or(none, |bounds| bounds.most + bounds.reserved);
                let span = window * length_ms..(window + 1) * length_ms;
                most + self.leased(counter) + call.hits as i64 <= limit as i64
                    && !self.is_excused(counter, &span)
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
            let is_of =
                |(rule, ..): &&(&str, u64, u64)| name.contains(&format!("|{}=", key_of(rule)));
            let of_rule = WINDOWS.iter().find(is_of);
            // What a reset leaves behind is for the longest hold.
            let of_rule = of_rule.filter(|_| !name.contains(":rs:"));
            let lives_ms = of_rule.map_or(KEPT_MAX_MS, |(_, length, _)| length + KEPT_AFTER_MS);
            match database.ends(&key).flatten() {
                Some(ends) if ends <= now + lives_ms => {}
                ends => self.breaks(format!("the key {name} ends at {ends:?}, now is {now}")),
            }
        }
    }
}

pub fn window_of(counter: &str) -> (&'static str, u64, u64) {
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
    let key = database.keys().into_iter().find(|key| is_of_window(key, counter, start_ms))?;
    Some(count(database, &key))
}

fn is_of_window(key: &[u8], counter: &str, start_ms: u64) -> bool {
    is_of(key, counter) && key.ends_with(format!(":{}", start_ms / 1000).as_bytes())
}

/// The key of a rule in descriptors.
fn key_of(rule: &str) -> &str {
    match rule {
        "long" | "short" => "nested",
        other => other,
    }
}

fn key_text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

fn is_of(key: &[u8], counter: &str) -> bool {
    let (key, (rule, user)) = (key_text(key), counter.split_once('=').unwrap());
    let length = match rule {
        "long" => "60s:",
        "short" => "10s:",
        _ => "",
    };
    let counter = format!("{}={user}", key_of(rule));
    let of_domain = format!("{{shop}}|{counter}:");
    key.starts_with(&format!("tk1:fw:{length}"))
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
