//! The holds that are open, by rule. A replica knows what it has taken and what it has ended, which another may have taken. So
//! each counts both by their deadlines, and the sum over all replicas is the number of holds.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use hashbrown::HashMap;
use opentelemetry::{KeyValue, metrics::Meter};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::{
    engine::{hold::HoldPolicy, time::Timestamp},
    limiter::metrics::rule_series::RuleSeries,
    telemetry::{Observe, instruments, observe_together},
};

instruments! {
    HOLDS = Counter("ratelimit.holds", ["rule", "outcome"],
        "holds `taken`; `committed`, `overrun` (used more than held), `unused` (0); without effect: `repeated`, `late`, `bad` token, `unsent` to the store. After the hold's time: `expired` if taken and not ended here, `elsewhere` if only ended here");
    OPEN = Gauge("ratelimit.holds.open", ["rule"],
        "open holds with a token or id: taken minus ended here, also below 0");
    HELD = Gauge("ratelimit.holds.hits", ["rule"], "hits of the holds in `ratelimit.holds.open`");
}

/// The most times of a rule at which holds lapse. Takes of one limit need 65; tokens that are not signed may state any.
const LAPSES_MAX: usize = 256;

#[derive(Debug, Clone, Default)]
pub(super) struct OpenHolds(Arc<RwLock<HashMap<Arc<str>, Mutex<RuleHolds>>>>);

/// What has been taken, less what has been ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Balance {
    holds: i64,
    hits: i64,
}

type Balances = Vec<(Arc<str>, Balance)>;

#[derive(Debug, Default)]
struct RuleHolds {
    /// A time of the store, and of this process.
    clock: Option<(Timestamp, Instant)>,
    /// By the store's time at which they lapse, in milliseconds.
    lapsing: BTreeMap<u64, Balance>,
    outcomes: HoldOutcomes,
}

/// What has become of holds since it was last reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HoldOutcomes {
    taken: u64,
    /// Not ended by this replica, which has taken them.
    expired: u64,
    /// Ended by this replica, and taken by another.
    elsewhere: u64,
}

impl OpenHolds {
    /// Observes the open holds whenever metrics are read, and adds what has become of holds to these series.
    pub(super) fn observe(&self, outcomes: RuleSeries, meter: &Meter) {
        let open = self.clone();
        observe_together(
            meter,
            move || open.report(&outcomes),
            &[
                (&OPEN, |balances, observe| observe_each(balances, observe, |of| of.holds)),
                (&HELD, |balances, observe| observe_each(balances, observe, |of| of.hits)),
            ],
        );
    }

    /// Notes a hold of this rule that was taken at `now`, by the store's clock.
    pub(super) fn take(&self, rule: &Arc<str>, policy: &HoldPolicy, hits: u64, now: Timestamp) {
        let deadline = now.plus_millis(policy.lifetime_ms);
        let taken = Balance { holds: 1, hits: whole(hits) };
        self.change(rule, now, |holds| {
            holds.outcomes.taken += 1;
            holds.add(lapse(deadline, policy), taken);
        });
    }

    /// Notes that a hold was ended at `now`. Without a deadline, it is taken for the oldest of this rule.
    pub(super) fn end(
        &self,
        rule: &Arc<str>,
        policy: &HoldPolicy,
        hits: u64,
        (deadline, now): (Option<Timestamp>, Timestamp),
    ) {
        let ended = Balance { holds: -1, hits: -whole(hits) };
        let latest = now.plus_millis(HoldPolicy::LIFETIME_MS_MAX);
        self.change(rule, now, |holds| match deadline {
            Some(deadline) => holds.add(lapse(deadline.min(latest), policy), ended),
            None if holds.end_oldest() => {}
            None => holds.add(lapse(now.plus_millis(policy.lifetime_ms), policy), ended),
        });
    }

    /// Forgets the rules that are not among these, each with an empty domain.
    pub(super) fn retain(&self, in_force: &HashSet<[String; 2]>) {
        let is_in_force = |rule: &Arc<str>| in_force.contains(&[String::new(), rule.to_string()]);
        self.0.write().retain(|rule, _| is_in_force(rule));
    }

