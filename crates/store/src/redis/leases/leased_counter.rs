//! What a replica knows of one counter whose limit leases: how many calls it decides, and the credit that it has. Time is an
//! argument.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use tokio::time::Instant;
use tollkeeper_engine::{
    hold_id::HoldId,
    key::Counter,
    rule::{LEASE_LIFE, Limit},
    time::Timestamp,
};

/// Credit that was not used for so long goes back.
const IDLE: Duration = Duration::from_millis(100);

/// How long no lease is asked for after one of which nothing was used.
const USELESS_FOR: Duration = Duration::from_secs(1);

/// How long no lease is asked for after a question without an answer.
const FAILED_FOR: Duration = Duration::from_millis(100);

/// Calls are counted for so long, and the next ones are judged by that.
const COUNTED_FOR: Duration = Duration::from_millis(100);

/// One that is used up, and the next.
const GRANTS_MAX: usize = 2;

/// The fewest hits that are worth a question. Below that, calls are decided one by one.
const WANT_MIN: u64 = 2;

/// The next lease is asked for when one in this many of its hits is in hand.
const PART_IN_HAND: u64 = 8;

/// A lease is at most this part of what is left of the limit, for all replicas together.
const PART_OF_LEFT: u64 = 20;

/// When and how much is leased.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTerms {
    /// Calls a second on one counter above which its hits are leased.
    pub above: u64,
    /// The time for which a lease lasts, by the hits of the last calls.
    pub span_ms: u64,
    /// The number of replicas that lease: each takes its part of what is left.
    pub replicas: u32,
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self { above: 200, span_ms: 100, replicas: 1 }
    }
}

/// An instant by both of our clocks: one that is never set, and one that runs on while the machine is suspended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) clock: Timestamp,
}

impl Moment {
    fn plus(self, time: Duration) -> Self {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self { at: self.at + time, clock: self.clock.plus_millis(millis) }
    }

    /// Whether one of the clocks shows this or a later time.
    pub(super) fn is_reached(self, now: Self) -> bool {
        now.at >= self.at || now.clock >= self.clock
    }

    fn earlier(self, other: Self) -> Self {
        Self { at: self.at.min(other.at), clock: self.clock.min(other.clock) }
    }
}

/// A question for a lease.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) counter: Counter,
    pub(super) want: u64,
    pub(super) asked: Moment,
    /// Identifies what it is granted.
    pub(super) id: HoldId,
}

/// Hits that are charged, and may be spent here.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) id: HoldId,
    /// The number of the limit that they were charged for.
    requests_per_unit: u64,
    hits: u64,
    pub(super) left: u64,
    /// Redis's time when they were charged, and the end of their window.
    pub(super) made: Timestamp,
    pub(super) window_end: Timestamp,
    pub(super) asked: Moment,
    ends: Moment,
}

impl Grant {
    /// What a question was granted at `made`. Redis had not run it before it was asked.
    pub(super) fn new(asked: &Question, made: Timestamp) -> Self {
        let limit = &asked.counter.limit;
        let window_end = limit.window.at(made).end;
        Self {
            id: asked.id,
            requests_per_unit: limit.requests_per_unit,
            hits: asked.want,
            left: asked.want,
            made,
            window_end,
            asked: asked.asked,
            ends: asked.asked.plus(limit.lease_life(made)),
        }
    }

