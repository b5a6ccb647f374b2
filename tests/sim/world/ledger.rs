//! What clients were answered, and what the server has: the promises, by arithmetic that shares nothing with the service.

use std::{collections::BTreeMap, ops::Range};

use tollkeeper_sim::redis::database::{Database, Value};

/// The length of the windows in milliseconds, and the limit, by the key of the rule.
const WINDOWS: [(&str, u64, u64); 3] =
    [("second", 1000, 20), ("minute", 60_000, 200), ("work", 86_400_000, u64::MAX)];

/// No key lives longer than its window and five minutes more, and none of the others longer than a day.
const KEPT_MAX_MS: u64 = 2 * 86_400_000;

/// What a client asks.
#[derive(Debug, Clone)]
pub struct Call {
    pub counters: Vec<String>,
    pub hits: u64,
}

/// What it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Whether it may pass; `None` without a decision.
    pub admitted: Option<bool>,
    /// When the store has decided, in Unix milliseconds by its clock; `None` if it has not.
    pub at: Option<u64>,
    /// Whether it took no time.
    pub was_at_once: bool,
}

#[derive(Default)]
pub struct Ledger {
    calls: Vec<(Call, Answer)>,
    /// When the server lost its data, by its clock, and the latest time that it had shown.
    losses_ms: Vec<(u64, u64)>,
    /// When its clock was set back: from when, and to when.
    jumps_ms: Vec<(u64, u64)>,
    /// The number of calls when the last connection may have been cut.
    calls_until_cut: usize,
    broken: Option<String>,
}

impl Ledger {
    /// Notes the first promise that is broken.
    pub fn breaks(&mut self, promise: String) {
        self.broken.get_or_insert(promise);
    }

    pub fn broken(&self) -> Option<String> {
        self.broken.clone()
    }

    pub fn calls(&self) -> u64 {
        self.calls.len() as u64
    }

    pub fn answers(&self) -> BTreeMap<&'static str, u64> {
        let mut answers = BTreeMap::new();
        for (_, answer) in &self.calls {
            let name = match (answer.admitted, answer.at) {
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

    /// Connections may be cut now: what is sent may run without an answer.
    pub fn cut(&mut self) {
        self.calls_until_cut = self.calls_until_cut.max(self.calls.len());
    }

    /// From now on connections may turn out to be cut.
    pub const fn cut_for_ever(&mut self) {
        self.calls_until_cut = usize::MAX;
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

    /// Compares all answers with what the server has at the end.
    pub fn close(&mut self, database: &mut Database) {
        let mut windows: BTreeMap<(String, u64), u64> = BTreeMap::new();
        // By counter: the work that is done, and what may have been charged without an answer.
        let (mut done, mut perhaps) = (BTreeMap::new(), BTreeMap::new());
        for (index, (call, answer)) in self.calls.iter().enumerate() {
            for counter in &call.counters {
                let (name, length_ms, _) = window_of(counter);
                let is_debit = name == "work";
                // A debit that is kept while the breaker is open is counted later, unless it is cut when it is sent.
                let is_kept = answer.was_at_once && index >= self.calls_until_cut;
                // Work that is done counts whether it fits or not.
                let counts = is_debit || answer.admitted == Some(true);
                let sum: &mut u64 = match answer.at {
                    Some(at) if !is_debit => {
                        windows.entry((counter.clone(), at / length_ms)).or_default()
                    }
                    None if !is_debit && answer.was_at_once => continue,
                    None if !is_debit || !is_kept || answer.admitted.is_none() => {
                        *perhaps.entry(counter.clone()).or_default() += call.hits;
                        continue;
                    }
                    _ => done.entry(counter.clone()).or_default(),
                };
                *sum += if counts { call.hits } else { 0 };
            }
        }
        for ((counter, window), admitted) in windows {
            let (_, length_ms, limit) = window_of(&counter);
            let span = window * length_ms..(window + 1) * length_ms;
            if self.is_excused(&span) {
                continue;
            }
            if admitted > limit {
                let start = span.start;
                self.breaks(format!(
                    "{counter} admitted {admitted} of {limit} in the window at {start}"
                ));
            }
            // What was denied is not charged.
            if let Some(used) = used_in(database, &counter, span.start) {
                self.check_used(&counter, used, admitted, &perhaps);
            }
        }
        for (counter, done) in done {
            if self.losses_ms.is_empty() {
                self.check_used(&counter, used(database, &counter), done, &perhaps);
            }
        }
        self.check_keys(database);
    }

    /// A counter holds what was charged for certain, and at most what may have been charged too.
    fn check_used(
        &mut self,
        counter: &str,
        used: u64,
        least: u64,
        perhaps: &BTreeMap<String, u64>,
    ) {
        let most = least + perhaps.get(counter).unwrap_or(&0);
        if used < least || used > most {
            self.breaks(format!("{counter} has {used} hits, which are not {least} to {most}"));
        }
    }

    fn check_keys(&mut self, database: &mut Database) {
        let now = database.now_ms();
        for key in database.keys() {
            let name = String::from_utf8_lossy(&key).into_owned();
            match database.ends(&key).flatten() {
                Some(ends) if ends <= now + KEPT_MAX_MS => {}
                ends => self.breaks(format!("the key {name} ends at {ends:?}, now is {now}")),
            }
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

fn is_of(key: &[u8], counter: &str) -> bool {
    let key = String::from_utf8_lossy(key);
    key.starts_with("tk1:fw:") && key.contains(&format!("{{shop|{counter}}}"))
}

fn count(database: &mut Database, key: &[u8]) -> u64 {
    match database.value(key) {
        Some(Value::Text(text)) => String::from_utf8_lossy(text).parse().unwrap(),
        other => panic!("{other:?}"),
    }
}
