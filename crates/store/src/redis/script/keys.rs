//! The keys of a run, each named once: arguments show a key by its slot in KEYS, counted from 1 as Lua does.

use std::hash::{BuildHasher as _, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

/// Keys in the order in which they were first named.
#[derive(Debug, Default)]
pub(super) struct KeyIndex<Key = String> {
    keys: Vec<Key>,
    slots: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

impl<Key: Hash + Eq> KeyIndex<Key> {
    pub(super) fn as_slice(&self) -> &[Key] {
        &self.keys
    }

    /// The slot of a key; a new one if the key is new.
    pub(super) fn slot(&mut self, key: Key) -> usize {
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

#[cfg(test)]
mod tests {
    use std::{cell::Cell, hash::Hasher};

    use super::*;

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    #[derive(Default, Eq)]
    struct Counted(usize);

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn equal_keys_share_a_slot_and_others_follow_in_the_order_in_which_they_are_named() {
        let mut index = KeyIndex::default();
        let slots = ["b", "a", "b", "c", "a"].map(|key| index.slot(key.to_owned()));
        assert_eq!(slots, [1, 2, 1, 3, 2]);
        assert_eq!(index.as_slice(), ["b", "a", "c"]);
    }

    #[test]
    fn a_key_is_compared_with_few_others_however_many_there_are() {
        const KEYS: usize = 10_000;
        let mut index = KeyIndex::default();
        for key in (0..KEYS).chain(0..KEYS) {
            assert_eq!(index.slot(Counted(key)), key + 1);
        }
        let compared = COMPARED.get();
        assert!(compared < 4 * KEYS, "{compared} comparisons");
    }
}
