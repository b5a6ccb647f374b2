//! What a process knows of one list of descriptors: how many calls it makes, and the credit that it has. Time is an argument.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{mem, time::Duration};
#[cfg(not(unix))]
use std::{sync::LazyLock, time::Instant};

#[cfg(unix)]
use rustix::time::{ClockId, clock_gettime};

use crate::{Commit, Decision, Descriptor, ServiceError, decision::duration, v1::Verdict};

/// Calls are counted for so long, and a lease is what was used in that time.
const SPAN: Duration = Duration::from_millis(100);
/// Calls a second above which a lease is asked for.
const HOT: u64 = 200;
/// A lease is at most this part of what is left of the limit.
const PART_OF_REMAINING: u64 = 20;
/// The fewest hits that are worth a question. Below that, calls are decided one by one.
const WANT_MIN: u64 = 2;
/// The next lease is asked for when one in this many of its hits is in hand.
const PART_IN_HAND: u64 = 8;
/// One that is nearly used up, and the next.
const LEASES_MAX: usize = 2;
/// A lease is spent for at most this long, even if the service allows more.
const SPEND_MAX: Duration = Duration::from_millis(200);
/// Credit that was not used for so long goes back.
const IDLE: Duration = Duration::from_millis(100);
/// How long no lease is asked for after a question without an answer, or that was denied.
const FAILED_FOR: Duration = Duration::from_millis(100);
/// How long no lease is asked for after one of which nothing was used.
const USELESS_FOR: Duration = Duration::from_secs(1);
/// How long no lease is asked for after the service has said that it cannot lease these limits.
const REFUSED_FOR: Duration = Duration::from_secs(10);
const REFUSALS: [&str; 2] = ["INVALID_ARGUMENT", "UNIMPLEMENTED"];
/// How long an entry stays without calls.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// More hits of one call are not counted, so that no sum overflows.
const COUNTED_HITS_MAX: u64 = 1 << 20;

/// Nanoseconds by a clock that is never set, and that runs on while the machine is suspended.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Moment(pub(super) u64);

impl Moment {
    pub(super) fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }

    /// One clock of each system counts the time in which the machine is suspended.
    #[cfg(unix)]
    pub(super) fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = ClockId::Monotonic;
        Self(Duration::try_from(clock_gettime(clock)).map_or(u64::MAX, nanos))
    }

    #[cfg(not(unix))]
    pub(super) fn now() -> Self {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        Self(nanos(BEGAN.elapsed()))
    }

    fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Hits that the service has charged, and that may be spent here.
struct Lease {
    /// Names it; empty if no limit applies.
    hold: String,
    granted: u64,
    left: AtomicU64,
    /// What was left when calls were counted last.
    counted: AtomicU64,
    sent: Moment,
    ends: Moment,
    answer: Decision,
}

impl Lease {
    fn left(&self) -> u64 {
        self.left.load(Relaxed)
    }

    /// The hits that were taken since they were counted.
    fn count(&self) -> u64 {
        let left = self.left();
        self.counted.swap(left, Relaxed).saturating_sub(left)
    }

    /// Takes the hits, all or none.
    fn take(&self, hits: u64) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(hits)).is_ok()
    }
}

/// What to do with a lease.
#[derive(Debug, PartialEq)]
pub(super) enum State {
    /// It is used up, or was taken away.
    Gone,
    /// It is to be looked at after this time.
    InUse(Duration),
    /// It cannot be spent any more: this is to be committed.
    Ended(Commit),
}

#[derive(Default)]
pub(super) struct Entry {
    descriptors: Vec<Descriptor>,
    /// When the present count began.
    since: AtomicU64,
    /// The hits since then that were not spent from leases.
    hits: AtomicU64,
    /// The hits since then beyond the first one of each call.
    more: AtomicU64,
    /// The hits in a span, as the count before it showed; 0 if there were few calls.
    pace: AtomicU64,
    /// The fewest remaining hits that the last answer showed.
    remaining: AtomicU64,
    /// The oldest first.
    leases: RwLock<Vec<Lease>>,
    is_asking: AtomicBool,
    /// Nothing is asked before.
    not_before: AtomicU64,
    used_at: AtomicU64,
}

