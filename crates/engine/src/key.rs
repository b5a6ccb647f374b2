//! The names of counters. This is the only place that spells a key.
//!
//! ```text
//! tk1:fw:60s:{shop|path=/login|user=alice}:1795215600
//!  |  |   |   |                            the start of the window, in Unix seconds; only with
//!  |  |   |   |                            clock-aligned algorithms (fixed_window, sliding_window)
//!  |  |   |   the business ID, in a hash tag: the domain, then each entry
//!  |  |   the window: its length, or a calendar's unit, start and zone
//!  |  the algorithm
//!  the version of this format
//! ```
//!
//! No two counters share a key, whatever bytes their values hold: `%`, `|`, `=`, `{`, `}` and
//! everything outside visible ASCII is written as `%XX`. A part of more than 128 bytes, or a secret one, is written as
//! `%~` and the first 128 bits of its SHA-256, a pattern that values share as `%*` and the pattern;
//! escaped text never has either form. With [`SlotBy::Domain`] the hash tag ends behind the domain:
//! `tk1:fw:60s:{shop}|path=/login|user=alice:1795215600`. The number of requests is not in the key: when it changes, the
//! count remains.

use std::{fmt, hash::BuildHasher, iter, mem, sync::Arc};

use sha2::{Digest as _, Sha256};

use crate::{
    hold_id::HoldId,
    request::Entry,
    rule::{Algorithm, CountedBy, Limit},
    time::Timestamp,
};

/// Longer parts, in bytes, are replaced by a digest.
const PART_BYTES_MAX: usize = 128;

/// Keys expire at most this long after their window ends, in milliseconds.
const SPREAD_MS_MAX: u64 = 300_000;

/// What the counters of a domain have in common in a Redis Cluster: those with one hash tag are in one slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SlotBy {
    /// The business ID: counters are distributed over all slots.
    #[default]
    BusinessId,
    /// The domain: all of its counters are in one slot.
    Domain,
}

impl SlotBy {
    /// The only value of `slot_by` in rule files; without it, the business ID applies.
    pub const DOMAIN: &'static str = "domain";
}

/// One counter, in any window: the store chooses the window by its clock.
#[derive(Clone, PartialEq, Eq)]
pub struct Counter {
    business_id: String,
    slot_by: SlotBy,
    /// The limit that it is counted for.
    pub limit: Arc<Limit>,
}

