//! The memory that messages hold while they arrive in parts: bounded for each connection, and for all of them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A bound on the bytes of messages that have arrived in part.
#[derive(Debug)]
pub struct ArrivalBudget {
    bytes_max: usize,
    held: AtomicUsize,
    /// The budget that this one is a part of.
    whole: Option<Arc<ArrivalBudget>>,
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

    /// A budget of at most `bytes_max` bytes, which count towards this one too.
    pub(crate) fn part(self: &Arc<Self>, bytes_max: usize) -> Arc<Self> {
        let whole = Some(Arc::clone(self));
        Arc::new(Self { bytes_max, held: AtomicUsize::new(0), whole })
    }

    /// Nothing yet, to be added to.
    pub(crate) const fn hold(&self) -> HeldBytes<'_> {
        HeldBytes { budget: self, bytes: 0 }
    }

    fn take(&self, bytes: usize) -> Result<(), BudgetSpent> {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let taken = match &self.whole {
            _ if held > self.bytes_max => Err(BudgetSpent(self.bytes_max)),
            Some(whole) => whole.take(bytes),
            None => Ok(()),
        };
        if taken.is_err() {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
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
        self.budget.take(bytes)?;
        self.bytes += bytes;
        Ok(())
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
        let (one, other) = (whole.part(6), whole.part(6));
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
}