impl Entry {
    pub(super) fn new(descriptors: Vec<Descriptor>, now: Moment) -> Self {
        Self { descriptors, since: now.0.into(), ..Self::default() }
    }

    pub(super) fn descriptors(&self) -> &[Descriptor] {
        &self.descriptors
    }

    fn leases(&self) -> RwLockReadGuard<'_, Vec<Lease>> {
        self.leases.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn leases_mut(&self) -> RwLockWriteGuard<'_, Vec<Lease>> {
        self.leases.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it would be missed.
    pub(super) fn is_in_use(&self, now: Moment) -> bool {
        let since = Moment(self.since.load(Relaxed));
        self.is_asking.load(Relaxed) || now < since.plus(KEPT_FOR)
    }

    /// Counts a call, and decides it if there is credit. Asks for hits if it is time to.
    #[inline]
    pub(super) fn decide(
        &self,
        hits: u64,
        clock: impl Fn() -> Moment,
        ask: impl FnOnce(u64),
    ) -> Option<Decision> {
        let (leases, mut now) = (self.leases(), None);
        // First it takes, then it looks at the clock: the process may have stood still before.
        let is_taken =
            leases.iter().any(|lease| lease.take(hits) && *now.insert(clock()) < lease.ends);
        let now = now.unwrap_or_else(clock);
        let credit = credit(&leases, now);
        let counted = hits.min(COUNTED_HITS_MAX);
        if !is_taken {
            self.hits.fetch_add(counted, Relaxed);
        }
        if counted > 1 {
            self.more.fetch_add(counted - 1, Relaxed);
        }
        if let Some(want) = self.demand(&leases, credit, now) {
            ask(want);
        }
        let newest = leases.last().filter(|_| is_taken)?;
        self.used_at.store(now.0, Relaxed);
        Some(newest.answer.later(now.since(newest.sent), credit))
    }

    /// How many hits to ask for now, if any.
    #[inline]
    fn demand(&self, leases: &[Lease], credit: u64, now: Moment) -> Option<u64> {
        let since = self.since.load(Relaxed);
        let begins = || self.since.compare_exchange(since, now.0, Relaxed, Relaxed).is_ok();
        if now >= Moment(since).plus(SPAN) && begins() {
            self.count(leases, now.since(Moment(since)));
        }
        let remaining = self.remaining.load(Relaxed);
        let want = self.pace.load(Relaxed).min(remaining / PART_OF_REMAINING);
        let asks = want >= WANT_MIN
            && credit <= want / PART_IN_HAND
            && now.0 >= self.not_before.load(Relaxed)
            && leases.iter().filter(|lease| lease.left() > 0 && now < lease.ends).count()
                < LEASES_MAX
            && !self.is_asking.swap(true, Relaxed);
        asks.then_some(want)
    }

    /// Begins a new count after one of this time.
    #[cold]
    fn count(&self, leases: &[Lease], passed: Duration) {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let leased: u64 = leases.iter().map(Lease::count).fold(0, u64::saturating_add);
        let hits = self.hits.swap(0, Relaxed).saturating_add(leased);
        let calls = hits.saturating_sub(self.more.swap(0, Relaxed));
        let is_hot = calls.saturating_mul(1000) > HOT.saturating_mul(ms(passed));
        let pace = hits.saturating_mul(ms(SPAN)) / ms(passed).max(1);
        self.pace.store(if is_hot { pace } else { 0 }, Relaxed);
    }

    /// Learns how many hits are left by an answer of the service.
    pub(super) fn learn(&self, answer: &Decision) {
        let limited = answer.statuses.iter().filter(|status| status.limit.is_some());
        let fewest = limited.map(|status| status.remaining).min().unwrap_or(u64::MAX);
        self.remaining.store(fewest, Relaxed);
    }

