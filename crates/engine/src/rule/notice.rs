//! `notify_at`: when a counter reaches one of these percentages of its limit, operators get a notice.

use super::Limit;

impl Limit {
    /// The percentages of `notify_at` that a counter with this many used hits has reached; none of a limit of 0.
    pub fn reached(&self, used: u64) -> impl Iterator<Item = u64> {
        let at = self.notify_at.as_deref().unwrap_or_default().iter().copied();
        at.filter(move |at| self.capacity() > 0 && self.has_used(*at, used))
    }

    /// Whether this many used hits are at least this percentage of the limit, from 1 to 100.
    pub fn has_used(&self, percent: u64, used: u64) -> bool {
        // The capacity is below 2^53.
        used.saturating_mul(100) >= percent * self.capacity()
    }
}
