//! The reference model: each algorithm written as simply as possible, on large integers. It shares no
//! arithmetic with the engine, and is slow.

pub mod holds;

use std::cmp::Reverse;

use tollkeeper::engine::ledger::{CommitOutcome, GiveBack, part_asked};

use super::{charges::prelude::*, prelude::*};

/// Largest count: Lua's numbers are exact up to here.
const COUNT_MAX: i128 = (1 << 53) - 1;

/// Everything that was counted, by the counter's name.
#[derive(Default, Clone)]
pub struct Model {
    /// Fixed and sliding windows: the hits of each window, by its start.
    windows: HashMap<(String, i128), i128>,
    /// First-hit windows: hits and end.
    opened: HashMap<String, (i128, i128, i128)>,
    /// Logs: the time of each single hit.
    logs: HashMap<String, Vec<i128>>,
    /// Buckets: the debt, in hits times the window's milliseconds, and its time.
    buckets: HashMap<String, (i128, i128)>,
    /// Calls in flight: each place, by the deadlines.
    places: HashMap<String, Vec<Place>>,
    /// Takes by id in flight: the deadline, until the call has ended, and when the take is forgotten.
    taken: HashMap<(String, HoldId), (Option<i128>, i128)>,
    /// Counters that are closed: until when, and for how long.
    closed: HashMap<String, (i128, i128)>,
}

/// A place that a call in flight occupies: its deadline, the call, and how long the call may last.
type Place = (i128, Reverse<HoldId>, i128);

/// Those that began after `now` begin now, if the newest did.
fn set_back(places: &mut [Place], now: i128) {
    places.sort();
    let is_ahead = |(deadline, _, lifetime): &Place| *deadline > now + lifetime;
    if places.last().is_some_and(is_ahead) {
        let ahead = places.iter_mut().filter(|place| is_ahead(place));
        ahead.for_each(|(deadline, _, lifetime)| *deadline = now + *lifetime);
        places.sort();
    }
}

/// The counter and limit of a charge. Times are in milliseconds.
struct Counter {
    name: String,
    limit: i128,
    capacity: i128,
    /// Length of the window.
    window: i128,
    idle: i128,
    start: i128,
    end: i128,
}

impl Counter {
    fn of(charge: &Charge, now: i128) -> Self {
        let limit = &charge.counter.limit;
        let span = limit.window.at(Timestamp::from_millis(now as u64));
        let most = i128::from(limit.requests_per_unit);
        let (start, end): (i128, i128) =
            (span.start.as_millis().into(), span.end.as_millis().into());
        // What is reserved at the start is released evenly.
        let reserved = limit.opens_from.map_or(0, |from| most - i128::from(from));
        let released = reserved * (now - start) / (end - start).max(1);
        Self {
            name: charge.counter.key(Timestamp::from_millis(0)),
            limit: most - reserved + released,
            capacity: limit.capacity().into(),
            window: match &limit.hold {
                Some(policy) if limit.counts_calls() => policy.lifetime_ms.into(),
                _ => i128::from(limit.window.seconds()) * 1000,
            },
            idle: limit.idle_ms().map_or(i128::MAX >> 1, i128::from),
            start: span.start.as_millis().into(),
            end: span.end.as_millis().into(),
        }
    }
}

/// A charge, the hits that it is judged by, and whether they fit.
struct Judged<'call> {
    charge: &'call Charge,
    hits: i128,
    fits: bool,
}

/// Promise "all or nothing": the sum of the call's hits on the counter; one for a check.
fn hits_to_judge(charge: &Charge, call: &[Charge], now: i128) -> i128 {
    if charge.hits == Hits::Check {
        return 1;
    }
    let counter = Counter::of(charge, now).name;
    let mut sum = 0;
    for other in call {
        if let Hits::Charge(hits) = other.hits
            && Counter::of(other, now).name == counter
        {
            sum += i128::from(hits);
        }
    }
    sum
}