    /// Takes the answer to a question that was sent then. Returns the token of the lease, or why the service leases none.
    pub(super) fn answered(
        &self,
        answer: Result<Verdict, ServiceError>,
        sent: Moment,
        now: Moment,
    ) -> Result<String, ServiceError> {
        let mut leases = self.leases_mut();
        // One with a token is there until it is committed.
        leases.retain(|it| {
            let is_kept = it.left() > 0 && (!it.hold.is_empty() || now < it.ends);
            if !is_kept {
                self.hits.fetch_add(it.count(), Relaxed);
            }
            is_kept
        });
        let (mut granted, mut hold, mut life) = (0, String::new(), Duration::ZERO);
        let answer = answer.and_then(|mut verdict| {
            (granted, hold) = (mem::take(&mut verdict.hits), mem::take(&mut verdict.hold));
            life = SPEND_MAX.min(duration(verdict.spend_within.take()));
            Decision::decode(verdict, self.descriptors.len())
        });
        let refusal = match answer {
            Ok(answer) => {
                self.learn(&answer);
                if answer.allowed {
                    self.used_at.store(now.0, Relaxed);
                    let [left, counted] = [granted, granted].map(AtomicU64::new);
                    let (hold, ends) = (hold.clone(), sent.plus(life));
                    leases.push(Lease { hold, granted, left, counted, sent, ends, answer });
                } else {
                    self.pause(now, FAILED_FOR);
                }
                None
            }
            Err(error) => {
                let refuses = REFUSALS.contains(&error.code);
                self.pause(now, if refuses { REFUSED_FOR } else { FAILED_FOR });
                refuses.then_some(error)
            }
        };
        self.is_asking.store(false, Relaxed);
        refusal.map_or(Ok(hold), Err)
    }

    /// The state of the lease with this token. One that has ended or is not used, or any if the client closes, is taken away.
    pub(super) fn look(&self, hold: &str, now: Moment, closes: bool) -> State {
        let mut leases = self.leases_mut();
        let Some(index) = leases.iter().position(|lease| lease.hold == hold) else {
            return State::Gone;
        };
        let idle_at = Moment(self.used_at.load(Relaxed)).plus(IDLE);
        let in_use = leases
            .get(index)
            .filter(|lease| !closes && lease.left() > 0 && now < lease.ends && now < idle_at);
        if let Some(lease) = in_use {
            let next = if idle_at < lease.ends { idle_at } else { lease.ends };
            return State::InUse(next.since(now));
        }
        let ended = leases.remove(index);
        self.hits.fetch_add(ended.count(), Relaxed);
        let Lease { hold, granted, left, .. } = ended;
        let left = left.into_inner();
        // One that ended early, with its window, shows nothing.
        if left == granted && now >= idle_at {
            self.pause(now, USELESS_FOR);
        }
        if left == 0 { State::Gone } else { State::Ended(Commit::new(hold, granted - left)) }
    }

    fn pause(&self, now: Moment, time: Duration) {
        self.not_before.fetch_max(now.plus(time).0, Relaxed);
    }
}

