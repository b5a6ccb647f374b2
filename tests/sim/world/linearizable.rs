//! Whether some order of the calls on a counter explains their answers: Wing and Gong's search, which remembers where it has been, as
//! in <https://www.cs.ox.ac.uk/people/gavin.lowe/LinearizabiltyTesting/paper.pdf>.

use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Act {
    /// Takes all of these hits, if they fit.
    Take(u64),
    /// Asks whether a hit fits.
    Check,
    Refund(u64),
    /// Shows what remains, and starts again from zero.
    Reset,
    /// The server loses writes. This many hits are counted afterwards.
    Lose(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Over,
    /// This many hits remain.
    Within(u64),
}

impl Told {
    /// The answer to a check when this many hits remain.
    pub const fn of(remaining: u64) -> Self {
        if remaining == 0 { Self::Over } else { Self::Within(remaining) }
    }
}

/// An act on a counter, which takes effect at one instant between two times, and the answer that its caller got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    pub from: u64,
    /// `None` if nobody knows whether it happens: it may at any later time.
    pub to: Option<u64>,
    pub act: Act,
    pub told: Option<Told>,
}

/// What has happened until now: of the certain events those before `first`, and those `ahead`.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Past {
    first: usize,
    ahead: BTreeSet<usize>,
    used: u64,
}

/// Of the events that may never happen, how many of each kind have happened.
type Spent = BTreeMap<Act, usize>;

/// Where the search has been, and what it has still to try.
#[derive(Default)]
struct Search {
    seen: HashMap<Past, Vec<Spent>>,
    stack: Vec<(Past, Spent)>,
}

impl Search {
    /// Tries this next, unless the same was reached with no more spent.
    fn push(&mut self, past: Past, spent: Spent) {
        let seen = self.seen.entry(past.clone()).or_default();
        let is_no_more = |known: &Spent| {
            known.iter().all(|(act, count)| spent.get(act).is_some_and(|more| more >= count))
        };
        if !seen.iter().any(is_no_more) {
            seen.push(spent.clone());
            self.stack.push((past, spent));
        }
    }
}

/// A search that tries more is given up: with many calls whose callers never heard, it could go on for hours.
const TRIED_MAX: usize = 50_000;

/// # Errors
/// The first event that no order explains, of a counter that begins with no hits.
pub fn check(limit: u64, events: &[Event]) -> Result<(), Event> {
    let mut certain: Vec<_> = events.iter().filter(|event| event.to.is_some()).collect();
    certain.sort_by_key(|event| event.from);
    let mut others: BTreeMap<Act, Vec<u64>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.to.is_none()) {
        others.entry(event.act).or_default().push(event.from);
    }
    let (mut search, mut farthest, mut tried) = (Search::default(), 0, 0);
    search.push(Past { first: 0, ahead: BTreeSet::new(), used: 0 }, Spent::new());
    while let Some((past, spent)) = search.stack.pop() {
        (farthest, tried) = (farthest.max(past.first), tried + 1);
        if tried > TRIED_MAX {
            return Ok(());
        }
        // What has begun before the first of them ends may be next.
        let (mut may_be_next, mut ends) = (Vec::new(), u64::MAX);
        for (index, event) in certain.iter().enumerate().skip(past.first) {
            if event.from > ends {
                break;
            }
            if !past.ahead.contains(&index) {
                ends = ends.min(event.to.unwrap_or(u64::MAX));
                may_be_next.push(index);
            }
        }
        if may_be_next.is_empty() {
            return Ok(());
        }
        // The last one that is pushed is tried first: what may never have happened comes last.
        for (act, begun) in &others {
            let count = spent.get(act).copied().unwrap_or_default();
            if begun.iter().filter(|from| **from <= ends).count() > count
                && let Some(used) = after(limit, past.used, *act, None)
            {
                let mut spent = spent.clone();
                spent.insert(*act, count + 1);
                search.push(Past { used, ..past.clone() }, spent);
            }
        }
        for index in may_be_next.into_iter().rev().filter(|index| certain[*index].from <= ends) {
            let Event { act, told, .. } = certain[index];
            if let Some(used) = after(limit, past.used, *act, *told) {
                let mut next = Past { used, ..past.clone() };
                next.ahead.insert(index);
                while next.ahead.remove(&next.first) {
                    next.first += 1;
                }
                search.push(next, spent.clone());
            }
        }
    }
    Err(*certain[farthest])
}

