//! The keys that occur most often in a stream, in bounded memory: Filtered Space-Saving, of Homem and Carvalho, "Finding top-k
//! elements in data streams" (Information Sciences 180, 2010), after the algorithm of Metwally, Agrawal and El Abbadi (ICDT 2005).
//!
//! A key that is not kept is counted with others, in a cell. When the cell reaches the lowest count of the keys that are kept, the
//! next key in it replaces the one with that count, and takes the cell's count over as its error. So a count is never too low, it is
//! too high by its error at most, and no key that occurs more often than the lowest count is missing.

use hashbrown::HashTable;

use crate::engine::algorithm::account::real;

/// The more cells, the fewer keys that are replaced soon: of 10,000 equally frequent ones, one call in six replaces a key.
const CELLS: usize = 4096;

/// The most frequent of all keys that were added. A key is known by a 64-bit hash; `N` is what else is kept of it.
#[derive(Debug)]
pub(super) struct SpaceSaving<N> {
    /// The most keys, at least 1.
    keys_max: usize,
    /// The counts, the highest first.
    ranks: Vec<RankedCount>,
    slots: Vec<Slot<N>>,
    index: HashTable<usize>,
    /// How often the keys of a cell that are not kept can have occurred at most, each of them; empty while all keys are kept.
    cells: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct RankedCount {
    count: u64,
    slot: usize,
}

#[derive(Debug)]
struct Slot<N> {
    key: u64,
    rank: usize,
    error: u64,
    last: LastTally,
    name: Option<N>,
}

/// What remained of its limit after the last decision about a key. Times are milliseconds since the first one began to count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LastTally {
    pub(super) at_ms: u64,
    pub(super) remaining: u64,
    pub(super) capacity: u64,
    pub(super) resets_at_ms: u64,
    /// The hits of this decision; of a key that is kept, of all its decisions since.
    pub(super) hits: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyCount {
    pub(super) key: u64,
    /// At most this many times.
    pub(super) count: u64,
    /// At least this many times fewer than `count`.
    pub(super) error: u64,
    pub(super) last: LastTally,
}

impl LastTally {
    pub(super) fn part_remaining(&self) -> f64 {
        real(self.remaining) / real(self.capacity.max(1))
    }
}

impl<N> SpaceSaving<N> {
    /// What each key takes at most. The index has up to four places for each.
    #[cfg(test)]
    pub(super) const BYTES_PER_KEY_MAX: usize =
        size_of::<Slot<N>>() + size_of::<RankedCount>() + 4 * (size_of::<usize>() + 1);

    #[cfg(test)]
    pub(super) const BYTES_OF_CELLS: usize = CELLS * size_of::<u32>();

    /// Counts at most `keys_max` keys.
    pub(super) fn new(keys_max: usize) -> Self {
        let keys_max = keys_max.max(1);
        // Less than half full, it makes room for new keys without growing.
        let index = HashTable::with_capacity(keys_max.saturating_mul(2));
        let (ranks, slots, cells) = (Vec::new(), Vec::new(), Vec::new());
        Self { keys_max, ranks, slots, index, cells }
    }

    /// Counts a key once more. A key that replaces another is named when it occurs again: most of those are replaced
    /// before, and naming costs more than counting. A name that is not `current` is replaced.
    pub(super) fn add(
        &mut self,
        key: u64,
        last: LastTally,
        current: impl FnOnce(&N) -> bool,
        name: impl FnOnce() -> N,
    ) {
        if let Some(slot) = self.add_known(key, last) {
            if !slot.name.as_ref().is_some_and(current) {
                slot.name = Some(name());
            }
        } else if self.slots.len() < self.keys_max {
            let (slot, rank) = (self.slots.len(), self.ranks.len());
            self.slots.push(Slot { key, rank, error: 0, last, name: Some(name()) });
            self.ranks.push(RankedCount { count: 0, slot });
            self.insert(key, slot);
            self.increment(slot);
        } else if !self.passes(key) {
            self.replace_lowest(key, last);
        }
    }

    /// Counts a key that is not kept in its cell, unless it may have occurred more often now than one that is.
    fn passes(&mut self, key: u64) -> bool {
        let lowest = self.lowest();
        if self.cells.is_empty() {
            self.cells.resize(CELLS, 0);
        }
        let cell = self.cells.get_mut(cell_of(key)).filter(|count| u64::from(**count) < lowest);
        cell.map(|count| *count = count.saturating_add(1)).is_some()
    }

    /// Counts a key that is kept once more.
    fn add_known(&mut self, key: u64, last: LastTally) -> Option<&mut Slot<N>> {
        let slot = self.find(key)?;
        self.increment(slot);
        let slot = self.slots.get_mut(slot)?;
        let hits = slot.last.hits.saturating_add(last.hits);
        slot.last = LastTally { hits, ..last };
        Some(slot)
    }

    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.ranks.clear();
        self.slots.clear();
        self.index.clear();
    }

    /// The keys, the most frequent first.
    pub(super) fn counts(&self) -> impl Iterator<Item = KeyCount> {
        self.ranks.iter().filter_map(|rank| {
            let Slot { key, error, last, .. } = self.slots.get(rank.slot)?;
            Some(KeyCount { key: *key, count: rank.count, error: *error, last: *last })
        })
    }