/// The business ID holds values of descriptors, which must not be logged.
impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Counter {
    /// Moves the counter out. What remains has the limit, and no name.
    pub(super) fn take(&mut self) -> Self {
        let business_id = mem::take(&mut self.business_id);
        Self { business_id, slot_by: self.slot_by, limit: Arc::clone(&self.limit) }
    }

    /// The counter of one descriptor in `domain` under `limit`, by the values as sent.
    pub fn new(domain: &str, entries: &[Entry], limit: Arc<Limit>) -> Self {
        Self::counted_by(domain, entries, &[], limit)
    }

    /// Like [`new`](Self::new), but each entry is counted by what stands at its index; those beyond by their values.
    pub fn counted_by(
        domain: &str,
        entries: &[Entry],
        counted_by: &[CountedBy],
        limit: Arc<Limit>,
    ) -> Self {
        let business_id = business_id_of(domain, entries, counted_by);
        Self { business_id, slot_by: SlotBy::default(), limit }
    }

    /// The same counter with the hash tag of its domain. Its key is another, unless it has the default.
    pub fn with_slot_by(self, slot_by: SlotBy) -> Self {
        Self { slot_by, ..self }
    }

    /// The counter of a business ID that [`business_id`](Self::business_id) has returned.
    pub fn of_business_id(business_id: String, slot_by: SlotBy, limit: Arc<Limit>) -> Self {
        Self { business_id, slot_by, limit }
    }

    /// The domain, in the form of the key.
    pub fn domain_part(&self) -> &str {
        // A bar in the domain itself is escaped.
        self.business_id.split('|').next().unwrap_or_default()
    }

    /// The domain and the entries, in the form of the key. It holds values of requests.
    pub fn business_id(&self) -> (&str, SlotBy) {
        (&self.business_id, self.slot_by)
    }

    /// The counter of the same business ID under another limit.
    pub fn with_limit(&self, limit: Arc<Limit>) -> Self {
        Self { business_id: self.business_id.clone(), slot_by: self.slot_by, limit }
    }

    /// Whether both have the same key in any window, though perhaps limits of different numbers.
    pub fn same_counter(&self, other: &Self) -> bool {
        let (limit, other_limit) = (&self.limit, &other.limit);
        self.business_id == other.business_id
            && self.slot_by == other.slot_by
            && limit.window == other_limit.window
            && limit.algorithm.short_name() == other_limit.algorithm.short_name()
    }

    /// The hash tag: the part of the key that chooses the slot in a Redis Cluster, without its braces. It is the
    /// same in all windows and under all limits.
    pub fn hash_tag(&self) -> &str {
        match self.slot_by {
            SlotBy::BusinessId => &self.business_id,
            SlotBy::Domain => self.domain_part(),
        }
    }

    /// Whether it shares its hash slot with all counters of its domain.
    pub fn is_in_slot_of_domain(&self) -> bool {
        self.hash_tag().len() < self.business_id.len()
    }

    /// What it counts: the entries of the descriptor in the form of the key, without the domain.
    pub fn descriptor(&self) -> &str {
        self.business_id.split_once('|').map_or("", |(_, entries)| entries)
    }

    /// The number by which all replicas know what it counts: see [`id_of`].
    pub fn id(&self) -> u64 {
        id_of(&self.business_id)
    }

    /// The length of its business ID in bytes.
    pub const fn id_bytes(&self) -> usize {
        self.business_id.len()
    }

    /// The key; with a clock-aligned algorithm, the key of the window that starts at `start`.
    pub fn key(&self, start: Timestamp) -> String {
        let mut key = String::with_capacity(self.business_id.len() + 40);
        self.write_key(&mut key, start);
        key
    }

    /// Appends the key to `text`.
    pub fn write_key(&self, text: &mut String, start: Timestamp) {
        self.spell("tk1:", |part| text.push_str(part));
        if self.limit.algorithm.is_aligned() {
            text.push(':');
            text.push_str(itoa::Buffer::new().format(start.as_secs()));
        }
    }

    /// Whether this key of a counter is the [`key`](Self::key) of one of its windows. Nothing is allocated.
    pub fn has_key(&self, key: &str) -> bool {
        let mut rest = Some(key);
        self.spell("tk1:", |part| rest = rest.and_then(|rest| rest.strip_prefix(part)));
        match self.limit.algorithm.is_aligned() {
            true => rest.is_some_and(|start| start.starts_with(':')),
            false => rest == Some(""),
        }
    }

    /// The key of the holds without ids that are open on this counter, in any window.
    pub fn open_holds_key(&self) -> String {
        self.key_beside("tk1:ho2:", None)
    }

    /// The key of the other counters on which a take without an id has opened holds.
    pub fn take_key(&self, take: HoldId) -> String {
        self.key_beside("tk1:ht:", Some(take))
    }

    /// The key that exists while the counter is closed.
    pub fn ban_key(&self) -> String {
        self.key_beside("tk1:bn:", None)
    }

    /// The key of what is known of one hold on this counter.
    pub fn hold_record_key(&self, hold: HoldId) -> String {
        self.key_beside("tk1:hr:", Some(hold))
    }

    /// The key of the time at which the counter was last reset, before which nothing is given back to it. Whatever the
    /// limit says of holds: other rules may have held hits on the same counter.
    pub fn reset_key(&self) -> String {
        self.key_beside("tk1:rs:", None)
    }

    /// The key of what replicas have answered in the window that starts at `start`.
    pub fn answered_key(&self, start: Timestamp) -> String {
        format!("{}:{}", self.key_beside("tk1:au:", None), start.as_secs())
    }

    /// The key of something else that belongs to the counter, perhaps one of several with ids.
    fn key_beside(&self, prefix: &str, id: Option<HoldId>) -> String {
        let mut key = String::with_capacity(self.business_id.len() + 64);
        self.spell(prefix, |part| key.push_str(part));
        // An id has no colon, so that the last colon ends the counter's part.
        key.extend(id.map(|id| format!(":{id}")));
        key
    }

    /// The parts of a key, without a window's start. Every call spells one: faster than formatting.
    fn spell(&self, prefix: &str, mut part: impl FnMut(&str)) {
        let Limit { algorithm, window, .. } = &*self.limit;
        let (name, tag) = (algorithm.short_name(), self.hash_tag());
        let untagged = self.business_id.strip_prefix(tag).unwrap_or_default();
        [prefix, name, ":"].into_iter().for_each(&mut part);
        match window.calendar() {
            None => {
                part(itoa::Buffer::new().format(window.seconds()));
                part("s");
            }
            Some(_) => part(&window.to_string()),
        }
        [":{", tag, "}", untagged].into_iter().for_each(part);
    }

    /// A hash of the business ID alone: the same for all windows and limits of a counter.
    pub fn hash_of_id(&self, hasher: &impl BuildHasher) -> u64 {
        hasher.hash_one(&self.business_id)
    }

    /// A hash that agrees with [`same_counter`](Self::same_counter).
    pub fn hash_of_identity(&self, hasher: &impl BuildHasher) -> u64 {
        let Limit { algorithm, window, .. } = &*self.limit;
        hasher.hash_one((&self.business_id, window.seconds(), algorithm.short_name()))
    }

    /// A hash of the business ID and the window that starts at `start`: the same on every replica.
    pub fn hash_of_window(&self, start: Timestamp) -> u64 {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let (words, rest) = self.business_id.as_bytes().as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let rest = rest.iter().fold(0, |rest, byte| rest << 8 | u64::from(*byte));
        let add = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER);
        let hash = words.chain([rest]).fold(start.as_secs(), add);
        (hash ^ hash >> 32).wrapping_mul(MULTIPLIER) >> 32
    }

    /// The expiry of the key of the window that ends at `end`: when it counts no longer, plus a jitter
    /// derived from the key, so that keys do not all expire at midnight. The jitter is shorter than a
    /// window.
    pub fn expiry(&self, end: Timestamp) -> Timestamp {
        let end = match self.limit.algorithm {
            // Its hits count until the next window ends.
            Algorithm::SlidingWindow => end.plus_millis(self.limit.window.millis()),
            _ => end,
        };
        let spread_ms = SPREAD_MS_MAX.min(self.limit.window.millis());
        end.plus_millis(fnv1a(self.business_id.as_bytes()) % spread_ms)
    }
}