/// Promise "all or nothing": whether the call is denied, and whether an enforced charge denies it that is not counted
/// when denied.
fn denials(judged: &[Judged<'_>]) -> (bool, bool) {
    let (mut enforced_over, mut uncounted_over) = (0, 0);
    // A quota without a group is one of its own.
    let mut groups: HashMap<(usize, usize), Vec<bool>> = HashMap::new();
    for (index, Judged { charge, fits, .. }) in
        judged.iter().enumerate().filter(|(_, judged)| !judged.charge.hits.asks_nothing())
    {
        match charge.counter.limit.mode {
            Mode::Enforced => {
                enforced_over += i32::from(!fits);
                uncounted_over += i32::from(!fits && !is_counted(charge));
            }
            _ if draws(charge) || !has_vote(charge) => {}
            Mode::Quota | Mode::Shadow => {
                let own = if charge.quota_group == 0 { index } else { 0 };
                groups
                    .entry((charge.quota_group, own))
                    .or_default()
                    .push(*fits || charge.always_fits);
            }
        }
    }
    let mut over = groups.values().filter(|fits| fits.contains(&false)).count();
    // A group that draws first is over if the quota that stands for it is.
    let drawing = judged.iter().filter(|judged| draws(judged.charge));
    let drawing: BTreeSet<usize> = drawing.map(|judged| judged.charge.quota_group).collect();
    let drawn = drawing.iter().filter_map(|group| drawn(judged, *group));
    let drawn = drawn.map(|index| &judged[index]).filter(|one| has_vote(one.charge));
    let drawn: Vec<bool> = drawn.map(|one| one.fits || one.charge.always_fits).collect();
    over += drawn.iter().filter(|fits| !**fits).count();
    let groups = groups.len() + drawn.len();
    (enforced_over > 0 || (over > 0 && over == groups), uncounted_over > 0)
}

/// Whether a charge is a quota, or the shadow of one, of which only the first that fits is charged.
fn draws(charge: &Charge) -> bool {
    charge.draws_first && charge.counter.limit.mode != Mode::Enforced && !charge.hits.asks_nothing()
}

/// Whether a quota admits or denies: a shadow does neither, unless it is exempted.
fn has_vote(charge: &Charge) -> bool {
    charge.counter.limit.mode == Mode::Quota || charge.always_fits
}

/// The index of the quota that stands for its group: the first that fits or is exempted, else the last.
fn drawn(judged: &[Judged<'_>], group: usize) -> Option<usize> {
    let of_group = || {
        let all = judged.iter().enumerate();
        all.filter(|(_, one)| draws(one.charge) && one.charge.quota_group == group)
    };
    let first = of_group().find(|(_, one)| one.fits || one.charge.always_fits);
    first.or_else(|| of_group().next_back()).map(|(index, _)| index)
}

fn is_counted(charge: &Charge) -> bool {
    charge.when_denied() == WhenDenied::Counted
}

impl Model {
    /// Judges one call at `now`, and counts it: of parts as many hits as let it pass, or one.
    pub fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        let judge = |hits| {
            let with_hits = |charge: &Charge| match charge.hits {
                Hits::Charge(_) if charge.is_part => {
                    Charge { hits: Hits::Charge(hits), ..charge.clone() }
                }
                _ => charge.clone(),
            };
            let charges: Vec<Charge> = charges.iter().map(with_hits).collect();
            let mut after = self.clone();
            let (tallies, denied) = after.judge(&charges, now);
            (after, tallies, denied)
        };
        let most = part_asked(charges).unwrap_or(1);
        let (mut after, mut tallies, denied) = judge(most);
        if denied && most > 1 {
            let (mut fitting, mut over) = (1, most);
            while over - fitting > 1 {
                let middle = fitting.midpoint(over);
                *(if judge(middle).2 { &mut over } else { &mut fitting }) = middle;
            }
            (after, tallies, _) = judge(fitting);
        }
        *self = after;
        tallies
    }

    /// The tallies of a call, and whether it is denied.
    fn judge(&mut self, charges: &[Charge], now: Timestamp) -> (Vec<Tally>, bool) {
        let now = i128::from(now.as_millis());
        for charge in charges {
            let counter = Counter::of(charge, now);
            self.set_back(&counter, now);
            if let (Some(HoldAction::Ban { .. }), Some((until, length))) =
                (charge.hold, self.closed.get_mut(&counter.name))
            {
                *until = (*until).min(now + *length);
            }
        }
        let commits: Vec<_> = charges.iter().map(|charge| self.commit(charge, now)).collect();
        for charge in charges {
            if let Hits::Refund(hits) = charge.hits {
                self.refund(charge, hits.into(), now);
            }
        }
        let asking = charges.iter().zip(&commits).filter(|(_, commit)| commit.is_none());
        let asking: Vec<Charge> = asking.map(|(charge, _)| charge.clone()).collect();
        // Every charge is judged in the state after the refunds, by the sum on its counter.
        let after_refunds = self.clone();
        let mut judged = Vec::new();
        for charge in &asking {
            let hits = hits_to_judge(charge, &asking, now);
            let fits = charge.hits.asks_nothing()
                || after_refunds.closed(charge, now).is_none()
                    && after_refunds.fits(charge, hits, now);
            judged.push(Judged { charge, hits, fits });
        }
        let (denied, denied_uncharged) = denials(&judged);
        let denied_uncharged =
            denied_uncharged || denied && charges.iter().any(|charge| charge.is_part);
        for (index, Judged { charge, fits, .. }) in judged.iter().enumerate() {
            // Promise "all or nothing": which hits are charged.
            let is_drawn = !draws(charge) || drawn(&judged, charge.quota_group) == Some(index);
            let is_charged = is_drawn
                && ((!denied && *fits)
                    || is_counted(charge)
                    || (charge.counter.limit.mode == Mode::Quota
                        && !draws(charge)
                        && !denied_uncharged));
            if let (Hits::Charge(hits), true) = (charge.hits, is_charged) {
                self.add(charge, hits.into(), now);
            }
        }
        // A penalty box: what does not fit closes the counter, unless it is closed.
        for Judged { charge, fits, .. } in &judged {
            if let (Hits::Charge(_), false, Some(HoldAction::Ban { for_ms }), None) =
                (charge.hits, *fits, charge.hold, self.closed(charge, now))
            {
                let length = i128::from(for_ms);
                self.closed.insert(Counter::of(charge, now).name, (now + length, length));
            }
        }
        let (mut judged, mut tallies) = (judged.into_iter(), Vec::new());
        for (charge, commit) in charges.iter().zip(commits) {
            tallies.push(if let Some(outcome) = commit {
                Tally { fit: Fit::Commit(outcome), ..self.tally(charge, true, 0, now) }
            } else {
                let Judged { charge, hits, fits } = judged.next().unwrap();
                let state = if charge.hits == Hits::Check { &after_refunds } else { &*self };
                state.tally(charge, fits, hits, now)
            });
        }
        (tallies, denied)
    }

    fn tally(&self, charge: &Charge, fits: bool, hits: i128, now: i128) -> Tally {
        let (fit, at) = if fits {
            (Fit::Fits { remaining: self.left(charge, now) }, self.ends(charge, now))
        } else {
            let closed = self.closed(charge, now);
            (Fit::Over, closed.unwrap_or_else(|| self.admits_at(charge, hits, now)))
        };
        Tally::new(fit, Duration::from_millis((at - now).max(0) as u64))
    }

    /// Until when its counter is closed, if it is.
    fn closed(&self, charge: &Charge, now: i128) -> Option<i128> {
        let Some(HoldAction::Ban { .. }) = charge.hold else { return None };
        let (until, _) = *self.closed.get(&Counter::of(charge, now).name)?;
        Some(until).filter(|until| now < *until)
    }

    /// The most hits that would pass, by binary search.
    fn left(&self, charge: &Charge, now: i128) -> u64 {
        let (mut fit, mut over) = (0_u64, 1 << 53);
        while over - fit > 1 {
            let middle = fit.midpoint(over);
            if self.fits(charge, middle.into(), now) {
                fit = middle;
            } else {
                over = middle;
            }
        }
        fit
    }

    /// The first instant at which these hits would pass, by binary search.
    fn admits_at(&self, charge: &Charge, hits: i128, now: i128) -> i128 {
        let (mut over, mut fit) = (now, self.ends(charge, now));
        let one_window = matches!(
            charge.counter.limit.algorithm,
            Algorithm::FixedWindow | Algorithm::FirstHitWindow { .. }
        );
        // If the clock was set back, later windows may hold hits; the engine does not look at them.
        let mut past = self.clone();
        past.windows.retain(|(_, start), _| *start <= now);
        if one_window || !past.fits(charge, hits, fit) {
            return fit;
        }
        while fit - over > 1 {
            let middle = over.midpoint(fit);
            if past.fits(charge, hits, middle) {
                fit = middle;
            } else {
                over = middle;
            }
        }
        fit
    }

    fn in_window(&self, name: &str, start: i128) -> i128 {
        self.windows.get(&(name.to_owned(), start)).copied().unwrap_or(0)
    }

    /// The live hits of a log.
    fn logged(&self, counter: &Counter, now: i128) -> Vec<i128> {
        let log = self.logs.get(&counter.name).cloned().unwrap_or_default();
        log.into_iter().filter(|at| at + counter.window > now).collect()
    }

    /// A bucket's debt, and its time.
    fn debt(&self, counter: &Counter, now: i128) -> (i128, i128) {
        let (debt, at) = self.buckets.get(&counter.name).copied().unwrap_or((0, now));
        ((debt - (now - at).max(0) * counter.limit).max(0), at.max(now))
    }

    /// What an open window holds, its latest end, and its last charge.
    fn opened(&self, counter: &Counter, now: i128) -> Option<(i128, i128, i128)> {
        let opened = self.opened.get(&counter.name).copied();
        opened.filter(|(_, end, last)| now < *end && now < last + counter.idle)
    }

    fn fits(&self, charge: &Charge, hits: i128, now: i128) -> bool {
        let counter = Counter::of(charge, now);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow => {
                self.in_window(&counter.name, counter.start) + hits <= counter.limit
            }
            Algorithm::FirstHitWindow { .. } => {
                self.opened(&counter, now).map_or(0, |(used, ..)| used) + hits <= counter.limit
            }
            Algorithm::SlidingLog { .. } => {
                self.logged(&counter, now).len() as i128 + hits <= counter.limit
            }
            Algorithm::SlidingWindow => {
                let before = self.in_window(&counter.name, counter.start - counter.window)
                    * (counter.end - now);
                let present = self.in_window(&counter.name, counter.start);
                before + (present + hits) * counter.window <= counter.limit * counter.window
            }
            Algorithm::InFlight { .. } => {
                self.in_flight(&counter, now).len() as i128 + hits <= counter.limit
            }
            Algorithm::TokenBucket { .. } => {
                self.debt(&counter, now).0 + hits * counter.window
                    <= counter.capacity * counter.window
            }
        }
    }

    /// When its window ends, or no hit counts any more.
    fn ends(&self, charge: &Charge, now: i128) -> i128 {
        let counter = Counter::of(charge, now);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow => counter.end,
            Algorithm::FirstHitWindow { .. } => {
                let opened = self.opened(&counter, now);
                let (_, end, last) = opened.unwrap_or((0, now + counter.window, now));
                end.min(last + counter.idle)
            }
            Algorithm::SlidingLog { .. } => {
                self.logged(&counter, now).last().map_or(now, |at| at + counter.window)
            }
            Algorithm::SlidingWindow => {
                let before = self.in_window(&counter.name, counter.start - counter.window);
                match (self.in_window(&counter.name, counter.start), before) {
                    (0, 0) => now,
                    (0, _) => counter.end,
                    _ => counter.end + counter.window,
                }
            }
            Algorithm::InFlight { .. } => {
                let newest = self.in_flight(&counter, now).pop();
                newest.map_or(now, |(deadline, _, lifetime)| deadline.min(now + lifetime))
            }
            Algorithm::TokenBucket { .. } => match self.debt(&counter, now) {
                (0, _) => now,
                (_, at) if counter.limit == 0 => at + counter.window,
                (debt, at) => at + (debt + counter.limit - 1) / counter.limit,
            },
        }
    }

    /// What lies more than a window ahead was noted while the clock was ahead. It is of now.
    fn set_back(&mut self, counter: &Counter, now: i128) {
        let latest = now + counter.window;
        if let Some((_, end, last)) = self.opened.get_mut(&counter.name) {
            *end = latest.min(*end);
            // A charge is not ahead at all, or the window would not become idle.
            *last = now.min(*last);
        }
        if let Some(log) = self.logs.get_mut(&counter.name) {
            let at = log.iter().filter(|at| **at <= latest).fold(now, |at, other| at.max(*other));
            log.iter_mut().filter(|at| **at > latest).for_each(|ahead| *ahead = at);
        }
        if let Some((_, at)) = self.buckets.get_mut(&counter.name)
            && *at > latest
        {
            *at = now;
        }
        if let Some(places) = self.places.get_mut(&counter.name) {
            set_back(places, now);
            places.retain(|(deadline, ..)| now < *deadline);
        }
    }

    /// The places in use.
    fn in_flight(&self, counter: &Counter, now: i128) -> Vec<Place> {
        let places = self.places.get(&counter.name).cloned().unwrap_or_default();
        places.into_iter().filter(|(deadline, ..)| now < *deadline).collect()
    }

    /// Ends a call in flight.
    fn end(&mut self, name: &str, id: HoldId) -> CommitOutcome {
        let places = self.places.entry(name.to_owned()).or_default();
        let before = places.len();
        places.retain(|(_, other, _)| other.0 != id);
        if places.len() < before { CommitOutcome::Applied } else { CommitOutcome::Repeated }
    }

    /// What becomes of a commit of a call in flight; `None` if it is something else.
    fn commit(&mut self, charge: &Charge, now: i128) -> Option<CommitOutcome> {
        let counter = Counter::of(charge, now);
        match charge.hold? {
            HoldAction::Commit { deadline, .. } if !holds::may_end_at(deadline, now) => {
                Some(CommitOutcome::Late)
            }
            HoldAction::Commit { id, .. } => Some(self.end(&counter.name, id)),
            HoldAction::EndOldest { .. } => match self.in_flight(&counter, now).first() {
                Some((_, oldest, _)) => Some(self.end(&counter.name, oldest.0)),
                None => Some(CommitOutcome::Repeated),
            },
            HoldAction::ById { id, is_end, lifetime_ms, .. } => {
                self.taken.retain(|(name, other), (_, until)| {
                    now < *until || *name != counter.name || *other != id
                });
                let key = (counter.name.clone(), id);
                if is_end && !self.taken.contains_key(&key) {
                    self.taken.insert(key, (None, now + i128::from(lifetime_ms)));
                    return Some(CommitOutcome::Applied);
                }
                let (deadline, _) = self.taken.get_mut(&key)?;
                let Some(deadline) = deadline.take() else { return Some(CommitOutcome::Repeated) };
                if deadline <= now {
                    return Some(CommitOutcome::Late);
                }
                self.end(&counter.name, id);
                Some(CommitOutcome::Applied)
            }
            HoldAction::Occupy { .. } | HoldAction::Ban { .. } | HoldAction::Beside { .. } => None,
            HoldAction::Open { .. } => unimplemented!("the model of open holds"),
        }
    }

    /// Adds a call in flight.
    fn occupy(&mut self, charge: &Charge, hits: i128, now: i128) {
        let counter = Counter::of(charge, now);
        let (id, lifetime) = match charge.hold {
            Some(HoldAction::Occupy { id, lifetime_ms }) => (id, i128::from(lifetime_ms)),
            Some(HoldAction::ById { id, lifetime_ms, .. }) => {
                let lifetime = i128::from(lifetime_ms);
                let known = (Some(now + lifetime), now + 2 * lifetime);
                self.taken.insert((counter.name.clone(), id), known);
                (id, lifetime)
            }
            other => unreachable!("{other:?}"),
        };
        let places = self.places.entry(counter.name).or_default();
        let place = (now + lifetime, Reverse(id), lifetime);
        // A call that is in flight already has one deadline.
        places.iter_mut().filter(|(_, other, _)| other.0 == id).for_each(|known| *known = place);
        places.extend((0..hits).map(|_| place));
        places.sort();
    }

    fn add(&mut self, charge: &Charge, hits: i128, now: i128) {
        let counter = Counter::of(charge, now);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                let used = self.windows.entry((counter.name, counter.start)).or_default();
                *used = (*used + hits).min(COUNT_MAX);
            }
            Algorithm::FirstHitWindow { .. } => {
                let opened = self.opened(&counter, now);
                let (used, end, last) = opened.unwrap_or((0, now + counter.window, now));
                let last = last.max(now);
                self.opened.insert(counter.name, ((used + hits).min(COUNT_MAX), end, last));
            }
            Algorithm::SlidingLog { .. } => {
                let mut log = self.logged(&counter, now);
                let at = log.last().map_or(now, |newest| now.max(*newest));
                log.extend((0..hits).map(|_| at));
                self.logs.insert(counter.name, log);
            }
            Algorithm::InFlight { .. } => self.occupy(charge, hits, now),
            Algorithm::TokenBucket { .. } => {
                let (debt, at) = self.debt(&counter, now);
                self.buckets
                    .insert(counter.name, ((debt + hits * counter.window).min(COUNT_MAX), at));
            }
        }
    }

    /// The hits that count, rounded up.
    fn used(&self, charge: &Charge, now: i128) -> i128 {
        let counter = Counter::of(charge, now);
        let ceil = |hits: i128| (hits + counter.window - 1) / counter.window;
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow => self.in_window(&counter.name, counter.start),
            Algorithm::FirstHitWindow { .. } => {
                self.opened(&counter, now).map_or(0, |(used, ..)| used)
            }
            Algorithm::SlidingLog { .. } => self.logged(&counter, now).len() as i128,
            Algorithm::SlidingWindow => {
                let before = self.in_window(&counter.name, counter.start - counter.window);
                self.in_window(&counter.name, counter.start) + ceil(before * (counter.end - now))
            }
            Algorithm::InFlight { .. } => self.in_flight(&counter, now).len() as i128,
            Algorithm::TokenBucket { .. } => ceil(self.debt(&counter, now).0),
        }
    }

    /// Removes what is counted now; other windows stay.
    fn remove(&mut self, charge: &Charge, now: i128) {
        let Counter { name, start, window, .. } = Counter::of(charge, now);
        if charge.counter.limit.algorithm == Algorithm::SlidingWindow {
            self.windows.remove(&(name.clone(), start - window));
        }
        self.windows.remove(&(name.clone(), start));
        self.opened.remove(&name);
        self.logs.remove(&name);
        self.buckets.remove(&name);
        self.places.remove(&name);
    }

    /// Takes back what a reservation charged. The model knows the tally only in the window of the reservation.
    pub fn give_back(&mut self, give_back: &GiveBack, now: Timestamp) -> Option<Tally> {
        self.give_back_of(give_back, give_back.hits, now)
    }

    /// Takes back hits of the `held` ones that were charged together.
    fn give_back_of(&mut self, give_back: &GiveBack, held: u64, now: Timestamp) -> Option<Tally> {
        let GiveBack { counter, hits, made, hold, .. } = give_back;
        let whole = Limit { opens_from: None, ..Limit::clone(&counter.limit) };
        let charge = Charge::new(counter.with_limit(whole.into()), Hits::Refund(0));
        let (hits, made) = (i128::from(*hits), i128::from(made.as_millis()));
        let now = i128::from(now.as_millis());
        let counter = Counter::of(&charge, made);
        self.set_back(&counter, now);
        let (start, end) = (counter.start, counter.end);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                match self.windows.get_mut(&(counter.name, start)) {
                    Some(used) if *used < COUNT_MAX => *used = (*used - hits).max(0),
                    _ => {}
                }
            }
            Algorithm::FirstHitWindow { .. } => {
                if let Some((used, end, last)) = self.opened(&counter, now)
                    && (end - counter.window..end).contains(&made)
                    && used < COUNT_MAX
                {
                    self.opened.insert(counter.name, ((used - hits).max(0), end, last));
                }
            }
            Algorithm::SlidingLog { .. } => {
                let log = self.logged(&counter, now);
                let same = log.iter().filter(|at| **at == made).count();
                if same > 0 {
                    let mut left = hits.min(same as i128);
                    let is_kept = |at: &i128| {
                        left -= i128::from(*at == made);
                        *at != made || left < 0
                    };
                    self.logs.insert(counter.name, log.into_iter().filter(is_kept).collect());
                }
            }
            Algorithm::InFlight { .. } => {
                if let Some(HoldAction::Occupy { id, .. } | HoldAction::ById { id, .. }) = *hold {
                    self.end(&counter.name, id);
                    self.taken.remove(&(counter.name, id));
                }
            }
            Algorithm::TokenBucket { .. } => {
                let is_last = self.buckets.get(&counter.name).is_some_and(|(_, at)| *at == made);
                let (debt, at) = self.debt(&counter, now);
                let refilled = (at - made).max(0) * counter.limit;
                let held = i128::from(held) * counter.window - refilled;
                let owed = (hits * counter.window).min(if is_last { debt } else { held });
                if debt > 0 && owed > 0 && debt + refilled < COUNT_MAX {
                    self.buckets.insert(counter.name, ((debt - owed).max(0), at));
                }
            }
        }
        let knows_window = (start..end).contains(&now);
        knows_window.then(|| self.tally(&charge, true, 0, now))
    }

    fn refund(&mut self, charge: &Charge, hits: i128, now: i128) {
        let counter = Counter::of(charge, now);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                if let Some(used) = self.windows.get_mut(&(counter.name, counter.start)) {
                    *used = (*used - hits).max(0);
                }
            }
            Algorithm::FirstHitWindow { .. } => {
                if let Some((used, end, last)) = self.opened(&counter, now) {
                    self.opened.insert(counter.name, ((used - hits).max(0), end, last));
                }
            }
            Algorithm::SlidingLog { .. } => {
                let mut log = self.logged(&counter, now);
                if !log.is_empty() {
                    log.truncate((log.len() as i128 - hits).max(0) as usize);
                    self.logs.insert(counter.name, log);
                }
            }
            Algorithm::InFlight { .. } => {
                if let Some(places) = self.places.get_mut(&counter.name) {
                    places.truncate((places.len() as i128 - hits).max(0) as usize);
                }
            }
            Algorithm::TokenBucket { .. } => {
                let (debt, at) = self.debt(&counter, now);
                if debt > 0 {
                    self.buckets.insert(counter.name, ((debt - hits * counter.window).max(0), at));
                }
            }
        }
    }
}
