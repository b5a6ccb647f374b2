//! The keys that are decided most, denied most, and nearest to their limit now, in bounded memory. A key is a counter
//! of a rule. Each worker counts its own calls, so that workers do not wait for each other; a reading merges them.

mod merge;
mod name;
mod space_saving;
mod worker;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub(crate) use self::name::KeyName;
pub use self::name::TopKeyNames;
pub(crate) use self::worker::TopList;
use self::{
    merge::Merged,
    name::ShownKey,
    space_saving::{KeyCount, LastTally},
    worker::WorkerKeys,
};
use crate::{
    engine::{
        algorithm::account::real,
        decision::Matched,
        directive::{Directive, DirectiveAction},
        key::{self, Counter},
        ledger::{Fit, JudgedBy, Tally, Verdict},
        plan::{JudgedCharge, Plan},
        request::Entry,
        rule::{Limit, Mode},
    },
    process::workers,
};

/// A reading shows the period that runs and the one before: the last 30 to 60 seconds.
const PERIOD_MS: u64 = 30_000;

const LISTED_MAX: usize = 20;

#[derive(Debug)]
pub struct TopKeys {
    names: TopKeyNames,
    /// The part of a limit from which a key is near it.
    near_ratio: f64,
    began: Instant,
    /// Fast: every decision is hashed.
    hasher: DefaultHashBuilder,
    /// One for each worker, and one for other threads; none if nothing is counted.
    workers: Box<[Mutex<WorkerKeys>]>,
    /// The shortest time between two log lines about denials, in milliseconds, if they are wanted.
    denial_lines_ms: Option<u64>,
    /// When the next one is due, in milliseconds since the beginning.
    denial_due_ms: AtomicU64,
}

/// A key, its limit by an operator's action, and how often it was denied.
pub type LeadingKey = (TopKey, Limit, u64);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TopReport {
    /// The time in which these decisions were made, until now.
    pub seconds: f64,
    pub hottest: Vec<TopKey>,
    pub denied: Vec<TopKey>,
    /// The keys that passed beyond the near-limit ratio, the one with the smallest remaining part of its limit first, and
    /// those without remaining hits last.
    pub nearest: Vec<TopKey>,
    /// The keys that were over a shadow limit most often.
    #[serde(default)]
    pub shadow: Vec<TopKey>,
    /// The keys in the sample that the candidate would deny most often, and those that it alone would admit.
    #[serde(default)]
    pub newly_denied: Vec<TopKey>,
    #[serde(default)]
    pub newly_admitted: Vec<TopKey>,
}

/// One key, and how often it was decided.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TopKey {
    pub domain: String,
    /// The path of the rule, or `override`.
    pub rule: String,
    /// The descriptor, or its digest.
    pub key: String,
    /// The decisions that the list counts: at most this many.
    pub count: u64,
    /// How many too many `count` may be.
    pub error: u64,
    /// Remaining hits after the last decision.
    pub remaining: u64,
    /// Hits that open holds hold now beside the used ones, if the store knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Of the remaining hits, those that the replica has leased and not spent now, if the limit leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit: Option<u64>,
    pub capacity: u64,
    /// The limit, such as `10 per minute`.
    pub limit: String,
    pub algorithm: String,
    /// What an operator has set for it, such as `limit 10 5f2c01aa`.
    #[serde(rename = "override", default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<String>,
    /// The requested hits of at least `count - error` decisions.
    #[serde(skip)]
    pub hits: u64,
    /// The counter, if its open holds or its credit can be read.
    #[serde(skip)]
    pub counter: Option<Counter>,
}

impl TopReport {
    pub fn lists_mut(&mut self) -> [&mut Vec<TopKey>; 6] {
        let Self { hottest, denied, nearest, shadow, newly_denied, newly_admitted, .. } = self;
        [hottest, denied, nearest, shadow, newly_denied, newly_admitted]
    }

    pub fn keys_mut(&mut self) -> impl Iterator<Item = &mut TopKey> {
        self.lists_mut().into_iter().flatten()
    }
}

