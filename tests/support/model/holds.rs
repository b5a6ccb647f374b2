//! The reference model of holds: a list of holds with their times, beside the reference model of counters.

use std::{cmp::Reverse, collections::HashSet, time::Duration};

use tollkeeper::{
    engine::{
        hold::Abandoned,
        key,
        ledger::{CommitOutcome, CounterState, GiveBack},
    },
    store::Clear,
};

use super::{Counter, Judged, Model, Place, denials, hits_to_judge, is_counted};

use super::super::charges::prelude::*;

/// Counters, and every hold that was ever made on them.
#[derive(Default, Clone)]
pub struct HoldModel {
    counters: Model,
    /// The tokens that are committed, on a counter each.
    committed: Vec<(String, HoldId)>,
    by_id: Vec<HoldById>,
    open: Vec<OpenHold>,
    /// The counters on which takes have opened holds, open or not.
    opened: Vec<(HoldId, String)>,
    /// When counters were reset.
    resets: Vec<(String, i128)>,
}

/// A take by id, on one counter.
#[derive(Clone)]
struct HoldById {
    name: String,
    id: HoldId,
    hits: i128,
    made: i128,
    deadline: i128,
    forgotten: i128,
    is_committed: bool,
}

/// A hold without an id of its own, on one counter of its take.
#[derive(Clone)]
struct OpenHold {
    name: String,
    take: HoldId,
    deadline: i128,
    hits: i128,
    lifetime: i128,
}

impl OpenHold {
    fn place(&self) -> Place {
        (self.deadline, Reverse(self.take), self.lifetime)
    }
}

fn name(charge: &Charge) -> String {
    Counter::of(charge, 0).name
}

/// Whether the estimates of open holds are kept that are abandoned, if a charge acts on them.
fn by_counter(charge: &Charge) -> Option<bool> {
    match charge.hold.filter(|_| !charge.counter.limit.counts_calls())? {
        HoldAction::Open { abandoned, .. }
        | HoldAction::EndOldest { abandoned }
        | HoldAction::Beside { abandoned } => Some(abandoned == Abandoned::Keep),
        _ => None,
    }
}

fn estimate(charge: &Charge) -> i128 {
    match charge.hold {
        Some(HoldAction::Open { estimate, .. }) => estimate.into(),
        _ => 0,
    }
}

fn opens(charge: &Charge) -> bool {
    matches!(charge.hold, Some(HoldAction::Open { .. }))
}

