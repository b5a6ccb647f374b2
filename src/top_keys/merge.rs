//! Several sketches as one, after Agarwal, Cormode, Huang, Phillips, Wei and Yi, "Mergeable Summaries" (PODS 2012):
//! a sketch that does not keep a key may have seen it as often as its lowest count.

use std::collections::HashMap;

use super::space_saving::{KeyCount, LastTally, SpaceSaving};

/// The counts of several sketches of one stream.
#[derive(Debug, Default)]
pub(super) struct Merged {
    keys: HashMap<u64, MergedCount>,
    /// The sum of the lowest counts of all sketches.
    lowest: u64,
}

#[derive(Debug)]
struct MergedCount {
    sum: KeyCount,
    /// The sum of the lowest counts of the sketches that keep the key.
    lowest: u64,
}

impl Merged {
    pub(super) fn add<N>(&mut self, sketch: &SpaceSaving<N>) {
        let lowest = sketch.lowest();
        self.lowest = self.lowest.saturating_add(lowest);
        for count in sketch.counts() {
            let merged = self.keys.entry(count.key).or_insert_with(|| MergedCount::new(&count));
            merged.add(&count, lowest);
        }
    }

    /// All keys, the most frequent first.
    pub(super) fn counts(self) -> Vec<KeyCount> {
        let mut counts = Vec::with_capacity(self.keys.len());
        for MergedCount { sum, lowest } in self.keys.into_values() {
            let unseen = self.lowest.saturating_sub(lowest);
            counts.push(KeyCount {
                count: sum.count.saturating_add(unseen),
                error: sum.error.saturating_add(unseen),
                ..sum
            });
        }
        // By key where counts are equal, so that the order does not change between two readings.
        counts.sort_unstable_by_key(|count| (std::cmp::Reverse(count.count), count.key));
        counts
    }
}

impl MergedCount {
    fn new(count: &KeyCount) -> Self {
        let last = LastTally { hits: 0, ..count.last };
        Self { sum: KeyCount { count: 0, error: 0, last, ..*count }, lowest: 0 }
    }

    fn add(&mut self, count: &KeyCount, lowest: u64) {
        let sum = &mut self.sum;
        sum.count = sum.count.saturating_add(count.count);
        sum.error = sum.error.saturating_add(count.error);
        let hits = sum.last.hits.saturating_add(count.last.hits);
        let (new, known) = (&count.last, &sum.last);
        // Of two in one millisecond, the one with less remaining is the later one.
        if new.at_ms > known.at_ms || (new.at_ms == known.at_ms && new.remaining < known.remaining)
        {
            sum.last = *new;
        }
        sum.last.hits = hits;
        self.lowest = self.lowest.saturating_add(lowest);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        bench::{Distribution, Numbers},
        top_keys::worker::KEYS_MAX,
    };

    /// What the sketches of several workers, of at most `keys_max` keys each, show of their streams.
    fn merged(keys_max: usize, streams: &[Vec<u64>]) -> Vec<KeyCount> {
        let mut merged = Merged::default();
        for stream in streams {
            let mut sketch = SpaceSaving::new(keys_max);
            for key in stream {
                sketch.add(*key, LastTally::default(), |()| true, || ());
            }
            merged.add(&sketch);
        }
        merged.counts()
    }

    fn truth(streams: &[Vec<u64>]) -> BTreeMap<u64, u64> {
        let mut truth = BTreeMap::new();
        for key in streams.iter().flatten() {
            *truth.entry(*key).or_default() += 1;
        }
        truth
    }

    #[track_caller]
    fn the_bounds_hold(counts: &[KeyCount], truth: &BTreeMap<u64, u64>) {
        for KeyCount { key, count, error, .. } in counts {
            let occurred = truth[key];
            assert!(occurred <= *count, "{key} occurred {occurred} times, not at most {count}");
            assert!(
                occurred >= count - error,
                "{key} occurred {occurred} times, not {count} - {error}"
            );
        }
    }

    proptest! {
        #[test]
        fn counts_and_errors_bound_the_truth_and_no_frequent_key_is_missing(
            streams in prop::collection::vec(prop::collection::vec(0_u64..40, 0..300), 1..5),
            keys_max in 1_usize..20,
        ) {
            let (counts, truth) = (merged(keys_max, &streams), truth(&streams));
            the_bounds_hold(&counts, &truth);
            let kept: BTreeSet<u64> = counts.iter().map(|count| count.key).collect();
            let missed_max: usize = streams.iter().map(|stream| stream.len() / keys_max).sum();
            for (key, occurred) in truth {
                prop_assert!(kept.contains(&key) || occurred <= missed_max as u64);
            }
        }
    }

    /// Four workers, of which each sees a quarter of a million calls.
    #[test]
    fn nineteen_of_the_true_top_twenty_of_ten_million_keys_are_found() {
        let mut zipf = Numbers::new(10_000_000, Distribution::Zipf);
        let mut streams = vec![Vec::new(); 4];
        for call in 0..1_000_000 {
            // Hashes, not ranks: the order of the keys must not matter.
            streams[call % 4].push((zipf.draw() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        let truth = truth(&streams);
        assert!(truth.len() > 150_000, "only {} keys occurred", truth.len());
        let mut by_frequency: Vec<_> = truth.iter().map(|(key, count)| (*count, *key)).collect();
        by_frequency.sort_unstable_by_key(|entry| std::cmp::Reverse(*entry));
        let top: BTreeSet<u64> = by_frequency.iter().take(20).map(|(_, key)| *key).collect();

        let counts = merged(KEYS_MAX, &streams);
        the_bounds_hold(&counts, &truth);
        let found = counts.iter().take(20).filter(|count| top.contains(&count.key)).count();
        assert!(found >= 19, "{found} of 20");
    }
}