fn credit(leases: &[Lease], now: Moment) -> u64 {
    let leases = leases.iter().filter(|lease| now < lease.ends);
    leases.map(Lease::left).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::atomic::Ordering::SeqCst, thread};

    use super::*;
    use crate::{on, v1};

    fn at(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    fn entry() -> Entry {
        Entry::new(vec![on("user", "alice"), on("free", "alice")], at(0))
    }

    /// An answer with a limit of 1000 hits, whose window ends in 500 ms.
    fn answer(remaining: u64) -> Decision {
        Decision::decode(verdict(0, remaining), 2).unwrap()
    }

    fn verdict(hits: u64, remaining: u64) -> Verdict {
        let limit = v1::Limit { requests_per_unit: 1000, ..v1::Limit::default() };
        let status = |index: u32, limit, remaining| v1::Status {
            code: 1,
            descriptor_index: index,
            rule: "user".to_owned(),
            current_limit: limit,
            limit_remaining: remaining,
            duration_until_reset: Duration::from_millis(500).try_into().ok(),
            ..v1::Status::default()
        };
        Verdict {
            code: 1,
            statuses: vec![status(0, Some(limit), remaining), status(1, None, 0)],
            hold: format!("hold of {hits}"),
            hits,
            spend_within: Duration::from_millis(200).try_into().ok(),
            ..Verdict::default()
        }
    }

    /// Grants hits to a question that was sent and answered at this time. Returns their token.
    fn grant(entry: &Entry, hits: u64, ms: u64) -> String {
        entry.answered(Ok(verdict(hits, 900)), at(ms), at(ms)).unwrap()
    }

    fn spends(entry: &Entry, hits: u64, ms: u64) -> bool {
        entry.decide(hits, || at(ms), drop).is_some()
    }

    /// The hits that the last of these calls asks for, after calls of one hit from 100 ms before to this time.
    fn asks(entry: &Entry, calls: u64, ms: u64) -> Option<u64> {
        entry.hits.store(calls, SeqCst);
        entry.since.store(at(ms - 100).0, SeqCst);
        let (leases, now) = (entry.leases(), at(ms));
        entry.demand(&leases, credit(&leases, now), now)
    }

    fn ended(hold: &str, used: u64) -> State {
        State::Ended(Commit::new(hold, used))
    }

    #[test]
    fn credit_is_spent_until_its_end_and_no_hit_of_it_twice() {
        let entry = entry();
        grant(&entry, 4, 10);
        assert!(spends(&entry, 2, 209));
        assert!(!spends(&entry, 3, 209), "2 are left, and a call gets all of its hits or none");
        assert!(!spends(&entry, 1, 210), "it has ended");
        assert!(spends(&entry, 1, 209), "the hit that was found ended counts as used");
        assert!(!spends(&entry, 1, 209));
    }

    #[test]
    fn time_runs_from_before_the_question() {
        let entry = entry();
        entry.answered(Ok(verdict(9, 900)), at(10), at(60)).unwrap();
        assert!(spends(&entry, 1, 209));
        assert!(!spends(&entry, 1, 210));
        let hold = entry.answered(Ok(verdict(5, 900)), at(300), at(501)).unwrap();
        assert!(!spends(&entry, 1, 501), "its answer came after its end");
        assert_eq!(entry.look(&hold, at(501), false), ended(&hold, 1));
    }

    #[test]
    fn a_process_that_stood_still_spends_nothing_stale() {
        let entry = entry();
        grant(&entry, 5, 0);
        let looked = Cell::new(0);
        // It stands still after it has taken the hit, and before it looks at the clock.
        let stands_still = || {
            looked.set(looked.get() + 1);
            at(10_000)
        };
        let decision = entry.decide(1, stands_still, drop);
        assert!(decision.is_none());
        assert_eq!(looked.get(), 1);
        let hold = "hold of 5";
        assert_eq!(entry.look(hold, at(10_000), false), ended(hold, 1));
    }

    #[test]
    fn a_call_goes_on_to_the_next_lease() {
        let entry = entry();
        grant(&entry, 5, 0);
        grant(&entry, 6, 150);
        assert!(spends(&entry, 6, 160), "the first has too few");
        assert!(spends(&entry, 5, 160));
        let entry = self::entry();
        grant(&entry, 5, 0);
        grant(&entry, 6, 150);
        assert!(spends(&entry, 5, 250), "the first has ended");
        assert_eq!(credit(&entry.leases(), at(250)), 1);
    }

    #[test]
    fn threads_spend_no_more_than_was_granted() {
        const GRANTED: u64 = 100_000;
        let entry = entry();
        let hold = grant(&entry, GRANTED, 0);
        let spend =
            |hits: u64| (0..GRANTED).filter(|_| spends(&entry, hits, 1)).count() as u64 * hits;
        let spent: u64 = thread::scope(|scope| {
            let threads = [1, 2, 3, 7].map(|hits| scope.spawn(move || spend(hits)));
            threads.map(|thread| thread.join().unwrap()).into_iter().sum()
        });
        assert_eq!(spent, GRANTED);
        assert_eq!(entry.look(&hold, at(1), false), State::Gone, "it is used up");
    }

    #[test]
    fn only_calls_above_200_a_second_ask_and_a_lease_is_what_100_ms_use() {
        for (calls, remaining, want) in [
            (20, 1000, None),
            (21, 1000, Some(21)),
            (40, 1000, Some(40)),
            (500, 1000, Some(50)),
            (500, u64::MAX, Some(500)),
        ] {
            let entry = entry();
            entry.learn(&answer(remaining));
            assert_eq!(asks(&entry, calls, 100), want, "{calls} calls, {remaining} left");
            assert_eq!(asks(&entry, calls, 200), None, "one question at a time");
        }
        assert_eq!(asks(&entry(), 500, 100), None, "nothing shows yet what is left");
    }

    #[test]
    fn a_lease_fades_out_and_the_last_hits_are_decided_one_by_one() {
        for (remaining, want) in
            [(1000, Some(50)), (200, Some(10)), (40, Some(2)), (39, None), (0, None)]
        {
            let entry = entry();
            entry.learn(&answer(remaining));
            assert_eq!(asks(&entry, 100, 100), want, "{remaining} left");
        }
        let entry = entry();
        entry.learn(&Decision::default());
        assert_eq!(asks(&entry, 100, 100), Some(100), "no limit applies");
    }

    #[test]
    fn the_next_lease_is_asked_for_when_an_eighth_is_in_hand_and_there_are_at_most_two() {
        for (in_hand, want) in [(6, None), (5, Some(45)), (1, Some(45))] {
            let entry = entry();
            grant(&entry, in_hand, 0);
            assert_eq!(asks(&entry, 100, 100), want, "{in_hand} in hand");
        }
        let entry = entry();
        grant(&entry, 1, 0);
        grant(&entry, 2, 0);
        assert_eq!(asks(&entry, 100, 100), None);
        let mut asked = None;
        entry.decide(1, || at(100), |want| asked = Some(want));
        assert_eq!(asked, Some(45), "the first is used up");
        grant(&entry, 40, 100);
        assert_eq!(entry.leases().len(), 2);
    }

    #[test]
    fn a_pause_of_calls_is_no_demand() {
        let entry = entry();
        entry.learn(&answer(1000));
        for call in 0..100 {
            assert!(!spends(&entry, 1, call));
        }
        entry.decide(1, || at(5000), |want| panic!("{want} of 101 calls in 5 s"));
    }

    #[test]
    fn what_is_left_at_the_end_goes_back() {
        let entry = entry();
        let hold = grant(&entry, 5, 0);
        assert_eq!(entry.look(&hold, at(99), false), State::InUse(Duration::from_millis(1)));
        assert!(spends(&entry, 3, 110));
        assert_eq!(entry.look(&hold, at(120), false), State::InUse(Duration::from_millis(80)));
        assert_eq!(entry.look(&hold, at(200), false), ended(&hold, 3));
        assert!(!spends(&entry, 1, 150), "it was taken away");
        assert_eq!(entry.look(&hold, at(200), false), State::Gone);
        let hold = grant(&entry, 5, 300);
        assert_eq!(entry.look(&hold, at(300), true), ended(&hold, 0), "the client closes");
    }

    #[test]
    fn credit_that_is_not_used_for_100_ms_goes_back() {
        let entry = entry();
        let hold = grant(&entry, 5, 0);
        assert!(spends(&entry, 1, 50));
        assert_eq!(entry.look(&hold, at(100), false), State::InUse(Duration::from_millis(50)));
        assert_eq!(entry.look(&hold, at(150), false), ended(&hold, 1));
        assert_eq!(asks(&entry, 100, 300), Some(45));
    }

    #[test]
    fn after_a_lease_of_which_nothing_was_used_there_is_none_for_a_second() {
        let entry = entry();
        let hold = grant(&entry, 5, 0);
        assert_eq!(entry.look(&hold, at(100), false), ended(&hold, 0));
        assert_eq!(asks(&entry, 100, 1099), None);
        assert_eq!(asks(&entry, 100, 1100), Some(45));
    }

    #[test]
    fn a_lease_that_ends_with_its_window_before_it_is_used_is_followed_by_another() {
        let entry = entry();
        let short = Duration::from_millis(1).try_into().ok();
        let verdict = Verdict { spend_within: short, ..verdict(5, 900) };
        let hold = entry.answered(Ok(verdict), at(998), at(999)).unwrap();
        assert_eq!(entry.look(&hold, at(999), false), ended(&hold, 0));
        assert_eq!(asks(&entry, 100, 1000), Some(45));
    }

    #[test]
    fn a_lease_is_spent_for_at_most_200_ms() {
        let entry = entry();
        let long = Duration::from_secs(60).try_into().ok();
        let verdict = Verdict { spend_within: long, ..verdict(5, 900) };
        entry.answered(Ok(verdict), at(10), at(11)).unwrap();
        assert!(spends(&entry, 1, 209));
        assert!(!spends(&entry, 1, 210));
    }

    #[test]
    fn after_a_question_without_a_lease_there_is_none_for_a_while() {
        let denied = Verdict { code: 2, hold: String::new(), ..verdict(0, 40) };
        let error = tonic_types::pb::Status { code: 3, ..tonic_types::pb::Status::default() };
        let refused = Verdict { code: 0, error: Some(error), ..Verdict::default() };
        let failed = |code| Err(ServiceError::new(code, ""));
        for (answer, pause, refusal) in [
            (failed(tonic::Code::Unavailable), 100, None),
            (failed(tonic::Code::DeadlineExceeded), 100, None),
            (Ok(Verdict::default()), 100, None),
            (Ok(denied), 100, None),
            (Ok(refused), 10_000, Some("INVALID_ARGUMENT")),
            (failed(tonic::Code::Unimplemented), 10_000, Some("UNIMPLEMENTED")),
        ] {
            let entry = entry();
            entry.learn(&self::answer(40));
            assert_eq!(asks(&entry, 100, 100), Some(2));
            let answered = entry.answered(answer, at(100), at(101));
            assert_eq!(
                answered.map_err(|error| error.code),
                refusal.map_or(Ok(String::new()), Err)
            );
            assert_eq!(asks(&entry, 100, 101 + pause - 1), None, "{pause}");
            assert_eq!(asks(&entry, 100, 101 + pause), Some(2), "{pause}");
        }
    }

    #[test]
    fn an_answer_says_what_the_service_would_say() {
        let entry = entry();
        entry.answered(Ok(verdict(20, 900)), at(0), at(5)).unwrap();
        let decision = entry.decide(3, || at(150), drop).unwrap();
        let expected = (true, Some(1000), 917, "user", Duration::from_millis(350));
        let Decision { allowed, limit, remaining, reset, .. } = decision;
        assert_eq!((allowed, limit, remaining, decision.rule(), reset), expected);
        assert_eq!((decision.hits, &*decision.hold, decision.retry_after), (0, "", None));
        let [limited, free] = &*decision.statuses else { panic!("{decision:?}") };
        assert_eq!((limited.remaining, limited.reset), (917, Duration::from_millis(350)));
        assert_eq!((free.descriptor, free.remaining, free.limit.is_none()), (1, 0, true));
    }

    #[test]
    fn leases_without_a_limit_leave_nothing_behind() {
        let entry = entry();
        let free = Verdict { hold: String::new(), statuses: Vec::new(), ..verdict(5, 0) };
        for ms in [0, 300, 600] {
            assert_eq!(entry.answered(Ok(free.clone()), at(ms), at(ms)), Ok(String::new()));
            let decision = entry.decide(1, || at(ms), drop).unwrap();
            assert_eq!((decision.limit, decision.remaining), (None, 0));
        }
        assert_eq!(entry.leases().len(), 1);
    }

    #[test]
    fn an_entry_is_in_use_for_a_second_after_its_calls_and_while_it_asks() {
        let entry = entry();
        assert!(entry.is_in_use(at(999)) && !entry.is_in_use(at(1000)));
        entry.learn(&answer(1000));
        assert!(asks(&entry, 100, 100).is_some());
        assert!(entry.is_in_use(at(5000)));
    }
}