/// The business ID of the counter of these entries, each counted by what stands at its index.
pub fn business_id_of(domain: &str, entries: &[Entry], counted_by: &[CountedBy]) -> String {
    let mut id = Vec::with_capacity(64);
    push_part(&mut id, domain.as_bytes());
    let counted_by = counted_by.iter().chain(iter::repeat(&CountedBy::Value));
    for (Entry { key, value }, by) in entries.iter().zip(counted_by) {
        id.push(b'|');
        push_part(&mut id, key);
        id.push(b'=');
        match by {
            CountedBy::Value => push_part(&mut id, value),
            CountedBy::Digest => push_digest(&mut id, value),
            CountedBy::Pattern(pattern) => {
                // Escaped text never has a star after a percent sign.
                id.extend_from_slice(b"%*");
                push_part(&mut id, pattern.as_bytes());
            }
        }
    }
    ascii(id)
}

/// What the counter with this key counts: its domain and its entries, with the pattern in place of a value that is
/// counted by it; and of the key that exists while a counter is closed. `None` if the key is neither, or a part of it is a
/// digest.
pub fn counted(key: &str) -> Option<(Vec<u8>, Vec<Entry>)> {
    let id = business_id_in(key)?;
    let (domain, descriptor) = match id.split_once('|') {
        Some((domain, descriptor)) => (domain, entries(descriptor)?),
        None => (&*id, Vec::new()),
    };
    Some((unescaped(domain)?, descriptor))
}

