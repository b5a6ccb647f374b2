//! Answers in front of a shared store for what it has just said is over, and asks it nothing.
//!
//! What others change there (a refund, a reset) is seen after a second at most, and never is anything
//! admitted here. Only a store whose denials are exact may stand behind it.

mod words;

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use self::words::{LIFE_MAX, Word, Words};
use super::Clock;
use crate::{
    engine::{
        key::Counter,
        ledger::{self, Charge, Tally},
    },
    telemetry::StoreMetrics,
};

/// So few share a lock that nobody waits long for it, also while they are swept.
const WORDS_OF_A_LOCK: usize = 4096;

/// What the store last said of counters that were over, and of those that were asked with them.
#[derive(Debug)]
pub struct OverLimitCache {
    shards: Vec<Mutex<Words>>,
    /// Chooses the shard.
    hasher: RandomState,
    began: Instant,
    /// When nothing that is known counts any more, in milliseconds from `began`. Until the first
    /// denial, and a second after the last, a call pays this one load.
    quiet_from_ms: AtomicU64,
    clock: Clock,
    metrics: StoreMetrics,
}

impl OverLimitCache {
    /// A cache of at most so many words; of none, it is off. `clock` is asked for the windows of
    /// counters of which nothing is known.
    pub fn new(words_max: usize, clock: Clock, metrics: StoreMetrics) -> Self {
        let count = words_max.div_ceil(WORDS_OF_A_LOCK);
        let words_max = words_max.checked_div(count).unwrap_or(0);
        Self {
            shards: (0..count).map(|_| Mutex::new(Words::new(words_max))).collect(),
            hasher: RandomState::new(),
            began: Instant::now(),
            quiet_from_ms: AtomicU64::new(0),
            clock,
            metrics,
        }
    }

    /// The tallies of a call that is known to be denied, and whose denial changes nothing; of any
    /// other the store must be asked.
    pub fn answer(&self, charges: &[Charge], now: Instant) -> Option<Vec<Tally>> {
        if self.is_quiet(now) || charges.iter().any(Charge::stands_when_denied) {
            return None;
        }
        // Nothing is allocated for a call that goes on.
        let known = |charge: &Charge| self.known(charge, charges, now);
        let denies = |charge: &Charge| known(charge).is_some_and(|it| charge.denies_for_free(&it));
        if !charges.iter().any(denies) {
            return None;
        }
        let unknown = |charge: &Charge| Tally::unused(&charge.counter.limit, (self.clock)());
        let tally = |charge: &Charge| known(charge).unwrap_or_else(|| unknown(charge));
        let tallies: Vec<Tally> = charges.iter().map(tally).collect();
        // The word that denied may have gone meanwhile.
        denies_for_free(charges, &tallies).then(|| {
            self.metrics.cached();
            tallies
        })
    }

    /// Hears what the store said of a call that it was sent no earlier than `sent`. What denies for
    /// free is kept, and all that was asked with it; of other calls, only what corrects that.
    pub fn learn(&self, charges: &[Charge], tallies: &[Tally], sent: Instant) {
        let denied = denies_for_free(charges, tallies);
        if !denied && self.is_quiet(sent) {
            return;
        }
        for (charge, tally) in charges.iter().zip(tallies) {
            let word = Word::new(*tally, || ledger::asked(charge, charges), sent);
            if denied {
                self.keep(&charge.counter, word);
            } else if let Some(mut words) = self.words(&charge.counter) {
                words.correct(&charge.counter, word);
            }
        }
    }

    /// Hears that a counter began anew before `now`: what the store said of calls that it was sent
    /// earlier counts no more, also where it has yet to arrive.
    pub fn forget(&self, counter: &Counter, now: Instant) {
        let unused = Tally::unused(&counter.limit, (self.clock)());
        self.keep(counter, Word::new(unused, || 0, now));
    }

    fn keep(&self, counter: &Counter, word: Word) {
        if let Some(mut words) = self.words(counter) {
            words.keep(counter, word);
            let quiet_from_ms = self.millis(word.sent + LIFE_MAX).saturating_add(1);
            self.quiet_from_ms.fetch_max(quiet_from_ms, Ordering::Relaxed);
        }
    }

    /// What is known of one charge of these.
    fn known(&self, charge: &Charge, charges: &[Charge], now: Instant) -> Option<Tally> {
        let word = self.words(&charge.counter)?.find(&charge.counter, now)?;
        Some(word.tally(|| ledger::asked(charge, charges), &charge.counter.limit, now))
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.millis(now) >= self.quiet_from_ms.load(Ordering::Relaxed)
    }

    fn millis(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The words among which this counter's is; nowhere, if the cache is off.
    fn words(&self, counter: &Counter) -> Option<MutexGuard<'_, Words>> {
        let count = u64::try_from(self.shards.len()).ok()?;
        let number = self.hasher.hash_one(counter).checked_rem(count)?;
        let words = self.shards.get(usize::try_from(number).ok()?)?;
        // Nothing panics while the lock is held, and if it did, each word would still be whole.
        Some(words.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn denies_for_free(charges: &[Charge], tallies: &[Tally]) -> bool {
    charges.iter().zip(tallies).any(|(charge, tally)| charge.denies_for_free(tally))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::engine::{
        ledger::Verdict,
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

        fn of(words_max: usize) -> Self {
            let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
            // A quarter of an hour has passed of what hours there are.
            Self(OverLimitCache::new(words_max, || Timestamp::from_secs(900), metrics))
        }

        fn at(&self, ms: u64) -> Instant {
            self.0.began + Duration::from_millis(ms)
        }

        /// `over 500` is denied for half a second, `7 left 500` is not.
        fn hears(&self, sent_ms: u64, call: &str, told: &str) {
            let tallies: Vec<Tally> = told.split(", ").map(tally).collect();
            self.0.learn(&charges(call), &tallies, self.at(sent_ms));
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
            "give" => Hits::GiveBack(words[1].parse().unwrap()),
            _ => Hits::Take(words[1].parse().unwrap()),
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
    fn the_later_word_counts_whenever_it_arrives() {
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
        scene.hears(0, "take 1 of b/5, take 1 of b/6", "over 60000, 1 left 60000");
        scene.check(0, "take 1 of b/5", "asks");
        scene.check(0, "take 1 of b/5, take 1 of b/6", "over 60000, 1 left 60000");
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
    fn a_refund_that_passes_by_ends_it() {
        let scene = Scene::new();
        scene.hears(0, "take 1 of a/5", "over 60000");
        scene.hears(10, "give 1 to a/5", "1 left 60000");
        scene.check(20, "take 1 of a/5", "asks");
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
    fn there_are_never_more_words_than_allowed_and_those_that_count_no_more_go_first() {
        let scene = Scene::of(10);
        let over = |ms, user: u64| scene.hears(ms, &format!("take 1 of {user}/5"), "over 60000");
        let known =
            || scene.0.shards.iter().map(|words| words.lock().unwrap().len()).sum::<usize>();
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
    fn of_no_words_it_is_off() {
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
            scene.0.learn(&call(parts), &[tally("over 60000")], scene.at(0));
            assert_eq!(scene.0.answer(&call(parts), scene.at(0)).is_some(), is_known, "{parts}");
        }
    }
}
