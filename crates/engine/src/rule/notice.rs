//! `notify_at`: the parts of a limit that operators are told of when a counter reaches them.

use super::Limit;

impl Limit {
    /// The parts of `notify_at` that a counter with this many used hits has reached, in percent.
    pub fn reached(&self, used: u64) -> impl Iterator<Item = u64> {
        let capacity = self.capacity();
        let at = self.notify_at.as_deref().unwrap_or_default().iter().copied();
        // Both are below 2^53.
        at.filter(move |at| capacity > 0 && used.saturating_mul(100) >= at * capacity)
    }
}