/// The business ID of the counter with this key; `None` of keys that [`counted`] does not read.
pub fn business_id_in(key: &str) -> Option<String> {
    let rest = key.strip_prefix("tk1:")?;
    let closed = rest.strip_prefix("bn:");
    let (short_name, rest) = closed.unwrap_or(rest).split_once(':')?;
    let algorithms = Algorithm::all(1, None);
    let algorithm = algorithms.iter().find(|algorithm| algorithm.short_name() == short_name)?;
    let (_, rest) = rest.split_once(":{")?;
    let has_start = algorithm.is_aligned() && closed.is_none();
    let id = if has_start { rest.rsplit_once(':')?.0 } else { rest };
    Some(id.replacen('}', "", 1))
}

/// The first 64 bits of the SHA-256 of a business ID: no two descriptors with the same number can be found on purpose.
pub fn id_of(business_id: &str) -> u64 {
    let digest = Sha256::digest(business_id);
    digest.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte))
}

/// The entries that [`Counter::descriptor`] has returned, which is not empty; `None` if a part of it is a digest.
pub fn entries(descriptor: &str) -> Option<Vec<Entry>> {
    let entry = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let value = value.strip_prefix("%*").unwrap_or(value);
        Some(Entry { key: unescaped(key)?.into(), value: unescaped(value)?.into() })
    };
    descriptor.split('|').map(entry).collect()
}

/// A pattern of Redis that the keys of all counters of a domain match, and some others.
pub fn pattern_of_domain(key_prefix: &str, domain_part: &str) -> String {
    let mut pattern = String::new();
    for (part, after) in [(key_prefix, "tk1:*:{"), (domain_part, "*")] {
        for character in part.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '\\') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        pattern.push_str(after);
    }
    pattern
}

/// Whether a part of this key is a digest, so that what it counts cannot be read from it.
pub fn has_digest(key: &str) -> bool {
    key.contains("%~") && !key.contains(OF_CANDIDATE)
}

fn unescaped(part: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(part.len()), part);
    while let Some((plain, escaped)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        bytes.push(u8::from_str_radix(escaped.get(..2)?, 16).ok()?);
        rest = escaped.get(2..)?;
    }
    bytes.extend_from_slice(rest.as_bytes());
    Some(bytes)
}

/// A key with this hash tag that no counter has.
pub fn unused_key(hash_tag: &str) -> String {
    format!("tk1::{{{hash_tag}}}")
}

/// What is before the keys of counters that a candidate's rules use. Behind it, no key is that of a counter in force.
pub const OF_CANDIDATE: &str = "tk1:c:";

/// The key of what replicas share beside counters, by its hash tag.
pub fn shared_key(hash_tag: &str) -> String {
    format!("tk1:op:{{{hash_tag}}}")
}

/// The value of a descriptor in the form of a part of a key: visible ASCII, long values as a digest.
pub fn caller(value: &[u8]) -> Box<str> {
    let mut spelled = Vec::new();
    push_part(&mut spelled, value);
    ascii(spelled).into()
}

/// The digest of a value in the form of a part of a key.
pub fn secret_caller(value: &[u8]) -> Box<str> {
    let mut spelled = Vec::new();
    push_digest(&mut spelled, value);
    ascii(spelled).into()
}