/// The hits that are counted after an act; `None` if its answer would be another one.
fn after(limit: u64, used: u64, act: Act, told: Option<Told>) -> Option<u64> {
    let shown = |used: u64| Told::of(limit.saturating_sub(used));
    let (after, tells) = match act {
        Act::Take(hits) if used + hits <= limit => (used + hits, Told::Within(limit - used - hits)),
        Act::Take(_) => (used, Told::Over),
        Act::Check => (used, shown(used)),
        Act::Refund(hits) => (used.saturating_sub(hits), shown(used.saturating_sub(hits))),
        Act::Reset => (0, shown(used)),
        Act::Lose(left) => (left, Told::Over),
    };
    (told.is_none() || told == Some(tells)).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::{
        Act::{Check, Lose, Refund, Reset, Take},
        Told::{Over, Within},
        *,
    };

    const fn event(from: u64, to: u64, act: Act, told: Told) -> Event {
        Event { from, to: Some(to), act, told: Some(told) }
    }

    /// Its caller never hears of it.
    const fn open(from: u64, act: Act) -> Event {
        Event { from, to: None, act, told: None }
    }

    /// The event of a counter with a limit of 3 that no order explains.
    fn wrong(events: &[Event]) -> Option<usize> {
        let wrong = check(3, events).err()?;
        events.iter().position(|event| *event == wrong)
    }

    #[test]
    fn calls_one_after_the_other_are_told_what_is_there() {
        let calls = |last| {
            [event(1, 2, Take(2), Within(1)), event(3, 4, Take(2), Over), event(5, 6, Check, last)]
        };
        assert_eq!(wrong(&calls(Within(1))), None);
        assert_eq!(wrong(&calls(Within(3))), Some(2));
    }

    #[test]
    fn calls_at_a_time_may_happen_in_any_order_and_others_may_not() {
        let calls =
            |from| [event(1, 9, Take(1), Within(0)), event(from, from + 1, Take(2), Within(1))];
        assert_eq!(wrong(&calls(2)), None);
        assert_eq!(wrong(&calls(9)), None, "at the same instant");
        assert_eq!(wrong(&calls(10)), Some(0));
    }

    #[test]
    fn what_nobody_has_heard_of_may_happen_late_or_never_but_once_and_not_before() {
        let takes = |last| [open(2, Take(2)), event(9, 10, Check, last)];
        assert_eq!(wrong(&takes(Within(3))), None);
        assert_eq!(wrong(&takes(Within(1))), None);
        assert_eq!(wrong(&takes(Over)), Some(1));
        let early = [event(1, 2, Check, Within(1)), open(3, Take(2))];
        assert_eq!(wrong(&early), Some(0));
        let late = [event(1, 2, Check, Within(3)), open(0, Take(2)), event(3, 4, Check, Within(1))];
        assert_eq!(wrong(&late), None);
        let back = [event(1, 2, Check, Within(1)), open(0, Take(2)), event(3, 4, Check, Within(3))];
        assert_eq!(wrong(&back), Some(2));
    }

    #[test]
    fn refunds_and_resets_free_hits() {
        let full = event(1, 2, Take(3), Within(0));
        assert_eq!(wrong(&[full, event(3, 4, Refund(1), Within(1))]), None);
        assert_eq!(wrong(&[full, event(3, 4, Reset, Over), event(5, 6, Check, Within(3))]), None);
        assert_eq!(wrong(&[full, event(3, 4, Check, Within(2)), open(1, Refund(2))]), None);
        assert_eq!(wrong(&[full, event(3, 4, Check, Within(2)), open(1, Refund(1))]), Some(1));
    }

    #[test]
    fn a_server_loses_what_it_loses_then() {
        let lose = Event { from: 5, to: Some(5), act: Lose(1), told: None };
        let calls =
            |at| [event(1, 2, Take(3), Within(0)), lose, event(at, at + 1, Check, Within(2))];
        assert_eq!(wrong(&calls(6)), None);
        assert_eq!(wrong(&calls(3)), Some(2));
    }

    #[test]
    fn a_long_history_with_many_open_ends_is_searched_in_no_time() {
        let open_ends = (0..60).map(|at| open(at, [Take(1), Refund(1), Reset][at as usize % 3]));
        let mut events: Vec<_> =
            open_ends.chain((0..300).map(|at| event(at, at + 5, Check, Within(3)))).collect();
        assert_eq!(wrong(&events), None);
        events.push(event(400, 401, Check, Within(4)));
        assert_eq!(wrong(&events), Some(360));
    }
}
