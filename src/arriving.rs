//! The memory that messages hold while they arrive in parts: bounded for each connection, and for all of them.
//!
//! The first bytes of each connection do not count towards the bound of all. So connections that hold that whole bound
//! do not get the calls of others refused, whose messages arrive a moment after their headers.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes of each connection that do not count towards `--max-arriving-bytes`: small messages of eight calls, with what
/// else a waiting call takes.
pub(crate) const FREE_BYTES: usize = 32 << 10;

/// A bound on the bytes of messages that have arrived in part.
#[derive(Debug)]
pub struct ArrivalBudget {
    bytes_max: usize,
    held: AtomicUsize,
    /// The budget that this one is a part of, and the bytes that do not count towards it.
    whole: Option<(Arc<ArrivalBudget>, usize)>,
}

/// The budget is used up. It holds the bound, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("messages that arrive in parts: over {0} bytes")]
pub struct BudgetSpent(pub usize);

impl ArrivalBudget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, held: AtomicUsize::new(0), whole: None })
    }

    /// A budget of at most `bytes_max` bytes, of which those over `free_bytes` count towards this one too.
    pub(crate) fn part(self: &Arc<Self>, bytes_max: usize, free_bytes: usize) -> Arc<Self> {
        let whole = Some((Arc::clone(self), free_bytes));
        Arc::new(Self { bytes_max, held: AtomicUsize::new(0), whole })
    }

    /// Nothing yet, to be added to.
    pub(crate) const fn hold(&self) -> HeldBytes<'_> {
        HeldBytes { budget: self, bytes: 0 }
    }

    /// Holds these bytes, even if they exceed a bound.
    fn take(&self, bytes: usize) -> Result<(), BudgetSpent> {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        let after = before.saturating_add(bytes);
        let within_whole = match &self.whole {
            Some((whole, free)) if after > *free => whole.take(after - before.max(*free)),
            _ => Ok(()),
        };
        if after > self.bytes_max { Err(BudgetSpent(self.bytes_max)) } else { within_whole }
    }

    fn give_back(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        if let Some((whole, free)) = &self.whole
            && before > *free
        {
            whole.give_back(before - (before - bytes).max(*free));
        }
    }
}

/// Bytes of one message. They are given back on drop.
#[derive(Debug)]
pub(crate) struct HeldBytes<'a> {
    budget: &'a ArrivalBudget,
    bytes: usize,
}

impl HeldBytes<'_> {
    /// Takes further bytes, or refuses them at once. Waiting could deadlock: the unread data of a waiting message
    /// fills the flow-control windows that the other messages need to arrive.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), BudgetSpent> {
        let taken = self.budget.take(bytes);
        match taken {
            Ok(()) => self.bytes += bytes,
            Err(_) => self.budget.give_back(bytes),
        }
        taken
    }
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_over_the_bound_are_refused_and_dropped_ones_are_free_again() {
        let budget = ArrivalBudget::new(10);
        let (mut first, mut second) = (budget.hold(), budget.hold());
        assert_eq!(first.add(6), Ok(()));
        assert_eq!(second.add(5), Err(BudgetSpent(10)));
        assert_eq!(second.add(4), Ok(()));
        drop(first);
        assert_eq!(second.add(6), Ok(()));
        drop(second);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_part_is_bounded_by_itself_and_by_the_whole() {
        let whole = ArrivalBudget::new(10);
        let (one, other) = (whole.part(6, 0), whole.part(6, 0));
        let (mut first, mut second) = (one.hold(), other.hold());
        assert_eq!(first.add(7), Err(BudgetSpent(6)));
        assert_eq!(first.add(6), Ok(()));
        assert_eq!(second.add(5), Err(BudgetSpent(10)), "one connection leaves too little");
        assert_eq!(second.add(4), Ok(()));
        drop((first, second));
        for budget in [&whole, &one, &other] {
            assert_eq!(budget.held.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn the_free_bytes_of_a_part_do_not_count_towards_the_whole() {
        let whole = ArrivalBudget::new(10);
        let (greedy, other) = (whole.part(20, 3), whole.part(20, 3));
        let (mut first, mut second, mut third) = (greedy.hold(), greedy.hold(), other.hold());
        assert_eq!(first.add(2), Ok(()));
        assert_eq!(second.add(12), Err(BudgetSpent(10)), "one of them is free");
        assert_eq!(second.add(11), Ok(()));
        assert_eq!(third.add(3), Ok(()));
        assert_eq!(third.add(1), Err(BudgetSpent(10)));
        drop(first);
        assert_eq!(whole.held.load(Ordering::Relaxed), 8);
        drop((second, third));
        for budget in [&whole, &greedy, &other] {
            assert_eq!(budget.held.load(Ordering::Relaxed), 0);
        }
    }
}