    /// The most times that a key which is not kept can have occurred.
    pub(super) fn lowest(&self) -> u64 {
        if self.slots.len() < self.keys_max {
            return 0;
        }
        self.ranks.last().map_or(0, |rank| rank.count)
    }

    /// When a key occurred last, and what is kept of it, if it is named.
    pub(super) fn name(&self, key: u64) -> Option<(u64, &N)> {
        let slot = self.slots.get(self.find(key)?)?;
        Some((slot.last.at_ms, slot.name.as_ref()?))
    }

    fn find(&self, key: u64) -> Option<usize> {
        let is_key = |slot: &usize| self.slots.get(*slot).is_some_and(|slot| slot.key == key);
        self.index.find(key, is_key).copied()
    }

    fn replace_lowest(&mut self, key: u64, last: LastTally) {
        let Some(RankedCount { count, slot: index }) = self.ranks.last().copied() else { return };
        let Some(slot) = self.slots.get_mut(index) else { return };
        if let Ok(entry) = self.index.find_entry(slot.key, |known| *known == index) {
            entry.remove();
        }
        if let Some(cell) = self.cells.get_mut(cell_of(slot.key)) {
            *cell = u32::try_from(count).unwrap_or(u32::MAX);
        }
        *slot = Slot { key, rank: slot.rank, error: count, last, name: None };
        self.insert(key, index);
        self.increment(index);
    }

    fn insert(&mut self, key: u64, slot: usize) {
        let slots = &self.slots;
        let hash = |slot: &usize| slots.get(*slot).map_or(0, |slot| slot.key);
        self.index.insert_unique(key, slot, hash);
    }

    /// Raises a count by one. Of equal counts the first one moves up, so that one exchange keeps the order.
    fn increment(&mut self, slot: usize) {
        let Some(from) = self.slots.get(slot).map(|slot| slot.rank) else { return };
        let Some(count) = self.ranks.get(from).map(|rank| rank.count) else { return };
        let above = from.checked_sub(1).and_then(|above| self.ranks.get(above));
        let to = match above {
            Some(above) if above.count == count => {
                self.ranks.partition_point(|rank| rank.count > count)
            }
            _ => from,
        };
        self.ranks.swap(from, to);
        for rank in [from, to] {
            if let Some(RankedCount { slot, .. }) = self.ranks.get(rank)
                && let Some(slot) = self.slots.get_mut(*slot)
            {
                slot.rank = rank;
            }
        }
        if let Some(rank) = self.ranks.get_mut(to) {
            rank.count = count.saturating_add(1);
        }
    }
}

/// The index finds keys by their other bits.
fn cell_of(key: u64) -> usize {
    usize::try_from(key >> 32).unwrap_or_default() % CELLS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(keys_max: usize, stream: &[u64]) -> SpaceSaving<u64> {
        let mut sketch = SpaceSaving::new(keys_max);
        for key in stream {
            sketch.add(*key, LastTally::default(), |_| true, || *key);
        }
        sketch
    }

    #[track_caller]
    fn check(sketch: &SpaceSaving<u64>, expected: &[(u64, u64, u64)]) {
        let counts = sketch.counts().map(|count| (count.key, count.count, count.error));
        assert_eq!(counts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn counts_are_exact_while_there_is_room() {
        let sketch = of(3, &[1, 2, 2, 3, 3, 3]);
        check(&sketch, &[(3, 3, 0), (2, 2, 0), (1, 1, 0)]);
        assert_eq!(of(4, &[1, 2, 3]).lowest(), 0);
    }

    #[test]
    fn a_new_key_replaces_the_lowest_when_it_may_be_above_it_and_takes_over_its_count_as_error() {
        let stream = [1, 1, 1, 2, 2, 3, 3, 3];
        check(&of(2, &stream[..7]), &[(1, 3, 0), (2, 2, 0)]);
        let sketch = of(2, &stream);
        check(&sketch, &[(1, 3, 0), (3, 3, 2)]);
        assert_eq!(sketch.lowest(), 3);
        // Of one cell: 2 has occurred twice, and 3 may have.
        check(&of(2, &[&stream[..], &[2, 2]].concat()), &[(2, 4, 3), (1, 3, 0)]);
    }

    #[test]
    fn a_key_that_replaced_another_is_named_when_it_occurs_again() {
        let mut sketch = of(1, &[1, 2, 2]);
        assert_eq!(sketch.name(1), None);
        assert_eq!(sketch.name(2), None);
        sketch.add(2, LastTally::default(), |_| true, || 2);
        assert_eq!(sketch.name(2), Some((0, &2)));
    }

    #[test]
    fn a_cleared_sketch_counts_from_zero() {
        let mut sketch = of(2, &[1, 1, 2, 3]);
        sketch.clear();
        check(&sketch, &[]);
        sketch.add(4, LastTally::default(), |_| true, || 4);
        check(&sketch, &[(4, 1, 0)]);
    }

    #[test]
    fn many_keys_take_no_more_memory_than_the_first_thousand() {
        let mut sketch = of(1024, &(0..1025).collect::<Vec<_>>());
        let room = |sketch: &SpaceSaving<u64>| {
            (
                sketch.ranks.capacity(),
                sketch.slots.capacity(),
                sketch.index.allocation_size(),
                sketch.cells.len(),
            )
        };
        let before = room(&sketch);
        for number in 0..100_000_u64 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            sketch.add(key, LastTally::default(), |_| true, || key);
        }
        assert_eq!(room(&sketch), before);
    }
}
