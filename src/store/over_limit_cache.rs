//! Denials that a shared store gave within the last second, answered without asking it again.
//!
//! A refund or a reset by another replica is seen after a second at most, and nothing is ever admitted
//! here. Only a store whose denials are exact may stand behind it.

mod entries;

use std::{
    hash::RandomState,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use self::entries::{CachedTally, Entries, LIFE_MAX};
use super::Clock;
use crate::{
    engine::{
        key::Counter,
        ledger::{self, Charge, Judgement, Tally, Verdict},
    },
    telemetry::StoreMetrics,
};

/// How many entries share a lock: few enough that a sweep of them keeps nobody waiting.
const ENTRIES_OF_A_LOCK: usize = 4096;

/// What the store last said of counters that were over, and of those charged in the same calls.
#[derive(Debug)]
pub struct OverLimitCache {
    shards: Vec<Mutex<Entries>>,
    /// Chooses the shard, and the place in it.
    hasher: RandomState,
    began: Instant,
    /// From when on nothing that is known counts, in milliseconds from `began`. Until the first denial,
    /// and a second after the last, a call pays this one load.
    quiet_from_ms: AtomicU64,
    clock: Clock,
    metrics: StoreMetrics,
}

impl OverLimitCache {
    /// A cache of at most `entries_max` counters; 0 turns it off. `clock` gives the windows of counters
    /// of which nothing is known.
    pub fn new(entries_max: usize, clock: Clock, metrics: StoreMetrics) -> Self {
        let count = entries_max.div_ceil(ENTRIES_OF_A_LOCK);
        let entries_max = entries_max.checked_div(count).unwrap_or(0);
        Self {
            shards: (0..count).map(|_| Mutex::new(Entries::new(entries_max))).collect(),
            hasher: RandomState::new(),
            began: Instant::now(),
            quiet_from_ms: AtomicU64::new(0),
            clock,
            metrics,
        }
    }

    /// The tallies of a call that is known to be denied and whose denial changes nothing; `None` if the
    /// store must be asked.
    pub fn answer(&self, charges: &[Charge], now: Instant) -> Option<Vec<Tally>> {
        if self.is_quiet(now) || charges.iter().any(Charge::stands_when_denied) {
            return None;
        }
        // Nothing is allocated for a call that goes on to the store.
        if !charges.iter().any(|charge| self.is_known_to_deny(charge, charges, now)) {
            return None;
        }
        let mut tallies = Vec::with_capacity(charges.len());
        for charge in charges {
            let asked = ledger::asked(charge, charges);
            let tally = match self.known(charge, charges, now) {
                Some(tally) => tally,
                None => Tally::unused(&charge.counter.limit, asked, (self.clock)()),
            };
            if let Verdict::Fits { remaining } = tally.verdict
                && asked > u64::from(remaining)
            {
                // More than it last had: only the store knows whether that fits now.
                return None;
            }
            tallies.push(tally);
        }
        // The entry that denied may have gone meanwhile.
        denies_uncharged(charges, &tallies).then(|| {
            self.metrics.cached();
            tallies
        })
    }

    /// Learns from the store's answer to a call that was sent no earlier than `sent`. Of a call that is
    /// denied and not charged all tallies are kept; of other calls, those that correct what is known.
    pub fn learn(&self, charges: &[Charge], judgement: &Judgement, sent: Instant) {
        let denied = denies_uncharged(charges, &judgement.tallies);
        if !denied && self.is_quiet(sent) {
            return;
        }
        for (index, (charge, tally)) in charges.iter().zip(&judgement.tallies).enumerate() {
            // A corrupt counter has no tally of its own.
            if judgement.corrupt.contains(&index) {
                continue;
            }
            let tally = CachedTally::new(*tally, || ledger::asked(charge, charges), sent);
            let Some((hash, mut entries)) = self.entries(&charge.counter) else { return };
            if denied {
                entries.keep(hash, &charge.counter, tally);
                let quiet_from_ms = self.millis(sent + LIFE_MAX).saturating_add(1);
                self.quiet_from_ms.fetch_max(quiet_from_ms, Ordering::Relaxed);
            } else {
                entries.correct(hash, &charge.counter, tally);
            }
        }
    }

    /// Forgets a counter that was reset before `now`, under every limit. Denials that the store was asked
    /// for earlier are not kept either, though their answers arrive later: which of the two Redis ran
    /// first is not known.
    pub fn forget(&self, counter: &Counter, now: Instant) {
        if let Some((hash, mut entries)) = self.entries(counter) {
            entries.forget(hash, counter, now);
        }
    }

    /// Forgets the counters to which a call that ended before `now` gave hits back.
    pub fn forget_refunded(&self, charges: &[Charge], now: Instant) {
        for charge in charges.iter().filter(|charge| charge.hits.is_refund()) {
            self.forget(&charge.counter, now);
        }
    }

    fn is_known_to_deny(&self, charge: &Charge, charges: &[Charge], now: Instant) -> bool {
        self.known(charge, charges, now).is_some_and(|tally| charge.denies_uncharged(&tally))
    }

    /// What is known of one charge of these.
    fn known(&self, charge: &Charge, charges: &[Charge], now: Instant) -> Option<Tally> {
        let (hash, entries) = self.entries(&charge.counter)?;
        let known = entries.find(hash, &charge.counter, now)?;
        Some(known.tally(|| ledger::asked(charge, charges), &charge.counter.limit, now))
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.millis(now) >= self.quiet_from_ms.load(Ordering::Relaxed)
    }

    fn millis(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// A counter's hash, and the entries among which its own is; `None` if the cache is off.
    fn entries(&self, counter: &Counter) -> Option<(u64, MutexGuard<'_, Entries>)> {
        let hash = counter.hash_of_identity(&self.hasher);
        // Not by the bits that choose the place in a shard's table.
        let shards = u64::try_from(self.shards.len()).ok()?;
        let shard = usize::try_from((hash >> 32).checked_rem(shards)?).ok()?;
        let entries = self.shards.get(shard)?;
        // Nothing panics while the lock is held, and if it did, each entry would still be whole.
        Some((hash, entries.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn denies_uncharged(charges: &[Charge], tallies: &[Tally]) -> bool {
    charges.iter().zip(tallies).any(|(charge, tally)| charge.denies_uncharged(tally))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::engine::{
        request::{Entry, Hits},
        rule::{Algorithm, Limit, Mode, Unit, WhenDenied},
        time::Timestamp,
    };

    /// A cache, and what it is told and asked so many milliseconds after its begin.
    struct Scene(OverLimitCache);

    impl Scene {
        fn new() -> Self {
            Self::of(1000)
        }

        fn of(entries_max: usize) -> Self {
            let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
            // A quarter of an hour has passed of what hours there are.
            Self(OverLimitCache::new(entries_max, || Timestamp::from_secs(900), metrics))
        }

        fn at(&self, ms: u64) -> Instant {
            self.0.began + Duration::from_millis(ms)
        }

        /// `over 500` is denied for half a second, `7 left 500` is not.
        fn hears(&self, sent_ms: u64, call: &str, told: &str) {
            self.0.learn(&charges(call), &judgement(told), self.at(sent_ms));
        }

        /// A call with refunds was answered.
        fn refunds(&self, ms: u64, call: &str) {
            self.0.forget_refunded(&charges(call), self.at(ms));
        }

        #[track_caller]
        fn check(&self, ms: u64, call: &str, expected: &str) {
            let tallies = self.0.answer(&charges(call), self.at(ms));
            let told = tallies.map_or("asks".to_owned(), |tallies| {
                tallies.iter().map(spell).collect::<Vec<_>>().join(", ")
            });
            assert_eq!(told, expected, "{ms} ms: {call}");
        }
    }

    fn judgement(told: &str) -> Judgement {
        Judgement { tallies: told.split(", ").map(tally).collect(), ..Judgement::default() }
    }

    fn tally(text: &str) -> Tally {
        let (said, reset) = text.rsplit_once(' ').unwrap();
        let verdict = match said.split_once(' ') {
            None => Verdict::Over,
            Some((remaining, _)) => Verdict::Fits { remaining: remaining.parse().unwrap() },
        };
        Tally { verdict, reset: Duration::from_millis(reset.parse().unwrap()) }
    }

    fn spell(Tally { verdict, reset }: &Tally) -> String {
        match verdict {
            Verdict::Over => format!("over {}", reset.as_millis()),
            Verdict::Fits { remaining } => format!("{remaining} left {}", reset.as_millis()),
        }
    }

    /// A call such as `take 3 of a/5, look b/9, give 1 to a/5`: the number behind the slash is the
    /// limit by the hour. A take is also spelled `count`, where it counts when denied, and `shadow`
    /// or `quota`; a look at what counts when denied is a `glance`, and `drop` is a take of a bucket.
    fn charges(call: &str) -> Vec<Charge> {
        call.split(", ").map(charge).collect()
    }

    fn charge(text: &str) -> Charge {
        let words: Vec<&str> = text.split(' ').collect();
        let (verb, counter) = (words[0], words[words.len() - 1]);
        let (user, number) = counter.split_once('/').unwrap();
        let mut limit = Limit::new(number.parse().unwrap(), Unit::Hour, 1).unwrap();
        match verb {
            "count" | "glance" => limit.when_denied = WhenDenied::Counted,
            "shadow" => limit.mode = Mode::Shadow,
            "quota" => limit.mode = Mode::Quota,
            "drop" => limit.algorithm = Algorithm::TokenBucket { burst: limit.requests_per_unit },
            _ => {}
        }
        let hits = match verb {
            "look" | "glance" => Hits::Look,
            "give" => Hits::Refund(words[1].parse().unwrap()),
            _ => Hits::Charge(words[1].parse().unwrap()),
        };
        let entries = [Entry { key: "user".into(), value: user.to_owned().into() }];
        Charge { counter: Counter::new("shop", &entries, Arc::new(limit)), hits, caller: None }
    }

    #[test]
    fn what_is_over_is_over_for_a_second_at_most() {
        let scene = Scene::new();
        scene.check(0, "take 1 of a/5", "asks");
        scene.hears(0, "take 1 of a/5", "over 60000");
        scene.check(0, "take 1 of a/5", "over 60000");
        scene.check(999, "take 1 of a/5", "over 59001");
        scene.check(999, "look a/5", "over 59001");
        scene.check(999, "take 1 of b/5", "asks");
        scene.check(1000, "take 1 of a/5", "asks");
    }

    #[test]
    fn a_reset_that_comes_sooner_ends_it() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5", "over 300");
        scene.check(298, "take 1 of a/5", "over 2");
        // The store's clock may have been nearly a millisecond further than it told.
        scene.check(299, "take 1 of a/5", "asks");
    }

    #[test]
    fn what_was_left_may_still_be_asked_for() {
        let scene = Scene::new();
        scene.hears(0, "take 4 of a/5", "over 60000");
        scene.check(10, "take 4 of a/5", "over 59990");
        scene.check(10, "take 9 of a/5", "over 59990");
        scene.check(10, "take 3 of a/5", "asks");
        scene.check(10, "look a/5", "asks");
        // Hits of one counter are judged by their sum.
        scene.check(10, "take 2 of a/5, take 2 of a/5", "over 59990, over 59990");
        scene.check(10, "take 2 of a/5, take 2 of b/5", "asks");
        // The least that was left is what counts, as long as it does.
        scene.hears(100, "take 2 of a/5", "over 60000");
        scene.hears(200, "take 3 of a/5", "over 60000");
        scene.check(300, "take 2 of a/5", "over 59800");
        scene.check(1100, "take 3 of a/5", "asks");
    }

    #[test]
    fn the_later_question_counts_whenever_its_answer_arrives() {
        let scene = Scene::new();
        scene.hears(200, "take 1 of a/5", "over 60000");
        scene.hears(100, "take 1 of a/5", "4 left 60000");
        scene.check(300, "take 1 of a/5", "over 59900");
        scene.hears(300, "take 1 of a/5", "4 left 60000");
        scene.check(400, "take 1 of a/5", "asks");
        scene.hears(200, "take 1 of a/5", "over 60000");
        scene.check(400, "take 1 of a/5", "asks");
    }

    #[test]
    fn another_limit_on_the_same_counter_is_not_over() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5", "over 60000");
        scene.check(0, "take 1 of a/6", "asks");
        scene.check(0, "drop 1 of a/5", "asks");
        scene.check(0, "take 1 of a/6, take 1 of a/5", "6 left 2700000, over 60000");
        // But their hits are asked of the one counter that they have.
        scene.hears(0, "take 1 of b/5, take 1 of b/6", "over 60000, 2 left 60000");
        scene.check(0, "take 1 of b/5", "asks");
        scene.check(0, "take 1 of b/5, take 1 of b/6", "over 60000, 2 left 60000");
    }

    #[test]
    fn siblings_tell_what_they_last_had_or_what_one_has_that_nobody_used() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5, take 1 of b/9", "over 60000, 7 left 60000");
        scene.check(10, "take 1 of a/5, take 1 of b/9", "over 59990, 7 left 59990");
        // Calls that pass tell it too, of what was asked before.
        scene.hears(20, "take 1 of b/9", "6 left 60000");
        scene.hears(20, "take 1 of c/9", "6 left 60000");
        let call = "take 1 of b/9, take 1 of c/9, drop 1 of d/9, take 1 of a/5";
        scene.check(30, call, "6 left 59990, 9 left 2700000, 9 left 0, over 59970");
        // Of one that was over for more it is known how many are left at most.
        scene.hears(30, "take 5 of e/9, take 1 of a/5", "over 60000, over 60000");
        scene.check(30, "take 1 of e/9, take 1 of a/5", "4 left 60000, over 59970");
    }

    /// Promise 2g: a status is OVER_LIMIT where its own charge does not fit.
    #[test]
    fn a_sibling_that_can_never_fit_is_over_too() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5", "over 60000");
        scene.check(0, "take 1 of a/5, take 1 of b/0", "over 60000, over 2700000");
        scene.check(0, "take 1 of a/5, look b/0", "over 60000, over 2700000");
        scene.check(0, "take 1 of a/5, shadow 1 of b/0", "over 60000, over 2700000");
        scene.check(0, "take 1 of a/5, take 10 of b/9", "over 60000, over 2700000");
        scene.check(0, "take 1 of a/5, drop 10 of b/9", "over 60000, over 0");
        let call = "take 1 of a/5, take 5 of b/9, take 5 of b/9";
        scene.check(0, call, "over 60000, over 2700000, over 2700000");
        // What exceeds the limit never fits, however much was left at most.
        scene.hears(0, "take 20 of c/9, take 1 of a/5", "over 60000, over 60000");
        scene.check(0, "take 10 of c/9, take 1 of a/5", "over 60000, over 60000");
    }

    #[test]
    fn a_sibling_that_asks_for_more_than_it_last_had_must_be_judged_by_the_store() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5, take 1 of b/9", "over 60000, 7 left 60000");
        scene.check(10, "take 1 of a/5, take 7 of b/9", "over 59990, 7 left 59990");
        scene.check(10, "take 1 of a/5, take 8 of b/9", "asks");
        scene.check(10, "take 1 of a/5, take 4 of b/9, take 4 of b/9", "asks");
        scene.hears(20, "take 1 of a/5, take 8 of b/9", "over 60000, over 60000");
        scene.check(30, "take 1 of a/5, take 8 of b/9", "over 59970, over 59990");
    }

    #[test]
    fn only_what_denies_for_free_answers_a_call() {
        let scene = Scene::new();
        let over = "over 60000, over 60000, over 60000, over 60000";
        scene.hears(0, "take 1 of a/5, count 1 of b/5, shadow 1 of c/5, quota 1 of d/5", over);
        for call in ["count 1 of b/5", "glance b/5", "shadow 1 of c/5", "quota 1 of d/5"] {
            scene.check(0, call, "asks");
        }
        // Quotas are not charged where an enforced limit denies for free.
        let call = "take 1 of a/5, shadow 1 of c/5, quota 1 of d/5, glance b/5";
        scene.check(0, call, over);
        scene.hears(0, "count 1 of e/5", "over 60000");
        scene.check(0, "look a/5, glance e/5", "over 60000, 5 left 2700000");
    }

    #[test]
    fn what_is_charged_or_given_back_in_a_denied_call_must_reach_the_store() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5", "over 60000");
        scene.check(0, "take 1 of a/5, count 1 of b/5", "asks");
        scene.check(0, "take 1 of a/5, give 1 to b/5", "asks");
        scene.check(0, "take 1 of a/5, give 0 to a/5", "asks");
    }

    #[test]
    fn a_refund_ends_it_and_a_denial_that_may_have_run_before_it_is_not_kept() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5", "over 60000");
        // The denial was sent after the refund and ran before it: in one batch, and in its first script.
        scene.refunds(30, "give 1 to a/5");
        scene.hears(20, "take 1 of a/5", "over 60000");
        scene.check(40, "take 1 of a/5", "asks");
        scene.hears(40, "take 1 of a/5", "over 60000");
        scene.check(50, "take 1 of a/5", "over 59990");
    }

    #[test]
    fn a_refund_or_a_reset_under_one_limit_ends_it_under_every_limit_of_the_counter() {
        let scene = Scene::new();
        let over_both = || {
            scene.hears(0, "take 1 of a/5", "over 60000");
            scene.hears(0, "take 1 of a/6", "over 60000");
        };
        over_both();
        scene.check(0, "take 1 of a/6", "over 60000");
        scene.refunds(10, "give 1 to a/9");
        scene.check(20, "take 1 of a/5", "asks");
        scene.check(20, "take 1 of a/6", "asks");

        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5", "over 60000");
        scene.0.forget(&charge("look a/6").counter, scene.at(10));
        scene.check(20, "take 1 of a/5", "asks");
        // Another algorithm on the same descriptor is another counter.
        scene.hears(30, "take 1 of a/5", "over 60000");
        scene.refunds(40, "drop 1 of a/5");
        scene.check(50, "take 1 of a/5", "over 59980");
    }

    #[test]
    fn of_one_counter_only_a_few_limits_are_kept() {
        let scene = Scene::new();
        for limit in 1..=100 {
            scene.hears(0, &format!("take 1 of a/{limit}"), "over 60000");
        }
        scene.check(10, "take 1 of a/96", "asks");
        scene.check(10, "take 1 of a/97", "over 59990");
    }

    #[test]
    fn a_reset_ends_it_also_for_a_denial_that_is_under_way() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5", "over 60000");
        scene.0.forget(&charge("look a/5").counter, scene.at(20));
        scene.hears(10, "take 1 of a/5", "over 60000");
        scene.check(30, "take 1 of a/5", "asks");
        scene.hears(40, "take 1 of a/5", "over 60000");
        scene.check(50, "take 1 of a/5", "over 59990");
    }

    #[test]
    fn there_are_never_more_entries_than_allowed_and_those_that_no_longer_count_go_first() {
        let scene = Scene::of(10);
        let over = |ms, user: u64| scene.hears(ms, &format!("take 1 of {user}/5"), "over 60000");
        let known =
            || scene.0.shards.iter().map(|entries| entries.lock().unwrap().len()).sum::<usize>();
        (0..8).for_each(|user| over(0, user));
        (8..10).for_each(|user| over(900, user));
        over(1000, 10);
        scene.check(1000, "take 1 of 9/5", "over 59900");
        assert_eq!(known(), 3);
        (0..1000).for_each(|user| {
            over(1000, user);
            assert!(known() <= 10);
            scene.check(1000, &format!("take 1 of {user}/5"), "over 60000");
        });
    }

    #[test]
    fn a_size_of_0_turns_it_off() {
        let scene = Scene::of(0);
        scene.hears(0, "take 1 of a/5", "over 60000");
        scene.check(0, "take 1 of a/5", "asks");
    }

    #[test]
    fn a_long_name_is_not_kept() {
        let scene = Scene::new();
        let call = |parts: usize| {
            let entry = |_| Entry { key: "k".into(), value: "v".repeat(100).into() };
            let entries: Vec<Entry> = (0..parts).map(entry).collect();
            let limit = charge("look a/5").counter.limit;
            [Charge { counter: Counter::new("shop", &entries, limit), ..charge("look a/5") }]
        };
        for (parts, is_known) in [(9, true), (10, false)] {
            scene.0.learn(&call(parts), &judgement("over 60000"), scene.at(0));
            assert_eq!(scene.0.answer(&call(parts), scene.at(0)).is_some(), is_known, "{parts}");
        }
    }
}
