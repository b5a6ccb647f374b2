//! The keys of a run, each named once: arguments show a key by its slot in KEYS, counted from 1 as Lua does.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Keys in the order in which they were first named.
#[derive(Debug, Default)]
pub(super) struct KeyIndex {
    keys: Vec<String>,
    slots: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

impl KeyIndex {
    pub(super) fn as_slice(&self) -> &[String] {
        &self.keys
    }

    /// The slot of a key; a new one if the key is new.
    pub(super) fn slot(&mut self, key: String) -> usize {
        let (keys, hasher) = (&self.keys, &self.hasher);
        let key_at = |slot: &usize| keys.get(*slot - 1);
        let hash = hasher.hash_one(&key);
        if let Some(slot) = self.slots.find(hash, |slot| key_at(slot) == Some(&key)) {
            return *slot;
        }
        let slot = keys.len() + 1;
        let hash_at = |slot: &usize| key_at(slot).map_or(0, |key| hasher.hash_one(key));
        self.slots.insert_unique(hash, slot, hash_at);
        self.keys.push(key);
        slot
    }
}
