//! An estimate that follows what commits show: their mean and twice their mean deviation, both smoothed as round-trip
//! times are in RFC 6298, section 2.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::algorithm::account::COUNT_MAX;

/// Both numbers are kept as multiples of 1/256, so that small steps are not lost.
const FRACTION_BITS: u32 = 8;

/// What the commits of one limit have shown to this replica. Commits at the same time may overwrite each other's.
#[derive(Debug)]
pub struct LearnedEstimate {
    mean: AtomicU64,
    deviation: AtomicU64,
}

impl LearnedEstimate {
    /// An estimate that starts with this number of hits: one small commit must not open the limit to all takes.
    pub fn new(first: u64) -> Self {
        let mean = AtomicU64::new(first.clamp(1, COUNT_MAX) << FRACTION_BITS);
        Self { mean, deviation: AtomicU64::new(0) }
    }

    /// Takes in the true number of one commit.
    pub fn learn(&self, used: u64) {
        let used = used.clamp(1, COUNT_MAX) << FRACTION_BITS;
        let (mean, deviation) =
            (self.mean.load(Ordering::Relaxed), self.deviation.load(Ordering::Relaxed));
        self.mean.store(toward(mean, used, 8), Ordering::Relaxed);
        self.deviation.store(toward(deviation, used.abs_diff(mean), 4), Ordering::Relaxed);
    }

    /// Takes over what another has learned.
    pub fn inherit(&self, other: &Self) {
        self.mean.store(other.mean.load(Ordering::Relaxed), Ordering::Relaxed);
        self.deviation.store(other.deviation.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The estimate in hits.
    pub fn estimate(&self) -> u64 {
        let mean = self.mean.load(Ordering::Relaxed);
        let estimate = mean.saturating_add(2 * self.deviation.load(Ordering::Relaxed));
        estimate.div_ceil(1 << FRACTION_BITS).min(COUNT_MAX)
    }
}

/// Always equal: rules are compared by what is configured, not by what they have learned.
impl PartialEq for LearnedEstimate {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LearnedEstimate {}

/// A value that moves to another by a part of their distance.
fn toward(from: u64, to: u64, part: u64) -> u64 {
    let step = from.abs_diff(to).div_ceil(part);
    if to > from { from + step } else { from - step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_are_learned_exactly() {
        let learned = LearnedEstimate::new(300);
        assert_eq!(learned.estimate(), 300);
        learned.learn(1);
        assert!(learned.estimate() >= 300, "one small commit does not lower it");
        (0..200).for_each(|_| learned.learn(42));
        assert_eq!(learned.estimate(), 42);
    }

    #[test]
    fn what_is_learned_is_inherited_and_makes_no_rule_another() {
        let (before, after) = (LearnedEstimate::new(100), LearnedEstimate::new(7));
        before.learn(200);
        assert!(before == after, "both are configured alike");
        after.inherit(&before);
        assert_eq!(after.estimate(), before.estimate());
        assert_eq!(before.estimate(), 163);
    }

    #[test]
    fn scattered_numbers_are_estimated_above_their_mean_and_below_their_largest() {
        let learned = LearnedEstimate::new(100);
        for used in (0..1000).map(|turn| 100 + turn * 37 % 200) {
            learned.learn(used);
        }
        let estimate = learned.estimate();
        assert!((250..=330).contains(&estimate), "{estimate}");
    }
}