    fn change(&self, rule: &Arc<str>, now: Timestamp, change: impl FnOnce(&mut RuleHolds)) {
        let rules = self.0.read();
        if let Some(holds) = rules.get(rule) {
            return change(holds.lock().at(now));
        }
        drop(rules);
        change(self.0.write().entry(Arc::clone(rule)).or_default().get_mut().at(now));
    }

    fn report(&self, outcomes: &RuleSeries) -> Balances {
        let mut balances = Vec::new();
        for (rule, holds) in &*self.0.read() {
            let (balance, HoldOutcomes { taken, expired, elsewhere }) =
                holds.lock().report(Instant::now());
            for (outcome, count) in
                [("taken", taken), ("expired", expired), ("elsewhere", elsewhere)]
            {
                let outcome = KeyValue::new("outcome", outcome);
                outcomes.add(count, &[KeyValue::new("rule", Arc::clone(rule)), outcome]);
            }
            balances.push((Arc::clone(rule), balance));
        }
        balances
    }
}

impl RuleHolds {
    /// Reading a clock is the most expensive part of a change, so one a second is enough.
    fn at(&mut self, now: Timestamp) -> &mut Self {
        let is_known = |(at, _)| (0..1000).contains(&now.millis_since(at));
        if !self.clock.is_some_and(is_known) {
            self.clock = Some((now, Instant::now()));
        }
        self.pass(now);
        self
    }

    fn add(&mut self, lapse: u64, change: Balance) {
        let is_full = self.lapsing.len() >= LAPSES_MAX && !self.lapsing.contains_key(&lapse);
        let later = || self.lapsing.range(lapse..).next().or(self.lapsing.last_key_value());
        let known = if is_full { later() } else { None };
        let lapse = known.map_or(lapse, |(known, _)| *known);
        let balance = self.lapsing.entry(lapse).or_default();
        balance.holds = balance.holds.saturating_add(change.holds);
        balance.hits = balance.hits.saturating_add(change.hits);
    }

    /// Ends the oldest hold, of which the hits are not known. Returns whether there is one.
    fn end_oldest(&mut self) -> bool {
        let Some(oldest) = self.lapsing.values_mut().find(|balance| balance.holds > 0) else {
            return false;
        };
        oldest.hits -= oldest.hits / oldest.holds;
        oldest.holds -= 1;
        true
    }

    /// Lets the holds lapse whose time has passed.
    fn pass(&mut self, now: Timestamp) {
        while let Some(first) = self.lapsing.first_entry()
            && *first.key() <= now.as_millis()
        {
            let holds = first.remove().holds;
            let of_kind =
                if holds > 0 { &mut self.outcomes.expired } else { &mut self.outcomes.elsewhere };
            *of_kind = of_kind.saturating_add(holds.unsigned_abs());
        }
    }

    fn report(&mut self, at: Instant) -> (Balance, HoldOutcomes) {
        if let Some((now, since)) = self.clock {
            let passed = at.saturating_duration_since(since).as_millis();
            self.pass(now.plus_millis(u64::try_from(passed).unwrap_or(u64::MAX)));
        }
        let balances = self.lapsing.values();
        let sum = balances.fold(Balance::default(), |sum, balance| Balance {
            holds: sum.holds.saturating_add(balance.holds),
            hits: sum.hits.saturating_add(balance.hits),
        });
        (sum, std::mem::take(&mut self.outcomes))
    }
}

/// When a hold lapses for the metrics: up to a 32nd of its time after its deadline, so that few such times are kept. On all
/// replicas alike.
fn lapse(deadline: Timestamp, policy: &HoldPolicy) -> u64 {
    let step = (policy.lifetime_ms / 64).max(1).next_power_of_two();
    deadline.as_millis().div_ceil(step).saturating_mul(step)
}

/// Hits are below 2^53.
fn whole(hits: u64) -> i64 {
    i64::try_from(hits).unwrap_or(i64::MAX)
}