impl TopKeys {
    /// Counts for this number of workers. Hits beyond `near_ratio` of a limit, from 0 to 1, are near it.
    pub fn new(names: TopKeyNames, workers: usize, near_ratio: f64) -> Self {
        let count = match names {
            TopKeyNames::Off => 0,
            TopKeyNames::Digests | TopKeyNames::Values => workers.saturating_add(1),
        };
        Self {
            names,
            near_ratio,
            began: Instant::now(),
            hasher: DefaultHashBuilder::default(),
            workers: (0..count).map(|_| Mutex::new(WorkerKeys::new())).collect(),
            denial_lines_ms: None,
            denial_due_ms: AtomicU64::new(0),
        }
    }

    /// Also logs denials, with at least `every` between two lines.
    pub fn logging_denials(mut self, every: Option<Duration>) -> Self {
        self.denial_lines_ms = every.and_then(|every| u64::try_from(every.as_millis()).ok());
        self
    }

    /// Counts the decision about a call that arrived at `at`. Log lines show digests by `digest`.
    pub fn record(
        &self,
        plan: &Plan,
        verdict: &Verdict,
        at: Instant,
        digest: impl Fn(u64) -> String,
    ) {
        if let (true, Some(every_ms)) = (verdict.denied, self.denial_lines_ms) {
            self.log_denial(plan, verdict, self.millis(at), every_ms, digest);
        }
        let Some(worker) = self.workers.get(workers::share(self.workers.len())) else { return };
        let mut judged = plan.judged(verdict).enumerate().peekable();
        if judged.peek().is_none() {
            return;
        }
        let at_ms = self.millis(at);
        let mut worker = worker.lock();
        worker.enter(at_ms / PERIOD_MS);
        let skipped = plan.skipped(verdict);
        for (index, judged) in judged {
            let JudgedCharge { matched, directive, charge, tally } = judged;
            let is_exempt = directive.is_some_and(|directive| directive.exempts());
            if charge.hits.asks_nothing() || is_exempt || skipped.contains(&index) {
                continue;
            }
            let key = charge.counter.hash_of_identity(&self.hasher);
            let last = last_tally(&charge.counter.limit, tally, at_ms, charge.hits.charged());
            let name = || KeyName::new(matched, directive, &charge.counter, self.names);
            let current =
                |known: &KeyName| known.is_current(matched, directive, &charge.counter.limit);
            worker.add(TopList::Hottest, key, last, current, name);
            let further = self.further_list(judged, verdict);
            let is_tried = || tally.over_shadow(charge, verdict.denied).is_some();
            let tried = (further != Some(TopList::Shadow) && is_tried()).then_some(TopList::Shadow);
            for list in further.into_iter().chain(tried) {
                worker.add(list, key, last, current, name);
            }
        }
    }

    /// Counts a key in one of the lists, by the limit of its counter, which it is over.
    pub(crate) fn record_in(
        &self,
        list: TopList,
        matched: &Matched,
        directive: Option<&Arc<Directive>>,
        counter: &Counter,
    ) {
        let Some(worker) = self.workers.get(workers::share(self.workers.len())) else { return };
        let (at_ms, limit) = (self.millis(Instant::now()), &counter.limit);
        let mut worker = worker.lock();
        worker.enter(at_ms / PERIOD_MS);
        let last = last_tally(limit, &Tally::new(Fit::Over, Duration::ZERO), at_ms, 0);
        worker.add(
            list,
            counter.hash_of_identity(&self.hasher),
            last,
            |known| known.is_current(matched, directive, limit),
            || KeyName::new(matched, directive, counter, self.names),
        );
    }

