//! What one worker has counted: in the period that runs, and in the one before, so that old calls are forgotten.

use super::{
    merge::Merged,
    name::KeyName,
    space_saving::{LastTally, SpaceSaving},
};

/// The most keys of a sketch. A key that makes up more than a thousandth of a worker's calls is never missed.
pub(super) const KEYS_MAX: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopList {
    Hottest,
    Denied,
    Nearest,
    /// Over a shadow limit.
    Shadow,
}

#[derive(Debug)]
pub(super) struct WorkerKeys {
    period: u64,
    current: Sketches,
    previous: Sketches,
}

#[derive(Debug)]
struct Sketches {
    hottest: SpaceSaving<KeyName>,
    denied: SpaceSaving<KeyName>,
    nearest: SpaceSaving<KeyName>,
    shadow: SpaceSaving<KeyName>,
}

impl WorkerKeys {
    pub(super) fn new() -> Self {
        Self { period: 0, current: Sketches::new(), previous: Sketches::new() }
    }

    /// Lets the period with this number begin, unless it has begun. An earlier one is over, and has no effect.
    pub(super) fn enter(&mut self, period: u64) {
        if period <= self.period {
            return;
        }
        let is_next = period == self.period.saturating_add(1);
        self.period = period;
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if !is_next {
            self.previous.clear();
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
        self.current.of_mut(list).add(key, last, current, name);
    }

    pub(super) fn merge_into(&self, merged: &mut Merged, list: TopList) {
        merged.add(self.previous.of(list));
        merged.add(self.current.of(list));
    }

    /// When a key occurred last, and what is kept of it.
    pub(super) fn name(&self, list: TopList, key: u64) -> Option<(u64, &KeyName)> {
        self.current.of(list).name(key).or_else(|| self.previous.of(list).name(key))
    }
}

impl Sketches {
    fn new() -> Self {
        let [hottest, denied, nearest, shadow] =
            std::array::from_fn(|_| SpaceSaving::new(KEYS_MAX));
        Self { hottest, denied, nearest, shadow }
    }

    fn clear(&mut self) {
        for sketch in [&mut self.hottest, &mut self.denied, &mut self.nearest, &mut self.shadow] {
            sketch.clear();
        }
    }

    fn of(&self, list: TopList) -> &SpaceSaving<KeyName> {
        match list {
            TopList::Hottest => &self.hottest,
            TopList::Denied => &self.denied,
            TopList::Nearest => &self.nearest,
            TopList::Shadow => &self.shadow,
        }
    }

    fn of_mut(&mut self, list: TopList) -> &mut SpaceSaving<KeyName> {
        match list {
            TopList::Hottest => &mut self.hottest,
            TopList::Denied => &mut self.denied,
            TopList::Nearest => &mut self.nearest,
            TopList::Shadow => &mut self.shadow,
        }
    }
}