/// Appends a part of a key, in ASCII: to bytes, since a `String` encodes each.
fn push_part(id: &mut Vec<u8>, part: &[u8]) {
    if part.len() > PART_BYTES_MAX {
        return push_digest(id, part);
    }
    // Most parts are copied at once.
    if part.iter().copied().all(is_plain) {
        return id.extend_from_slice(part);
    }
    for &byte in part {
        if is_plain(byte) { id.push(byte) } else { push_escaped(id, byte) }
    }
}

fn push_digest(id: &mut Vec<u8>, part: &[u8]) {
    id.extend_from_slice(b"%~");
    for byte in Sha256::digest(part).iter().take(16) {
        push_hex(id, *byte);
    }
}

/// Whether a byte stands for itself in a key.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'%' | b'|' | b'=' | b'{' | b'}')
}

/// A text that [`push_part`] has written.
fn ascii(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("only ASCII is written")
}

fn push_escaped(id: &mut Vec<u8>, byte: u8) {
    id.push(b'%');
    push_hex(id, byte);
}

fn push_hex(id: &mut Vec<u8>, byte: u8) {
    let digit = |half: u8| half + if half < 10 { b'0' } else { b'A' - 10 };
    id.extend([byte >> 4, byte & 0xf].map(digit));
}

/// FNV-1a, 64 bits: the same on every replica, which hashers of std do not guarantee.
/// <https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{calendar::Calendar, rule::Unit, window::Window};
    use proptest::prelude::*;

    type Pair<'bytes> = (&'bytes [u8], &'bytes [u8]);

    fn entries(pairs: &[Pair<'_>]) -> Vec<Entry> {
        pairs
            .iter()
            .map(|(key, value)| Entry { key: key.to_vec().into(), value: value.to_vec().into() })
            .collect()
    }

    fn counter(domain: &str, pairs: &[Pair<'_>]) -> Counter {
        Counter::new(domain, &entries(pairs), per(Unit::Minute))
    }

    fn per(unit: Unit) -> Arc<Limit> {
        Arc::new(Limit::new(1, unit, 1).expect("a valid window"))
    }

    proptest! {
        #[test]
        fn what_a_key_counts_is_read_from_it(
            domain in ".{0,9}",
            path in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..9), prop::collection::vec(any::<u8>(), 0..9)), 0..4),
            of_domain in any::<bool>(),
        ) {
            let pairs: Vec<Pair<'_>> = path.iter().map(|(key, value)| (&**key, &**value)).collect();
            let slot_by = if of_domain { SlotBy::Domain } else { SlotBy::BusinessId };
            for algorithm in Algorithm::all(1, None) {
                let limit = Limit { algorithm, ..(*per(Unit::Minute)).clone() };
                let counter = Counter::new(&domain, &entries(&pairs), Arc::new(limit));
                let counter = counter.with_slot_by(slot_by);
                for key in [counter.key(Timestamp::from_secs(60)), counter.ban_key()] {
                    let expected = (domain.clone().into_bytes(), entries(&pairs));
                    prop_assert_eq!(counted(&key), Some(expected));
                }
            }
        }
    }

    #[test]
    fn the_pattern_of_a_domain_takes_its_characters_literally() {
        assert_eq!(pattern_of_domain("a*b:", "sh?p"), r"a\*b:tk1:*:{sh\?p*");
    }

    #[test]
    fn a_digest_and_a_hold_have_no_entries_to_read() {
        for (key, is_digest) in [
            ("tk1:fw:60s:{shop|user=%~0EC9EB33E74510BCDD1F2EA55206E82F}:60", true),
            ("tk1:ho2:fw:60s:{shop|user=alice}", false),
            ("tk1:fw:60s:{shop|user=%4}:60", false),
            ("other", false),
        ] {
            assert_eq!((counted(key), has_digest(key)), (None, is_digest), "{key}");
        }
        let pattern = counted("tk1:fw:60s:{shop|file=%**.pdf}:60").unwrap().1;
        assert_eq!(pattern, entries(&[(b"file", b"*.pdf")]));
    }

    /// A change in this table splits every counter during a rolling upgrade.
    #[test]
    fn the_format_is_pinned_by_a_golden_file() {
        let long = [b'x'; 129];
        let cases: [(&str, &[Pair<'_>]); 9] = [
            ("shop", &[]),
            ("shop", &[(b"user", b"alice")]),
            ("shop", &[(b"path", b"/login"), (b"user", b"alice")]),
            ("shop", &[(b"user", b"")]),
            ("shop", &[(b"user", b"a|b=c{d}e%f g~h*i")]),
            ("shop", &[(b"user", b"\x00\xff\n\"")]),
            ("a|b", &[("ключ".as_bytes(), b"::1")]),
            ("shop", &[(b"user", &long[..128])]),
            ("shop", &[(b"user", &long)]),
        ];
        let start = Timestamp::from_secs(1_795_215_600);
        let mut keys: String =
            cases.iter().map(|(d, pairs)| counter(d, pairs).key(start) + "\n").collect();
        let berlin = Calendar::new(Unit::Day, "europe/berlin").unwrap();
        let day = Limit { window: Window::of_calendar(berlin), ..(*per(Unit::Day)).clone() };
        let file = entries(&[(b"file", b"a.pdf")]);
        for by in [CountedBy::Pattern("*.pdf".into()), CountedBy::Digest] {
            let counter = Counter::counted_by("shop", &file, &[by], per(Unit::Minute));
            keys += &(counter.key(start) + "\n");
        }
        let mut limits = Vec::new();
        // Fixed windows are above.
        for algorithm in Algorithm::all(5, None).into_iter().skip(1) {
            limits.push(Limit { algorithm, ..(*per(Unit::Minute)).clone() });
        }
        limits.push(day);
        for (unit, starts) in [
            (Unit::Day, "06:00"),
            (Unit::Week, "Friday"),
            (Unit::Month, "15"),
            (Unit::Year, "04-01"),
            (Unit::Month, "1"),
        ] {
            let calendar = Calendar::new(unit, "europe/berlin").unwrap().starting(starts).unwrap();
            limits.push(Limit { window: Window::of_calendar(calendar), ..(*per(unit)).clone() });
        }
        for limit in limits {
            let alice = entries(&[(b"user", b"alice")]);
            keys += &(Counter::new("shop", &alice, Arc::new(limit)).key(start) + "\n");
        }
        let descriptors: [&[Pair<'_>]; 3] = [
            &[],
            &[(b"path", b"/login"), (b"user", b"alice")],
            &[(b"user", b"a|b=c{d}e%f g~h*i:1795215600")],
        ];
        for pairs in descriptors {
            let counter = counter("a|b", pairs).with_slot_by(SlotBy::Domain);
            assert_eq!(counter.hash_tag(), "a%7Cb");
            keys += &(counter.key(start) + "\n");
        }
        let login = Limit {
            algorithm: Algorithm::FirstHitWindow { idle_ms: None },
            ..(*per(Unit::Minute)).clone()
        };
        let login = counter("shop", &[(b"path", b"/login")]).with_limit(Arc::new(login));
        keys += &(login.with_slot_by(SlotBy::Domain).key(start) + "\n");
        assert_eq!(keys, include_str!("key.golden"));
    }

    /// Otherwise the replicas of two builds would not add up what they have answered.
    #[test]
    fn the_windows_that_are_audited_and_their_keys_are_pinned() {
        let counter = counter("shop", &[(b"user", b"alice")]);
        let start = Timestamp::from_secs(1_795_215_600);
        assert_eq!(counter.hash_of_window(start), 961_552_104);
        let key = counter.answered_key(start);
        assert_eq!(key, "tk1:au:fw:60s:{shop|user=alice}:1795215600");
        assert_eq!(business_id_in(&key), None, "it is not listed as a counter");
    }

    /// Otherwise a rolling upgrade would lose holds, bans and resets, and replicas would share no numbers of counters.
    #[test]
    fn what_belongs_to_a_counter_has_keys_and_numbers_that_are_pinned() {
        let counter = counter("shop", &[(b"user", b"alice")]);
        let id = HoldId::new(1);
        for (key, expected) in [
            (counter.open_holds_key(), "tk1:ho2:fw:60s:{shop|user=alice}"),
            (counter.ban_key(), "tk1:bn:fw:60s:{shop|user=alice}"),
            (counter.reset_key(), "tk1:rs:fw:60s:{shop|user=alice}"),
            (counter.take_key(id), "tk1:ht:fw:60s:{shop|user=alice}:000000000000000000000001"),
            (
                counter.hold_record_key(id),
                "tk1:hr:fw:60s:{shop|user=alice}:000000000000000000000001",
            ),
            (unused_key("shop"), "tk1::{shop}"),
            (shared_key("shop"), "tk1:op:{shop}"),
            (caller(b"a b").into(), "a%20b"),
            (secret_caller(b"alice").into(), "%~2BD806C97F0E00AF1A1FC3328FA763A9"),
        ] {
            assert_eq!(key, expected);
        }
        assert_eq!((counter.id(), counter.id_bytes()), (0x34b2_b0a3_e5b2_35fb, 15));
        assert_eq!(counter.business_id(), ("shop|user=alice", SlotBy::BusinessId));
        assert!(!format!("{counter:?}").contains("alice"), "values are not logged");
        assert!(format!("{counter:?}").contains("FixedWindow"));
    }

    #[test]
    fn a_counter_is_in_the_slot_of_its_domain_if_its_hash_tag_is_the_domain_alone() {
        let alice = || counter("shop", &[(b"user", b"alice")]);
        for (counter, is_in_slot_of_domain) in [
            (alice(), false),
            (alice().with_slot_by(SlotBy::Domain), true),
            (counter("shop", &[]).with_slot_by(SlotBy::Domain), false),
        ] {
            assert_eq!(
                counter.is_in_slot_of_domain(),
                is_in_slot_of_domain,
                "{}",
                counter.hash_tag()
            );
        }
    }

    #[test]
    fn counters_are_the_same_in_all_windows_whatever_number_their_limits_have() {
        let hasher = hashbrown::DefaultHashBuilder::default();
        let alice = counter("shop", &[(b"user", b"alice")]);
        let minute = || Limit::clone(&per(Unit::Minute));
        let with = |limit| alice.with_limit(Arc::new(limit));
        let algorithm = Algorithm::SlidingWindow;
        for (other, is_same, has_same_id) in [
            (with(Limit { requests_per_unit: 9, ..minute() }), true, true),
            (with(Limit { algorithm, ..minute() }), false, true),
            (with(Limit::clone(&per(Unit::Hour))), false, true),
            (counter("shop", &[(b"user", b"bob")]), false, false),
        ] {
            let text = other.key(Timestamp::default());
            assert_eq!(alice.same_counter(&other), is_same, "{text}");
            let hashes = [&alice, &other].map(|counter| counter.hash_of_identity(&hasher));
            assert_eq!(hashes[0] == hashes[1], is_same, "{text}");
            let hashes = [&alice, &other].map(|counter| counter.hash_of_id(&hasher));
            assert_eq!(hashes[0] == hashes[1], has_same_id, "{text}");
        }
    }

    #[test]
    fn a_sliding_window_expires_one_window_later_and_all_replicas_spread_alike() {
        let end = Timestamp::from_secs(1_795_219_200);
        for (algorithm, unit, late_ms) in [
            (Algorithm::FixedWindow, Unit::Second, 573),
            (Algorithm::FixedWindow, Unit::Minute, 55_573),
            (Algorithm::FixedWindow, Unit::Day, 295_573),
            (Algorithm::SlidingWindow, Unit::Minute, 115_573),
        ] {
            let limit = Arc::new(Limit { algorithm, ..(*per(unit)).clone() });
            let counter = counter("shop", &[(b"user", b"alice")]).with_limit(limit);
            assert_eq!(counter.expiry(end).millis_since(end), late_ms);
        }
    }

    #[test]
    fn the_expiry_is_spread_within_one_window_and_five_minutes() {
        for user in 0..1000_u32 {
            for unit in Unit::ALL {
                let pairs = entries(&[(b"user", user.to_string().as_bytes())]);
                let counter = Counter::new("shop", &pairs, per(unit));
                let end = Timestamp::from_secs(1_795_219_200);
                let late = counter.expiry(end).millis_since(end);
                assert!((0..300_000.min(unit.seconds().cast_signed() * 1000)).contains(&late));
            }
        }
    }

    /// Bytes that a careless format would confuse, and strings around the length from which parts are digested.
    fn part() -> impl Strategy<Value = Vec<u8>> {
        let tricky = prop::sample::select(&b"%|={}~*:_aA0 \x00\xff\n"[..]);
        prop_oneof![
            prop::collection::vec(tricky, 0..6),
            prop::collection::vec(any::<u8>(), 126..131),
        ]
    }

    fn descriptor() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
        prop::collection::vec((part(), part()), 0..3)
    }

    fn counter_of(domain: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> Counter {
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
        counter(domain, &pairs)
    }

    fn slot_by() -> impl Strategy<Value = SlotBy> {
        prop::sample::select(vec![SlotBy::BusinessId, SlotBy::Domain])
    }

    proptest! {
        /// P8: two descriptors share a key only if they are equal.
        #[test]
        fn keys_are_injective(
            a in descriptor(), b in descriptor(),
            domain_a in "[a|=%{]{1,2}", domain_b in "[a|=%{]{1,2}",
            slot_by_a in slot_by(), slot_by_b in slot_by(), is_aligned in any::<bool>(),
        ) {
            // Without entries, the business ID is the domain.
            let are_equal =
                (&domain_a, &a) == (&domain_b, &b) && (slot_by_a == slot_by_b || a.is_empty());
            let algorithm =
                if is_aligned { Algorithm::FixedWindow } else { Algorithm::FirstHitWindow { idle_ms: None } };
            let limit = Arc::new(Limit { algorithm, ..(*per(Unit::Minute)).clone() });
            let key = |domain: &str, pairs: &[_], slot_by| {
                let counter = counter_of(domain, pairs).with_limit(Arc::clone(&limit));
                counter.with_slot_by(slot_by).key(Timestamp::from_secs(0))
            };
            let [one, other] = [key(&domain_a, &a, slot_by_a), key(&domain_b, &b, slot_by_b)];
            prop_assert_eq!(one == other, are_equal);
            let first = counter_of(&domain_a, &a).with_limit(limit).with_slot_by(slot_by_a);
            prop_assert!(first.has_key(&one));
            prop_assert_eq!(first.has_key(&other), are_equal);
        }

        /// P10: the hash tag is the business ID or the domain, whatever the values hold.
        #[test]
        fn keys_are_visible_ascii_with_one_hash_tag(pairs in descriptor(), slot_by in slot_by()) {
            let counter = counter_of("shop", &pairs).with_slot_by(slot_by);
            let key = counter.key(Timestamp::from_secs(0));
            prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(key.matches('{').count(), 1);
            prop_assert_eq!(key.matches('}').count(), 1);
            let (_, tagged) = key.split_once('{').unwrap();
            prop_assert_eq!(tagged.split_once('}').unwrap().0, counter.hash_tag());
            if slot_by == SlotBy::Domain {
                prop_assert_eq!(counter.hash_tag(), "shop");
            }
        }
    }
}