impl HoldModel {
    /// Judges one call at `now`, and counts it.
    pub fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        let now = i128::from(now.as_millis());
        for charge in charges {
            self.counters.set_back(&Counter::of(charge, now), now);
        }
        charges.iter().for_each(|charge| self.expire(charge, now));
        let (commits, held) = self.commit(charges, now);
        for (charge, commit) in charges.iter().zip(&commits) {
            if let (Hits::Refund(hits), None) = (charge.hits, commit) {
                self.counters.refund(charge, hits.into(), now);
            }
        }
        let asking: Vec<Charge> = charges
            .iter()
            .zip(&commits)
            .filter(|(_, commit)| commit.is_none())
            .map(|(charge, _)| charge.clone())
            .collect();
        let after_refunds = self.clone();
        let mut judged = Vec::new();
        for charge in &asking {
            let own_check = opens(charge) && charge.hits == Hits::Check;
            let mut hits = hits_to_judge(charge, &asking, now) - i128::from(own_check);
            if opens(charge) {
                let same = |other: &&Charge| opens(other) && name(other) == name(charge);
                hits += asking.iter().filter(same).map(estimate).sum::<i128>();
                hits += after_refunds.held_on(&name(charge), now);
                if own_check {
                    let charged = asking.iter().filter(|other| {
                        name(other) == name(charge) && matches!(other.hits, Hits::Charge(_))
                    });
                    hits += charged
                        .map(|other| match other.hits {
                            Hits::Charge(hits) => i128::from(hits),
                            _ => 0,
                        })
                        .sum::<i128>();
                }
            }
            if matches!(charge.hold, Some(HoldAction::Beside { .. })) {
                hits += after_refunds.held_on(&name(charge), now);
            }
            let fits = charge.hits.asks_nothing() || after_refunds.counters.fits(charge, hits, now);
            judged.push(Judged { charge, hits, fits });
        }
        let (denied, denied_uncharged) = denials(&judged);
        for Judged { charge, fits, .. } in &judged {
            let is_charged = (!denied && *fits)
                || charge.is_end()
                || !charge.is_take()
                    && (is_counted(charge)
                        || charge.counter.limit.mode == Mode::Quota && !denied_uncharged);
            if let (Hits::Charge(hits), true) = (charge.hits, is_charged) {
                self.counters.add(charge, hits.into(), now);
            }
            if !denied && *fits {
                self.take(charge, now);
            }
        }
        let mut judged = judged.iter();
        let mut tallies = Vec::new();
        for (charge, commit) in charges.iter().zip(commits) {
            if let Some(outcome) = commit {
                tallies.push(self.committed(charge, outcome, now));
                continue;
            }
            let Judged { hits, fits, .. } = judged.next().unwrap();
            let is_check = charge.hits == Hits::Check && !opens(charge);
            let state = if is_check { &after_refunds } else { &*self };
            let mut tally = state.counters.tally(charge, *fits, *hits, now);
            if let (Some(_), Fit::Fits { remaining }) = (by_counter(charge), &mut tally.fit) {
                let held = state.held_on(&name(charge), now);
                *remaining = (i128::from(*remaining) - held).max(0) as u64;
            }
            tallies.push(tally);
        }
        for (tally, held) in tallies.iter_mut().zip(held) {
            tally.held = held as u64;
        }
        tallies
    }

    /// What the open holds on a counter hold.
    fn held_on(&self, name: &str, now: i128) -> i128 {
        let open = self.open.iter().filter(|hold| hold.name == name && now < hold.deadline);
        open.map(|hold| hold.hits).sum()
    }

    fn set_back(&mut self, name: &str, now: i128) {
        let mut here: Vec<&mut OpenHold> =
            self.open.iter_mut().filter(|hold| hold.name == name).collect();
        here.sort_by_key(|hold| hold.place());
        if here.last().is_some_and(|newest| newest.deadline > now + newest.lifetime) {
            here.iter_mut().for_each(|hold| hold.deadline = hold.deadline.min(now + hold.lifetime));
        }
    }

    /// Charges what was abandoned, as far as it would still count.
    fn expire(&mut self, charge: &Charge, now: i128) {
        let Some(is_kept) = by_counter(charge) else { return };
        let (name, counter) = (name(charge), Counter::of(charge, now));
        let is_aligned = charge.counter.limit.algorithm.is_aligned();
        self.set_back(&name, now);
        let (mut expired, open): (Vec<OpenHold>, _) =
            self.open.drain(..).partition(|hold| hold.name == name && hold.deadline <= now);
        self.open = open;
        expired.sort_by_key(OpenHold::place);
        for hold in expired {
            if is_kept && (!is_aligned || counter.start <= hold.deadline) {
                self.counters.add(charge, hold.hits, hold.deadline);
            }
        }
    }

    /// What becomes of the commits among the charges, and what the holds have held that these end by id or by counter.
    fn commit(&mut self, charges: &[Charge], now: i128) -> (Vec<Option<CommitOutcome>>, Vec<i128>) {
        let before: Vec<OpenHold> =
            self.open.iter().filter(|hold| now < hold.deadline).cloned().collect();
        let (mut outcomes, mut held) = (Vec::new(), Vec::new());
        for charge in charges {
            let (outcome, ended) = match charge.hold {
                _ if charge.counter.limit.counts_calls() => (self.counters.commit(charge, now), 0),
                Some(HoldAction::Commit { .. }) => (Some(self.commit_token(charge, now)), 0),
                Some(HoldAction::ById { .. }) => self.commit_id(charge, now),
                Some(HoldAction::EndOldest { .. }) => {
                    self.end_oldest(&name(charge), &before, now);
                    let open_here = |hold: &&OpenHold| hold.name == name(charge);
                    let held = |holds: &[OpenHold]| -> i128 {
                        holds.iter().filter(open_here).map(|hold| hold.hits).sum()
                    };
                    (None, held(&before) - held(&self.open))
                }
                _ => (None, 0),
            };
            outcomes.push(outcome);
            held.push(ended);
        }
        (outcomes, held)
    }

    /// Ends a take, unless one of those that were open on the counter before the call has ended already.
    fn end_oldest(&mut self, name: &str, before: &[OpenHold], now: i128) {
        let is_open = |hold: &&OpenHold| {
            self.open.iter().any(|open| open.take == hold.take && open.name == hold.name)
        };
        let here = before.iter().filter(|hold| hold.name == name);
        if here.clone().any(|hold| !is_open(&hold)) {
            return;
        }
        let Some(oldest) = here.min_by_key(|hold| hold.place()) else { return };
        let of_take = self.opened.clone().into_iter().filter(|(take, _)| *take == oldest.take);
        of_take.for_each(|(_, name)| self.set_back(&name, now));
        // One whose time has passed elsewhere is charged there.
        let is_live = |hold: &OpenHold| {
            before.iter().any(|live| live.take == hold.take && live.name == hold.name)
        };
        self.open.retain(|hold| hold.take != oldest.take || !is_live(hold));
    }

    fn commit_token(&mut self, charge: &Charge, now: i128) -> CommitOutcome {
        let Some(HoldAction::Commit { id, held, used, made, deadline }) = charge.hold else {
            panic!("no commit")
        };
        if !may_end_at(deadline, now) {
            return CommitOutcome::Late;
        }
        let token = (name(charge), id);
        if self.committed.contains(&token) {
            return CommitOutcome::Repeated;
        }
        self.committed.push(token);
        self.replace(charge, held.into(), used.into(), made, now);
        CommitOutcome::Applied
    }

    fn commit_id(&mut self, charge: &Charge, now: i128) -> (Option<CommitOutcome>, i128) {
        let Some(HoldAction::ById { id, used, is_end, lifetime_ms }) = charge.hold else {
            panic!("no id")
        };
        let name = name(charge);
        self.by_id.retain(|hold| now < hold.forgotten || hold.name != name || hold.id != id);
        if is_end && !self.by_id.iter().any(|hold| hold.name == name && hold.id == id) {
            let Hits::Charge(estimate) = charge.hits else { panic!("no hits") };
            let used = used.unwrap_or(estimate);
            if used > 0 {
                self.counters.add(charge, used.into(), now);
            }
            let forgotten = now + i128::from(lifetime_ms);
            let (hits, made, deadline) = (0, now, forgotten);
            let is_committed = true;
            self.by_id.push(HoldById { name, id, hits, made, deadline, forgotten, is_committed });
            return (Some(CommitOutcome::Applied), 0);
        }
        let known = self.by_id.iter_mut().find(|hold| hold.name == name && hold.id == id);
        let Some(known) = known else { return (None, 0) };
        if known.is_committed {
            return (Some(CommitOutcome::Repeated), 0);
        }
        known.is_committed = true;
        let HoldById { hits, made, deadline, .. } = *known;
        if deadline <= now {
            return (Some(CommitOutcome::Late), hits);
        }
        // Only the present window is at hand: others keep the estimate, later ones too if the clock was set back.
        let Counter { start, end, .. } = Counter::of(charge, now);
        let is_elsewhere =
            charge.counter.limit.algorithm.is_aligned() && !(start..end).contains(&made);
        let used = used.map_or(hits, i128::from);
        if !is_elsewhere || used > hits {
            let made = Timestamp::from_millis(made as u64);
            self.replace(charge, hits, used, made, now);
        }
        (Some(CommitOutcome::Applied), hits)
    }

    fn replace(&mut self, charge: &Charge, held: i128, used: i128, made: Timestamp, now: i128) {
        if used > held {
            self.counters.add(charge, used - held, now);
        } else if used < held && !self.is_before_reset(charge, made) {
            let give_back = GiveBack {
                counter: charge.counter.clone(),
                hits: (held - used) as u64,
                made,
                caller: None,
                hold: None,
            };
            let now = Timestamp::from_millis(now as u64);
            self.counters.give_back_of(&give_back, held as u64, now);
        }
    }

    fn is_before_reset(&self, charge: &Charge, made: Timestamp) -> bool {
        let (name, made) = (name(charge), i128::from(made.as_millis()));
        let mut resets = self.resets.iter().filter(|(reset, _)| *reset == name);
        resets.next_back().is_some_and(|(_, at)| made <= *at)
    }

    fn take(&mut self, charge: &Charge, now: i128) {
        let name = name(charge);
        match (charge.hold, charge.hits) {
            (Some(HoldAction::Open { id: take, lifetime_ms, .. }), _) => {
                let (lifetime, hits) = (i128::from(lifetime_ms), estimate(charge));
                self.opened.push((take, name.clone()));
                self.open.push(OpenHold { name, take, deadline: now + lifetime, hits, lifetime });
            }
            // The model of counters knows calls in flight.
            (Some(HoldAction::ById { .. }), _) if charge.counter.limit.counts_calls() => {}
            (Some(HoldAction::ById { id, lifetime_ms, .. }), Hits::Charge(hits)) => {
                let deadline = now + i128::from(lifetime_ms);
                let is_same = |hold: &&HoldById| hold.name == name && hold.id == id;
                // What another charge of the call has taken.
                let before: i128 = self.by_id.iter().filter(is_same).map(|hold| hold.hits).sum();
                self.by_id.retain(|hold| !is_same(&hold));
                self.by_id.push(HoldById {
                    name,
                    id,
                    hits: before + i128::from(hits),
                    made: now,
                    deadline,
                    forgotten: deadline + i128::from(lifetime_ms),
                    is_committed: false,
                });
            }
            _ => {}
        }
    }

    /// The tally of a commit describes the window that it gives hits back to.
    fn committed(&self, charge: &Charge, outcome: CommitOutcome, now: i128) -> Tally {
        let at = match charge.hold {
            Some(HoldAction::Commit { held, used, made, .. })
                if used < held && charge.counter.limit.algorithm.is_aligned() =>
            {
                i128::from(made.as_millis())
            }
            _ => now,
        };
        let ends = self.counters.ends(charge, at);
        // Without hits it ends at once.
        let ends = if ends == at { now } else { ends };
        let reset = (ends - now).max(0) as u64;
        Tally::new(Fit::Commit(outcome), Duration::from_millis(reset))
    }

    /// Takes back what a reservation charged, and what it noted of a take by id.
    pub fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally> {
        if let Some(HoldAction::ById { id, .. }) = give_back.hold {
            let name = name(&Charge::new(give_back.counter.clone(), Hits::Refund(0)));
            self.by_id.retain(|hold| hold.name != name || hold.id != id);
        }
        self.counters.give_back(give_back, now)
    }

    /// The state of a counter. A reset removes its present window, the one before if that is weighed, and the open holds of
    /// a limit by counter; what is known of ids and tokens stays.
    pub fn read(&mut self, counter: &key::Counter, clear: Clear, now: Timestamp) -> CounterState {
        let reading = Charge::reading(counter.clone());
        let at = i128::from(now.as_millis());
        let mut present = self.clone();
        present.counters.set_back(&Counter::of(&reading, at), at);
        present.expire(&reading, at);
        let name = name(&reading);
        let calls = present.counters.used(&reading, at);
        let open = match reading.counter.limit.counts_calls() {
            true => calls,
            false if by_counter(&reading).is_some() => {
                let open = present.open.iter().filter(|hold| hold.name == name);
                open.map(|hold| hold.take).collect::<HashSet<_>>().len() as i128
            }
            false => 0,
        };
        let held = by_counter(&reading).map_or(0, |_| present.held_on(&name, at));
        let remaining = i128::from(present.counters.left(&reading, at)) - held;
        let ends = present.counters.ends(&reading, at);
        if clear == Clear::Yes {
            self.counters.remove(&reading, at);
            self.resets.push((name.clone(), at));
            let is_by_counter = |by| by == Some(HoldBy::Counter);
            if is_by_counter(counter.limit.hold.as_ref().map(|policy| policy.by)) {
                self.open.retain(|hold| hold.name != name);
            }
        }
        CounterState {
            used: calls as u64,
            remaining: remaining.max(0) as u64,
            held: held as u64,
            open_holds: open as u64,
            credit: 0,
            closed: false,
            reset: Duration::from_millis((ends - at).max(0) as u64),
            remembered: Vec::new(),
        }
    }
}

/// Whether a hold with this deadline can be open.
pub fn may_end_at(deadline: Timestamp, now: i128) -> bool {
    let ahead = i128::from(deadline.as_millis()) - now;
    ahead > 0 && ahead <= i128::from(HoldPolicy::AHEAD_MS_MAX)
}
