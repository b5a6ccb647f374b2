//! Keys, their values and their ends.

use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    Sorted(SortedSet),
}

/// Members by score, and by their bytes within one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SortedSet(Vec<(f64, Vec<u8>)>);

impl SortedSet {
    pub fn members(&self) -> &[(f64, Vec<u8>)] {
        &self.0
    }

    /// Returns whether the member is new.
    pub fn add(&mut self, score: f64, member: Vec<u8>) -> bool {
        let is_new = !self.remove(&member);
        let place = self.0.partition_point(|(other, known)| {
            other.total_cmp(&score).then_with(|| known.cmp(&member)).is_lt()
        });
        self.0.insert(place, (score, member));
        is_new
    }

    /// Returns whether it was there.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let place = self.0.iter().position(|(_, known)| known == member);
        place.map(|place| self.0.remove(place)).is_some()
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    value: Value,
    /// In Unix milliseconds.
    ends: Option<u64>,
}

/// The keys, at the time at which a command or a script runs.
#[derive(Debug, Clone, Default)]
pub struct Database {
    keys: BTreeMap<Vec<u8>, Entry>,
    /// In Unix microseconds. It does not pass while a script runs.
    pub now_us: u64,
    /// Each change, and each key that has ended: what WATCH compares.
    versions: BTreeMap<Vec<u8>, u64>,
    changes: u64,
}

impl Database {
    pub const fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    pub fn value(&mut self, key: &[u8]) -> Option<&Value> {
        self.drop_ended(key);
        self.keys.get(key).map(|entry| &entry.value)
    }

    /// When the key ends; `None` if it does not exist, `Some(None)` if it never ends.
    pub fn ends(&mut self, key: &[u8]) -> Option<Option<u64>> {
        self.drop_ended(key);
        self.keys.get(key).map(|entry| entry.ends)
    }

    pub fn set(&mut self, key: &[u8], value: Value, ends: Option<u64>) {
        self.changed(key);
        self.keys.insert(key.to_owned(), Entry { value, ends });
    }

    /// Changes the value of a key, which is created if it does not exist, and removed if it is empty after that.
    pub fn change<T>(
        &mut self,
        key: &[u8],
        new: impl FnOnce() -> Value,
        change: impl FnOnce(&mut Value) -> T,
    ) -> T {
        self.drop_ended(key);
        self.changed(key);
        let entry =
            self.keys.entry(key.to_owned()).or_insert_with(|| Entry { value: new(), ends: None });
        let answer = change(&mut entry.value);
        let is_empty = match &entry.value {
            Value::Text(_) => false,
            Value::List(list) => list.is_empty(),
            Value::Hash(hash) => hash.is_empty(),
            Value::Sorted(set) => set.is_empty(),
        };
        if is_empty {
            self.keys.remove(key);
        }
        answer
    }

    /// Returns whether the key existed. One that ends in the past is removed.
    pub fn expire(&mut self, key: &[u8], ends: u64) -> bool {
        self.drop_ended(key);
        let now = self.now_ms();
        let Some(entry) = self.keys.get_mut(key) else { return false };
        entry.ends = Some(ends);
        if ends <= now {
            self.keys.remove(key);
        }
        self.changed(key);
        true
    }

    /// Returns whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.drop_ended(key);
        let was_there = self.keys.remove(key).is_some();
        if was_there {
            self.changed(key);
        }
        was_there
    }

    pub fn clear(&mut self) {
        let keys: Vec<Vec<u8>> = std::mem::take(&mut self.keys).into_keys().collect();
        keys.iter().for_each(|key| self.changed(key));
    }

    /// Moves a key with its value and its end.
    pub fn move_key(&mut self, key: &[u8], to: &mut Self) {
        if let Some(entry) = self.keys.remove(key) {
            self.changed(key);
            to.changed(key);
            to.keys.insert(key.to_owned(), entry);
        }
    }

    /// The keys that are not the same in another database.
    pub fn lost_in(&mut self, other: &mut Self) -> Vec<Vec<u8>> {
        other.now_us = self.now_us;
        // A window in which something was lost may have ended since, if the clock has jumped.
        let all: Vec<Vec<u8>> = self.keys.keys().cloned().chain(other.keys()).collect();
        all.into_iter().filter(|key| self.keys.get(key) != other.keys.get(key)).collect()
    }

    /// What several servers have together.
    pub fn of_all<'a>(all: impl Iterator<Item = &'a Self>, now_us: u64) -> Self {
        let keys = all.flat_map(|one| one.keys.clone()).collect();
        Self { keys, now_us, ..Self::default() }
    }

    /// All keys, in order.
    pub fn keys(&mut self) -> Vec<Vec<u8>> {
        let known: Vec<Vec<u8>> = self.keys.keys().cloned().collect();
        known.into_iter().filter(|key| self.value(key).is_some()).collect()
    }

    /// Changes whenever the key does.
    pub fn version(&mut self, key: &[u8]) -> u64 {
        self.drop_ended(key);
        self.versions.get(key).copied().unwrap_or_default()
    }

    fn changed(&mut self, key: &[u8]) {
        self.changes += 1;
        self.versions.insert(key.to_owned(), self.changes);
    }

    fn drop_ended(&mut self, key: &[u8]) {
        let now = self.now_ms();
        let has_ended = |entry: &Entry| entry.ends.is_some_and(|ends| ends < now);
        if self.keys.get(key).is_some_and(has_ended) {
            self.keys.remove(key);
            self.changed(key);
        }
    }
}