    /// Logs the first key that a call was denied for, unless a line is too recent.
    fn log_denial(
        &self,
        plan: &Plan,
        verdict: &Verdict,
        at_ms: u64,
        every_ms: u64,
        digest: impl Fn(u64) -> String,
    ) {
        let due_ms = self.denial_due_ms.load(Ordering::Relaxed);
        let is_denied = |judged: &JudgedCharge<'_>| {
            self.further_list(*judged, verdict) == Some(TopList::Denied)
        };
        let next_ms = at_ms.saturating_add(every_ms);
        if at_ms >= due_ms
            && let Some(JudgedCharge { matched, directive, charge, tally }) =
                plan.judged(verdict).find(is_denied)
            && self
                .denial_due_ms
                .compare_exchange(due_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            let name = KeyName::new(matched, directive, &charge.counter, self.names);
            tracing::info!(
                domain = &*name.domain,
                rule = name.rule_path(),
                key = name.text(digest),
                limit = %name.limit,
                by = if tally.judged_by == JudgedBy::Counter { "limit" } else { "on_store_failure" },
                "denied"
            );
        }
    }

    /// The keys that lead now, shown by `digest` unless by values; `None` if nothing is counted.
    pub fn report(&self, now: Instant, digest: impl Fn(u64) -> String) -> Option<TopReport> {
        if self.workers.is_empty() {
            return None;
        }
        let now_ms = self.millis(now);
        let period = now_ms / PERIOD_MS;
        for worker in &self.workers {
            worker.lock().enter(period);
        }
        let from_ms = period.saturating_sub(1).saturating_mul(PERIOD_MS);
        let mut nearest = self.counts(TopList::Nearest);
        nearest.retain(|count| count.last.resets_at_ms > now_ms);
        nearest.sort_by(|one, other| {
            let remaining = one.last.part_remaining().total_cmp(&other.last.part_remaining());
            // Those that have used it up are at it, not near it.
            (one.last.remaining == 0).cmp(&(other.last.remaining == 0)).then(remaining)
        });
        let leading = |list| self.named(list, &self.counts(list), &digest);
        Some(TopReport {
            seconds: Duration::from_millis(now_ms.saturating_sub(from_ms)).as_secs_f64(),
            hottest: leading(TopList::Hottest),
            denied: leading(TopList::Denied),
            nearest: self.named(TopList::Nearest, &nearest, &digest),
            shadow: leading(TopList::Shadow),
            newly_denied: leading(TopList::NewlyDenied),
            newly_admitted: leading(TopList::NewlyAdmitted),
        })
    }

    /// The keys of these counters that lead now, or if there are none, of the counters of a domain whose descriptors
    /// match: each with its limit by an action, and how often it was denied. With the time in which they were counted;
    /// `None` if nothing is counted.
    pub fn leading(
        &self,
        now: Instant,
        domain: &str,
        counters: &[&Counter],
        action: DirectiveAction,
        matches: impl Fn(&[Entry]) -> bool,
        digest: impl Fn(u64) -> String,
    ) -> Option<(f64, Vec<LeadingKey>)> {
        let seconds = self.report(now, &digest)?.seconds;
        let keys: Vec<u64> =
            counters.iter().map(|counter| counter.hash_of_identity(&self.hasher)).collect();
        let denied: HashMap<u64, u64> = self
            .counts(TopList::Denied)
            .into_iter()
            .map(|count| (count.key, count.count))
            .collect();
        let mut leading = Vec::new();
        for count in self.counts(TopList::Hottest) {
            let Some(name) = self.name(TopList::Hottest, count.key) else { continue };
            let is_match = || match &name.shown {
                ShownKey::Descriptor(descriptor) => {
                    key::entries(descriptor).is_some_and(|entries| matches(&entries))
                }
                ShownKey::Id(_) => false,
            };
            let is_asked = keys.contains(&count.key)
                || keys.is_empty() && *name.domain == *domain && is_match();
            if is_asked {
                let (limit, denied) = (name.limit_by(action), denied.get(&count.key).copied());
                leading.push((top_key(&count, name, &digest), limit, denied.unwrap_or(0)));
            }
        }
        Some((seconds, leading))
    }

    /// Whether values are known, so that patterns find keys.
    pub fn knows_values(&self) -> bool {
        self.names == TopKeyNames::Values
    }

    pub fn shows_digests(&self) -> bool {
        self.names == TopKeyNames::Digests
    }

    /// The list of a charge besides the list of all keys.
    fn further_list(&self, judged: JudgedCharge<'_>, verdict: &Verdict) -> Option<TopList> {
        let limit = &judged.charge.counter.limit;
        let is_ban = |set: &Arc<Directive>| set.action == DirectiveAction::Ban;
        match judged.tally.fit {
            Fit::Over if limit.mode == Mode::Shadow => Some(TopList::Shadow),
            Fit::Over if verdict.denied || judged.directive.is_some_and(is_ban) => {
                Some(TopList::Denied)
            }
            Fit::Fits { remaining } if is_near(limit, remaining, self.near_ratio) => {
                Some(TopList::Nearest)
            }
            Fit::Over | Fit::Fits { .. } | Fit::Commit(_) => None,
        }
    }

    fn counts(&self, list: TopList) -> Vec<KeyCount> {
        let mut merged = Merged::default();
        for worker in &self.workers {
            worker.lock().merge_into(&mut merged, list);
        }
        merged.counts()
    }

    /// What the worker keeps of a key that has counted it last.
    fn name(&self, list: TopList, key: u64) -> Option<KeyName> {
        let of = |worker: &Mutex<WorkerKeys>| {
            worker.lock().name(list, key).map(|(at_ms, name)| (at_ms, name.clone()))
        };
        let named = self.workers.iter().filter_map(of);
        named.max_by_key(|(at_ms, _)| *at_ms).map(|(_, name)| name)
    }

    /// The first of these keys that are named still.
    fn named(
        &self,
        list: TopList,
        counts: &[KeyCount],
        digest: &impl Fn(u64) -> String,
    ) -> Vec<TopKey> {
        let mut keys = Vec::new();
        for count in counts {
            if let Some(name) = self.name(list, count.key) {
                keys.push(top_key(count, name, digest));
            }
            if keys.len() >= LISTED_MAX {
                break;
            }
        }
        keys
    }

    fn millis(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

fn top_key(count: &KeyCount, name: KeyName, digest: impl Fn(u64) -> String) -> TopKey {
    TopKey {
        domain: name.domain.to_string(),
        rule: name.rule_path().to_owned(),
        key: name.text(digest),
        count: count.count,
        error: count.error,
        hits: count.last.hits,
        remaining: count.last.remaining,
        held: None,
        credit: None,
        capacity: count.last.capacity,
        limit: name.limit.to_string(),
        algorithm: name.limit.algorithm.name().to_owned(),
        directive: name.directive.map(|directive| directive.to_string()),
        counter: name.counter.map(|counter| *counter),
    }
}

fn last_tally(limit: &Limit, tally: &Tally, at_ms: u64, hits: u64) -> LastTally {
    let remaining = match tally.fit {
        Fit::Fits { remaining } => remaining,
        Fit::Over | Fit::Commit(_) => 0,
    };
    let reset_ms = u64::try_from(tally.reset.as_millis()).unwrap_or(u64::MAX);
    let resets_at_ms = at_ms.saturating_add(reset_ms);
    LastTally { at_ms, remaining, capacity: limit.capacity(), resets_at_ms, hits }
}

fn is_near(limit: &Limit, remaining: u64, near_ratio: f64) -> bool {
    let capacity = limit.capacity();
    let used = capacity.saturating_sub(remaining);
    used > 0 && real(used) >= real(capacity) * near_ratio
}

#[cfg(test)]
mod tests {
    use super::{space_saving::SpaceSaving, *};
    use crate::engine::{
        decision::Matched,
        request::{Descriptor, Hits, Request},
        rule::{Policy, Priority, Rule, Unit},
        rule_set::RuleSet,
        time::Timestamp,
    };

    const DIGESTS: TopKeyNames = TopKeyNames::Digests;

    fn rules(mode: Mode) -> RuleSet {
        let mut rules = RuleSet::default();
        let limit = Limit { mode, ..Limit::new(10, Unit::Minute, 1).unwrap() };
        let rule = Rule::new("user", "f:1".into(), Policy::Limited(vec![Arc::new(limit)]));
        rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
        rules
    }

    fn entry(user: &'static str) -> Entry {
        Entry { key: "user".into(), value: user.into() }
    }

    /// Records a decision about one user, `after_s` seconds after the beginning.
    fn record(keys: &TopKeys, mode: Mode, user: &'static str, fit: Fit, after_s: u64) {
        let entries = vec![entry(user)];
        let descriptors = vec![Descriptor::new(entries, Hits::Charge(1))];
        let plan = Plan::draw(&rules(mode), &Request { domain: "shop".into(), descriptors });
        let tally = Tally::new(fit, Duration::from_secs(20));
        let denied = fit == Fit::Over && mode != Mode::Shadow;
        let verdict = Verdict { denied, tallies: vec![tally], ..Verdict::default() };
        keys.record(&plan, &verdict, keys.began + Duration::from_secs(after_s), digest);
    }

    fn digest(id: u64) -> String {
        format!("{id:016x}")
    }

    fn report(keys: &TopKeys, at_s: u64) -> TopReport {
        keys.report(keys.began + Duration::from_secs(at_s), digest).unwrap()
    }

    fn enforced(keys: &TopKeys, user: &'static str, fit: Fit, after_s: u64) {
        record(keys, Mode::Enforced, user, fit, after_s);
    }

    fn fits(remaining: u64) -> Fit {
        Fit::Fits { remaining }
    }

    /// The keys of the three lists, with their counts.
    #[track_caller]
    fn check(keys: &TopKeys, at_s: u64, expected: [&[(&str, u64)]; 3]) {
        let report = report(keys, at_s);
        let lists = [report.hottest, report.denied, report.nearest];
        let lists =
            lists.map(|list| list.into_iter().map(|key| (key.key, key.count)).collect::<Vec<_>>());
        let expected = expected.map(|list| {
            list.iter().map(|(key, count)| (format!("user={key}"), *count)).collect::<Vec<_>>()
        });
        assert_eq!(lists, expected);
    }

    #[test]
    fn keys_are_listed_by_decisions_by_denials_and_by_what_remains() {
        let keys = TopKeys::new(TopKeyNames::Values, 2, 0.8);
        for (user, fit) in [
            ("alice", fits(9)),
            ("alice", fits(8)),
            ("alice", fits(7)),
            ("bob", Fit::Over),
            ("bob", Fit::Over),
            ("carol", fits(2)),
            ("erin", fits(0)),
            ("dave", fits(1)),
        ] {
            enforced(&keys, user, fit, 1);
        }
        let report = report(&keys, 2);
        let hottest: Vec<_> = report.hottest.iter().map(|key| &*key.key).take(2).collect();
        assert_eq!(hottest, ["user=alice", "user=bob"]);
        let nearest: Vec<_> = report.nearest.iter().map(|key| (&*key.key, key.remaining)).collect();
        assert_eq!(nearest, [("user=dave", 1), ("user=carol", 2), ("user=erin", 0)]);
        let [denied] = &report.denied[..] else { panic!("{report:?}") };
        assert_eq!((&*denied.key, denied.count, denied.error), ("user=bob", 2, 0));
        assert_eq!((&*denied.domain, &*denied.rule), ("shop", "user"));
        assert_eq!((&*denied.limit, denied.remaining, denied.capacity), ("10 per minute", 0, 10));
    }

    #[test]
    fn a_shadow_limit_that_is_exceeded_denies_no_key() {
        let keys = TopKeys::new(TopKeyNames::Values, 1, 0.8);
        record(&keys, Mode::Shadow, "alice", Fit::Over, 1);
        check(&keys, 2, [&[("alice", 1)], &[], &[]]);
    }

    #[test]
    fn decisions_are_forgotten_after_the_next_period() {
        let keys = TopKeys::new(TopKeyNames::Values, 1, 0.8);
        enforced(&keys, "alice", Fit::Over, 10);
        enforced(&keys, "alice", Fit::Over, 40);
        check(&keys, 59, [&[("alice", 2)], &[("alice", 2)], &[]]);
        assert!((report(&keys, 59).seconds - 59.0).abs() < 0.01);
        check(&keys, 60, [&[("alice", 1)], &[("alice", 1)], &[]]);
        assert!((report(&keys, 61).seconds - 31.0).abs() < 0.01);
        check(&keys, 90, [&[], &[], &[]]);
    }

    #[test]
    fn a_key_whose_limit_has_reset_is_near_it_no_longer() {
        let keys = TopKeys::new(TopKeyNames::Values, 1, 0.8);
        enforced(&keys, "alice", fits(0), 1);
        check(&keys, 20, [&[("alice", 1)], &[], &[("alice", 1)]]);
        check(&keys, 21, [&[("alice", 1)], &[], &[]]);
    }

    #[test]
    fn a_digest_shows_no_value_and_is_of_the_descriptor_alone() {
        let digest_of = |user| {
            let keys = TopKeys::new(DIGESTS, 1, 0.8);
            enforced(&keys, user, fits(0), 1);
            let report = report(&keys, 2);
            assert!(!format!("{report:?} {keys:?}").contains(user));
            report.hottest[0].key.clone()
        };
        assert_eq!(digest_of("alice"), digest_of("alice"));
        assert_ne!(digest_of("alice"), digest_of("bob"));
    }

    #[test]
    fn debug_output_shows_no_value_either() {
        let keys = TopKeys::new(TopKeyNames::Values, 1, 0.8);
        enforced(&keys, "alice", fits(0), 1);
        assert!(!format!("{keys:?}").contains("alice"));
    }

    #[test]
    fn a_key_is_named_anew_when_what_applies_to_it_changes_and_its_limit_by_an_action_is_its_classs()
     {
        let mut rules = RuleSet::default();
        let priority = Priority {
            entry: "class".into(),
            shares: vec![("batch".into(), 50)],
            default: 100,
            releases: false,
        };
        let priority = Some(Arc::new(priority));
        let limit = Limit { priority, ..Limit::new(10, Unit::Minute, 1).unwrap() };
        let rule = Rule::new("user", "f:1".into(), Policy::Limited(vec![Arc::new(limit)]));
        rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
        let rule = Arc::clone(rules.domain("shop").unwrap().rules_for(&[entry("a")])[0]);
        let class = rule.limits()[0].for_call(|_| Some(b"batch"));
        let counter = Counter::counted_by(&Arc::from("shop"), &[entry("a")], &[], class);
        let matched = Matched::Rule("shop".into(), rule);
        let name = KeyName::new(&matched, None, &counter, DIGESTS);
        assert!(name.is_current(&matched, None, &counter.limit));
        let directive = Directive {
            id: "1".into(),
            domain: "shop".into(),
            entries: vec![],
            action: DirectiveAction::Times(3),
            set_at: Timestamp::default(),
            until: Timestamp::default(),
        };
        assert!(!name.is_current(&matched, Some(&Arc::new(directive)), &counter.limit));
        let by = |action| name.limit_by(action).capacity();
        assert_eq!(by(DirectiveAction::Limit(100)), 50);
        assert_eq!(by(DirectiveAction::Times(3)), 15);
    }

    #[test]
    fn nothing_is_counted_if_it_is_off() {
        let keys = TopKeys::new(TopKeyNames::Off, 8, 0.8);
        enforced(&keys, "alice", fits(0), 1);
        assert!(keys.report(keys.began, digest).is_none());
    }

    #[test]
    fn a_worker_takes_at_most_a_mebibyte_and_a_half_and_with_values_four() {
        // One thread alone fills the lists of the candidate.
        let keys = 8 * worker::KEYS_MAX;
        let bytes = keys * SpaceSaving::<KeyName>::BYTES_PER_KEY_MAX
            + 8 * SpaceSaving::<KeyName>::BYTES_OF_CELLS;
        assert!(bytes <= 3 << 19, "{bytes}");
        assert!(bytes + keys * name::DESCRIPTOR_BYTES_MAX <= 4 << 20);
    }
}
