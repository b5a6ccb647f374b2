//! What one worker has counted: in the period that runs, and in the one before, so that old calls are forgotten.

use std::{array, mem};

use super::{
    merge::Merged,
    name::KeyName,
    space_saving::{LastTally, SpaceSaving},
};

/// The most keys of a sketch. A key that makes up more than a thousandth of a worker's calls is never missed.
pub(super) const KEYS_MAX: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TopList {
    Hottest,
    Denied,
    Nearest,
    /// Over a shadow limit.
    Shadow,
    /// Denied by the candidate alone, or by the rules in force alone.
    NewlyDenied,
    NewlyAdmitted,
}

#[derive(Debug)]
pub(super) struct WorkerKeys {
    period: u64,
    current: Sketches,
    previous: Sketches,
}

/// One for each [`TopList`].
type Sketches = [SpaceSaving<KeyName>; 6];

impl WorkerKeys {
    pub(super) fn new() -> Self {
        let sketches = || array::from_fn(|_| SpaceSaving::new(KEYS_MAX));
        Self { period: 0, current: sketches(), previous: sketches() }
    }

    /// Lets the period with this number begin, unless it has begun. An earlier one is over, and has no effect.
    pub(super) fn enter(&mut self, period: u64) {
        if period <= self.period {
            return;
        }
        let is_next = period == self.period.saturating_add(1);
        self.period = period;
        mem::swap(&mut self.current, &mut self.previous);
        self.current.iter_mut().for_each(SpaceSaving::clear);
        if !is_next {
            self.previous.iter_mut().for_each(SpaceSaving::clear);
        }
    }

    pub(super) fn add(
        &mut self,
        list: TopList,
        key: u64,
        last: LastTally,
        current: impl FnOnce(&KeyName) -> bool,
        name: impl FnOnce() -> KeyName,
    ) {
        if let Some(sketch) = self.current.get_mut(list as usize) {
            sketch.add(key, last, current, name);
        }
    }

    pub(super) fn merge_into(&self, merged: &mut Merged, list: TopList) {
        for sketches in [&self.current, &self.previous] {
            if let Some(sketch) = sketches.get(list as usize) {
                merged.add(sketch);
            }
        }
    }

    /// When a key occurred last, and what is kept of it.
    pub(super) fn name(&self, list: TopList, key: u64) -> Option<(u64, &KeyName)> {
        let newest_first = [&self.current, &self.previous].into_iter();
        newest_first.filter_map(|sketches| sketches.get(list as usize)?.name(key)).next()
    }
}