    /// Redis's time at `now`, or a later one.
    fn redis_now(&self, now: Moment) -> Timestamp {
        let passed = now.at.saturating_duration_since(self.asked.at).as_millis();
        self.made.plus_millis(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// Whether its hits still count somewhere.
    pub(super) fn is_in_window(&self, now: Moment) -> bool {
        self.redis_now(now) < self.window_end
    }
}

/// What a counter had left in a window, by an answer of Redis.
#[derive(Debug, Clone, Copy)]
struct Left {
    hits: u64,
    requests_per_unit: u64,
    /// Redis's time then, and ours when its answer was there.
    at: Timestamp,
    seen: Instant,
    window_end: Timestamp,
}

/// What to do with a grant.
#[derive(Debug)]
pub(super) enum GrantState {
    /// It is spent, or was taken away.
    Gone,
    /// It is to be looked at then.
    InUse(Instant),
    /// It has ended, and cannot be spent any more.
    Ended(Grant),
}

#[derive(Debug)]
pub(super) struct LeasedCounter {
    pub(super) hash: u64,
    pub(super) counter: Counter,
    /// When the present count began; its calls and hits; and the rates that the count before it showed.
    since: Instant,
    calls: u64,
    hits: u64,
    calls_a_second: u64,
    hits_a_second: u64,
    left: Option<Left>,
    /// The oldest first.
    grants: Vec<Grant>,
    is_asking: bool,
    /// Nothing is asked before, and what was asked before is not taken.
    not_before: Instant,
    used_at: Instant,
    /// The hits that were spent, and are not yet counted by the metrics.
    spent: u64,
}

impl LeasedCounter {
    pub(super) fn new(hash: u64, counter: Counter, now: Instant) -> Self {
        Self {
            hash,
            counter,
            since: now,
            calls: 0,
            hits: 0,
            calls_a_second: 0,
            hits_a_second: 0,
            left: None,
            grants: Vec::new(),
            is_asking: false,
            not_before: now,
            used_at: now,
            spent: 0,
        }
    }

    /// Whether it would be missed.
    pub(super) fn is_in_use(&self, now: Instant) -> bool {
        self.has_grants() || now < self.since + USELESS_FOR || now < self.not_before
    }

    pub(super) fn has_grants(&self) -> bool {
        self.is_asking || !self.grants.is_empty()
    }

    /// The hits in hand that were charged for a limit of this number.
    pub(super) fn credit(&self, requests_per_unit: u64) -> u64 {
        let grants = self.grants.iter();
        let of_limit = grants.filter(|grant| grant.requests_per_unit == requests_per_unit);
        of_limit.map(|grant| grant.left).sum()
    }

    /// Takes hits, all or none, and returns until when they may be used.
    pub(super) fn take(&mut self, hits: u64, requests_per_unit: u64) -> Option<Moment> {
        if self.credit(requests_per_unit) < hits {
            return None;
        }
        let (mut rest, mut ends): (u64, Option<Moment>) = (hits, None);
        for grant in &mut self.grants {
            let taken = rest.min(grant.left);
            if grant.requests_per_unit == requests_per_unit && taken > 0 {
                grant.left -= taken;
                rest -= taken;
                ends = Some(ends.map_or(grant.ends, |ends| ends.earlier(grant.ends)));
            }
        }
        ends
    }

    /// Puts back what was taken just now: into the grant that ends first.
    pub(super) fn put_back(&mut self, hits: u64, requests_per_unit: u64) {
        let mut grants = self.grants.iter_mut();
        let first = grants.find(|grant| grant.requests_per_unit == requests_per_unit);
        if let Some(grant) = first {
            grant.left += hits;
        }
    }

    /// Notes that hits were taken and used. Returns what is left, here and in Redis; Redis's time; and the end of the window.
    pub(super) fn spend(
        &mut self,
        hits: u64,
        requests_per_unit: u64,
        now: Moment,
    ) -> (u64, Timestamp, Timestamp) {
        self.spent += hits;
        self.used_at = now.at;
        // All grants are of one window.
        let newest = self.grants.last();
        let (at, window_end) =
            newest.map_or_else(Default::default, |grant| (grant.redis_now(now), grant.window_end));
        let is_current = |left: &Left| {
            left.window_end == window_end && left.requests_per_unit == requests_per_unit
        };
        let in_redis = self.left.filter(is_current).map_or(0, |left| left.hits);
        let left = in_redis.saturating_add(self.credit(requests_per_unit));
        self.grants.retain(|grant| grant.left > 0);
        (left, at, window_end)
    }

    /// Counts a call. Returns how many hits should be asked for now, if any.
    pub(super) fn demand(
        &mut self,
        hits: u64,
        limit: &Arc<Limit>,
        now: Instant,
        terms: LeaseTerms,
    ) -> Option<u64> {
        let passed = now.saturating_duration_since(self.since);
        if passed >= COUNTED_FOR {
            let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
            let a_second = |count: u64| count.saturating_mul(1000) / millis;
            (self.calls_a_second, self.hits_a_second) = (a_second(self.calls), a_second(self.hits));
            (self.since, self.calls, self.hits) = (now, 0, 0);
        }
        self.calls += 1;
        self.hits = self.hits.saturating_add(hits);
        if self.is_asking || now < self.not_before || self.calls_a_second <= terms.above {
            return None;
        }
        let want = self.hits_a_second.saturating_mul(terms.span_ms) / 1000;
        let want = want.min(self.left(limit, now) / PART_OF_LEFT / u64::from(terms.replicas));
        let credit: u64 = self.grants.iter().map(|grant| grant.left).sum();
        let want = (credit <= want / PART_IN_HAND).then(|| want - credit)?;
        if want < WANT_MIN || self.grants.len() >= GRANTS_MAX {
            return None;
        }
        self.is_asking = true;
        Some(want)
    }

    /// What is left of the limit as far as it is known; all of it in a new window.
    fn left(&self, limit: &Limit, now: Instant) -> u64 {
        let is_current = |left: &Left| {
            let passed = now.saturating_duration_since(left.seen).as_millis();
            let at = left.at.plus_millis(u64::try_from(passed).unwrap_or(u64::MAX));
            left.requests_per_unit == limit.requests_per_unit && at < left.window_end
        };
        self.left.filter(is_current).map_or(limit.requests_per_unit, |left| left.hits)
    }

    /// Learns what Redis has left after it has charged `charged` hits at `at`. Returns whether that is possible: less used
    /// than that and what is in hand shows that the counter was reset, or lost.
    pub(super) fn learn(
        &mut self,
        hits: u64,
        charged: u64,
        limit: &Limit,
        at: Timestamp,
        seen: Instant,
    ) -> bool {
        let requests_per_unit = limit.requests_per_unit;
        let window_end = limit.window.at(at).end;
        let is_newest = |left: Left| match at.cmp(&left.at) {
            // A later answer may be of an earlier run.
            Ordering::Equal => hits <= left.hits || left.window_end != window_end,
            ordering => ordering == Ordering::Greater,
        };
        if self.left.is_none_or(is_newest) {
            self.left = Some(Left { hits, requests_per_unit, at, seen, window_end });
        }
        let known = |grant: &&Grant| {
            grant.requests_per_unit == requests_per_unit
                && grant.window_end == window_end
                && grant.made < at
        };
        let in_hand: u64 = self.grants.iter().filter(known).map(|grant| grant.left).sum();
        requests_per_unit.saturating_sub(hits) >= in_hand.saturating_add(charged)
    }

    /// Learns that Redis had fewer hits left than were asked for. That shows how many at most, so it never shows a reset.
    pub(super) fn lacks(&mut self, hits: u64, limit: &Limit, at: Timestamp, seen: Instant) {
        let left = self.left(limit, seen).min(hits.saturating_sub(1));
        self.learn(left, 0, limit, at, seen);
    }

    /// Notes that a question has no answer, or was granted nothing.
    pub(super) fn failed(&mut self, now: Instant) {
        self.is_asking = false;
        self.not_before = self.not_before.max(now + FAILED_FOR);
    }

    /// Takes what a question was granted. Returns it if it cannot be used.
    pub(super) fn granted(&mut self, grant: Grant, now: Moment) -> Result<(), Grant> {
        self.is_asking = false;
        if grant.asked.at < self.not_before || grant.ends.is_reached(now) {
            return Err(grant);
        }
        self.used_at = now.at;
        self.grants.push(grant);
        Ok(())
    }

    /// The grants of other windows than this one, which Redis shows to be the present one: they are taken away.
    pub(super) fn of_other_windows(&mut self, window_end: Timestamp) -> Vec<Grant> {
        self.grants.extract_if(.., |grant| grant.window_end != window_end).collect()
    }

    /// Takes all credit away, and also what is asked for now.
    pub(super) fn end(&mut self, now: Instant) -> Vec<Grant> {
        self.not_before = now + LEASE_LIFE;
        self.grants.drain(..).collect()
    }

    /// The state of a grant. One that has ended, or all if the service stops, is taken away.
    pub(super) fn look(&mut self, id: HoldId, now: Moment, stops: bool) -> GrantState {
        let Some(index) = self.grants.iter().position(|grant| grant.id == id) else {
            return GrantState::Gone;
        };
        let idle_at = self.used_at + IDLE;
        match self.grants.get(index) {
            Some(grant) if !stops && !grant.ends.is_reached(now) && now.at < idle_at => {
                GrantState::InUse(idle_at.min(grant.ends.at))
            }
            _ => {
                let grant = self.grants.remove(index);
                if grant.left >= grant.hits && now.at >= idle_at {
                    self.not_before = self.not_before.max(now.at + USELESS_FOR);
                }
                GrantState::Ended(grant)
            }
        }
    }

    /// The hits that were spent since this was called last.
    pub(super) const fn take_spent(&mut self) -> u64 {
        let spent = self.spent;
        self.spent = 0;
        spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollkeeper_engine::rule::Unit;

    /// A second begins.
    const BEGIN: Timestamp = Timestamp::from_secs(1_795_215_600);

    /// A lease is short, so that few calls make one.
    const TERMS: LeaseTerms = LeaseTerms { above: 200, span_ms: 20, replicas: 1 };

    /// A counter of 1000 hits a second, at times in milliseconds since then, by all clocks.
    struct World {
        counter: LeasedCounter,
        limit: Arc<Limit>,
        began: Instant,
        ids: u64,
    }

    impl World {
        fn new() -> Self {
            let limit = Arc::new(Limit::new(1000, Unit::Second, 1).unwrap());
            let (counter, began) = (Counter::new("shop", &[], Arc::clone(&limit)), Instant::now());
            Self { counter: LeasedCounter::new(0, counter, began), limit, began, ids: 0 }
        }

        fn at(&self, ms: u64) -> Moment {
            Moment { at: self.began, clock: BEGIN }.plus(Duration::from_millis(ms))
        }

        fn grant(&mut self, hits: u64, asked: u64, made: u64) -> Grant {
            self.ids += 1;
            let (id, asked) = (HoldId::new(self.ids.into()), self.at(asked));
            let counter = self.counter.counter.clone();
            let question = Question { counter, want: hits, asked, id };
            Grant::new(&question, BEGIN.plus_millis(made))
        }

        /// Grants hits at this time.
        fn granted(&mut self, hits: u64, ms: u64) -> HoldId {
            let grant = self.grant(hits, ms, ms);
            let (id, now) = (grant.id, self.at(ms));
            self.counter.granted(grant, now).unwrap();
            id
        }

        /// Whether these hits can be spent at this time.
        fn spends(&mut self, hits: u64, ms: u64) -> bool {
            let Some(ends) = self.counter.take(hits, 1000) else { return false };
            if ends.is_reached(self.at(ms)) {
                self.counter.put_back(hits, 1000);
                return false;
            }
            self.counter.spend(hits, 1000, self.at(ms));
            true
        }

        /// The hits that are asked for at this time, after this number of calls of one hit in the last 100 ms.
        fn asks(&mut self, calls: u64, ms: u64) -> Option<u64> {
            for call in 0..calls {
                let now = self.at(ms - 100 + call * 99 / calls).at;
                self.counter.demand(1, &self.limit, now, TERMS);
                self.counter.is_asking = false;
            }
            let now = self.at(ms).at;
            self.counter.demand(1, &self.limit, now, TERMS)
        }

        /// Learns what is left at this time.
        fn learns(&mut self, left: u64, ms: u64) -> bool {
            let seen = self.at(ms).at;
            self.counter.learn(left, 0, &self.limit, BEGIN.plus_millis(ms), seen)
        }
    }

    #[test]
    fn credit_is_spent_until_its_life_ends_and_no_hit_of_it_twice() {
        let mut world = World::new();
        world.granted(3, 10);
        assert!(world.spends(2, 209));
        assert!(!world.spends(1, 210), "its life has ended");
        assert!(!world.spends(2, 209), "one is left");
        assert!(world.spends(1, 209));
        assert!(!world.spends(1, 209));
    }

    #[test]
    fn credit_ends_with_its_window_by_the_clock_of_redis_whatever_ours_shows() {
        for (asked, made, last) in [(900, 900, 997), (880, 950, 927), (900, 999, 899)] {
            let mut world = World::new();
            let grant = world.grant(5, asked, made);
            let now = world.at(asked);
            let is_taken = world.counter.granted(grant, now).is_ok();
            assert_eq!(is_taken, asked <= last);
            assert!(!world.spends(1, last + 1), "asked at {asked}");
            assert_eq!(world.spends(1, last), is_taken, "asked at {asked}");
        }
    }

    #[test]
    fn an_answer_says_what_is_left_in_redis_and_in_hand() {
        let mut world = World::new();
        world.granted(20, 100);
        world.learns(900, 101);
        world.counter.take(1, 1000).unwrap();
        let (left, at, window_end) = world.counter.spend(1, 1000, world.at(150));
        assert_eq!((left, at.millis_since(BEGIN)), (919, 150));
        assert_eq!(window_end.millis_since(BEGIN), 1000);
    }

    #[test]
    fn either_clock_ends_credit() {
        let mut world = World::new();
        world.granted(5, 100);
        let ends = world.counter.take(1, 1000).unwrap();
        let [now, later] = [world.at(150), world.at(400)];
        assert!(!ends.is_reached(now));
        // The machine was suspended; and its clock was set back.
        assert!(ends.is_reached(Moment { clock: later.clock, ..now }));
        assert!(ends.is_reached(Moment { at: later.at, ..now }));
    }

    #[test]
    fn credit_of_another_number_is_not_found() {
        let mut world = World::new();
        world.granted(5, 100);
        assert_eq!((world.counter.credit(1000), world.counter.credit(500)), (5, 0));
        assert!(world.counter.take(1, 500).is_none());
    }

    #[test]
    fn only_a_hot_counter_is_leased_and_a_lease_is_20_ms_of_its_calls() {
        assert_eq!(World::new().asks(20, 100), None, "200 a second");
        assert_eq!(World::new().asks(25, 100), Some(5));
        assert_eq!(World::new().asks(100, 100), Some(20));
        assert_eq!(World::new().asks(1000, 100), Some(50), "5 % of what is left");
    }

    #[test]
    fn a_lease_fades_out_and_the_last_hits_are_decided_one_by_one() {
        for (left, want) in [(1000, Some(20)), (200, Some(10)), (40, Some(2)), (39, None)] {
            let mut world = World::new();
            assert!(world.learns(left, 50));
            assert_eq!(world.asks(100, 100), want, "{left} left");
        }
        // What did not fit shows only how much is left at most.
        for (hits, want) in [(1000, Some(10)), (41, Some(2)), (40, None)] {
            let mut world = World::new();
            world.learns(200, 50);
            let (seen, limit) = (world.at(60).at, Arc::clone(&world.limit));
            world.counter.lacks(hits, &limit, BEGIN.plus_millis(60), seen);
            assert_eq!(world.asks(100, 100), want, "{hits} hits did not fit");
        }
        // What is left of another window says nothing.
        let mut world = World::new();
        world.learns(0, 950);
        assert_eq!(world.asks(100, 1100), Some(20));
    }

    #[test]
    fn the_next_lease_is_asked_for_when_an_eighth_is_left() {
        for (in_hand, want) in [(3, None), (2, Some(18)), (0, Some(20))] {
            let mut world = World::new();
            if in_hand > 0 {
                world.granted(in_hand, 0);
            }
            assert_eq!(world.asks(100, 100), want, "{in_hand} in hand");
        }
    }

    #[test]
    fn credit_that_is_not_used_for_100_ms_is_taken_back_and_no_other_asked_for_at_once() {
        let mut world = World::new();
        let id = world.granted(5, 0);
        let [early, used, late] = [99, 150, 160].map(|ms| world.at(ms));
        assert!(matches!(world.counter.look(id, early, false), GrantState::InUse(_)));
        assert!(world.spends(3, 90));
        assert!(matches!(world.counter.look(id, used, false), GrantState::InUse(_)));
        let id = world.granted(5, 20);
        let GrantState::Ended(grant) = world.counter.look(id, late, false) else {
            panic!("it was not used since 20")
        };
        assert_eq!(grant.left, 5);
        assert_eq!(world.asks(100, 1000), None);
        assert_eq!(world.asks(100, 1300), Some(18), "2 are left of the first");
    }

    #[test]
    fn what_was_asked_for_before_the_end_of_credit_is_not_taken() {
        let mut world = World::new();
        world.granted(5, 0);
        let late = world.grant(5, 10, 15);
        let now = world.at(20);
        assert_eq!(world.counter.end(now.at).len(), 1);
        assert!(!world.spends(1, 20));
        assert!(world.counter.granted(late, now).is_err());
        assert_eq!(world.asks(100, 200), None);
        assert_eq!(world.asks(100, 500), Some(20));
    }

    #[test]
    fn less_used_than_is_in_hand_shows_that_the_counter_was_lost() {
        let mut world = World::new();
        world.granted(50, 100);
        assert!(world.learns(950, 110));
        assert!(world.learns(1000, 100), "it may have run before the grant");
        assert!(!world.learns(951, 120));
        assert!(world.learns(1000, 1010), "of the next window");
    }

    #[test]
    fn credit_of_a_window_ends_when_the_next_one_grants_some() {
        let mut world = World::new();
        world.granted(5, 850);
        let grant = world.grant(5, 990, 1000);
        let ended = world.counter.of_other_windows(grant.window_end);
        assert_eq!(ended.iter().map(|grant| grant.left).sum::<u64>(), 5);
    }
}