fn observe_each(balances: &Balances, observe: Observe<'_>, number: fn(&Balance) -> i64) {
    for (rule, balance) in balances {
        observe(number(balance) as f64, &[KeyValue::new("rule", Arc::clone(rule))]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME_MS: u64 = 6_400;

    /// A replica, whose clock begins at 1,000,000 s.
    struct Replica(OpenHolds);

    impl Replica {
        fn new() -> Self {
            Self(OpenHolds::default())
        }

        fn at(second: u64) -> Timestamp {
            Timestamp::from_secs(1_000_000 + second)
        }

        /// Takes a hold, and returns its deadline.
        fn take(&self, second: u64, hits: u64) -> Timestamp {
            let policy = HoldPolicy::new(LIFETIME_MS);
            self.0.take(&"user".into(), &policy, hits, Self::at(second));
            Self::at(second).plus_millis(LIFETIME_MS)
        }

        fn end(&self, second: u64, hits: u64, deadline: Option<Timestamp>) {
            let (policy, now) = (HoldPolicy::new(LIFETIME_MS), Self::at(second));
            self.0.end(&"user".into(), &policy, hits, (deadline, now));
        }

        /// The open holds and their hits, and how many have expired and were ended elsewhere.
        fn shown(&self, second: u64) -> [i64; 4] {
            let rules = self.0.0.read();
            let Some(holds) = rules.get("user") else { return [0; 4] };
            let (clock, began) = holds.lock().clock.unwrap();
            let passed = Self::at(second).millis_since(clock);
            let at = began + std::time::Duration::from_millis(passed.unsigned_abs());
            let (Balance { holds: open, hits }, counts) = holds.lock().report(at);
            [open, hits, whole(counts.expired), whole(counts.elsewhere)]
        }
    }

    #[test]
    fn a_hold_is_open_until_it_is_ended_or_its_time_has_passed() {
        let replica = Replica::new();
        let ended = replica.take(0, 300);
        replica.take(0, 20);
        assert_eq!(replica.shown(0), [2, 320, 0, 0]);
        replica.end(1, 300, Some(ended));
        assert_eq!(replica.shown(6), [1, 20, 0, 0]);
        assert_eq!(replica.shown(7), [0, 0, 1, 0]);
        assert_eq!(replica.shown(8), [0; 4], "it is reported once");
    }

    #[test]
    fn the_sums_over_replicas_are_exact_whichever_replica_ends_a_hold() {
        let replicas = [Replica::new(), Replica::new()];
        let sums = |second| {
            let shown = replicas.each_ref().map(|replica| replica.shown(second));
            std::array::from_fn::<i64, 4, _>(|index| shown[0][index] + shown[1][index])
        };
        let one = replicas[0].take(0, 300);
        let other = replicas[1].take(1, 20);
        replicas[0].take(1, 1);
        replicas[1].end(2, 300, Some(one));
        assert_eq!(sums(2), [2, 21, 0, 0]);
        replicas[0].end(3, 20, Some(other));
        assert_eq!(sums(3), [1, 1, 0, 0]);
        let [open, hits, expired, elsewhere] = sums(8);
        assert_eq!([open, hits, expired - elsewhere], [0, 0, 1]);
    }

    #[test]
    fn without_a_deadline_the_oldest_hold_is_ended() {
        let replica = Replica::new();
        replica.take(0, 100);
        replica.take(0, 300);
        replica.take(5, 50);
        replica.end(6, 0, None);
        assert_eq!(replica.shown(6), [2, 250, 0, 0], "the mean of its time");
        replica.end(6, 0, None);
        replica.end(6, 0, None);
        assert_eq!(replica.shown(7), [0; 4]);
    }

    #[test]
    fn invented_deadlines_take_no_more_memory() {
        let replica = Replica::new();
        for second in 0..10_000 {
            replica.end(0, 1, Some(Replica::at(10_000 - second)));
        }
        let rules = replica.0.0.read();
        let holds = rules["user"].lock();
        assert_eq!(holds.lapsing.len(), LAPSES_MAX);
        assert_eq!(holds.lapsing.values().map(|balance| balance.holds).sum::<i64>(), -10_000);
    }
}
