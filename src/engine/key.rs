//! The names of counters. This is the only place that spells a key.
//!
//! ```text
//! tk1:fw:60s:{shop|path=/login|user=alice}:1795215600
//!  |  |   |   |                            the window's start, in Unix seconds: of fixed and of
//!  |  |   |   |                            sliding windows, which the clock aligns
//!  |  |   |   the business ID, in a hash tag: the domain, then each entry
//!  |  |   the window: its length, or a calendar's unit and zone
//!  |  the algorithm
//!  the version of this format
//! ```
//!
//! No two counters share a key, whatever bytes their values hold: `%`, `|`, `=`, `{`, `}` and
//! everything outside visible ASCII is written `%XX`. A part of more than 128 bytes is written
//! `%~` and the first 128 bits of its SHA-256, and a pattern that values share `%*` and the pattern;
//! no escaped text can be either. The limit's number is left out on purpose: changing it keeps the
//! count.

use std::{
    fmt::{self, Write as _},
    hash::BuildHasher,
    iter,
    sync::Arc,
};

use sha2::{Digest as _, Sha256};

use crate::engine::{
    request::Entry,
    rule::{Algorithm, Limit},
    time::Timestamp,
};

/// Parts longer than this, in bytes, are digested.
const PART_BYTES_MAX: usize = 128;

/// Keys go at most this long after their window, in milliseconds.
const SPREAD_MS_MAX: u64 = 300_000;

/// One counter, in whichever window the store's clock will find itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Counter {
    business_id: String,
    /// The limit that holds there.
    pub limit: Arc<Limit>,
}

/// The business ID holds values of descriptors, which must not enter a log.
impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Counter {
    /// The counter of one descriptor in `domain`, under `limit`, as it was sent.
    pub fn new(domain: &str, entries: &[Entry], limit: Arc<Limit>) -> Self {
        Self::shared(domain, entries, &[], limit)
    }

    /// The same, but that an entry whose place in `shared` holds a pattern is counted by that, with
    /// all values that it stands for.
    pub fn shared(
        domain: &str,
        entries: &[Entry],
        shared: &[Option<Arc<str>>],
        limit: Arc<Limit>,
    ) -> Self {
        let mut business_id = String::with_capacity(64);
        push_part(&mut business_id, domain.as_bytes());
        let patterns = shared.iter().map(Option::as_deref).chain(iter::repeat(None));
        for (Entry { key, value }, pattern) in entries.iter().zip(patterns) {
            business_id.push('|');
            push_part(&mut business_id, key);
            business_id.push('=');
            match pattern {
                None => push_part(&mut business_id, value),
                Some(pattern) => {
                    // No escaped text has a star behind its percent sign.
                    business_id.push_str("%*");
                    push_part(&mut business_id, pattern.as_bytes());
                }
            }
        }
        Self { business_id, limit }
    }

    /// The counter of the same business ID under another limit.
    pub fn with_limit(&self, limit: Arc<Limit>) -> Self {
        Self { business_id: self.business_id.clone(), limit }
    }

    /// Whether both count in one place, though perhaps by limits of other numbers: their keys are
    /// the same in any window.
    pub fn same_counter(&self, other: &Self) -> bool {
        let name = |it: &Self| short_name(&it.limit.algorithm);
        self.business_id == other.business_id
            && self.limit.window == other.limit.window
            && name(self) == name(other)
    }

    /// How long its business ID is.
    pub const fn id_bytes(&self) -> usize {
        self.business_id.len()
    }

    /// The key; of a window that the clock aligns, of the one that begins at `start`.
    pub fn key(&self, start: Timestamp) -> String {
        let mut key = String::with_capacity(self.business_id.len() + 40);
        self.write_key(&mut key, start);
        key
    }

    /// Writes the key behind what `text` holds.
    pub fn write_key(&self, text: &mut String, start: Timestamp) {
        let Limit { algorithm, window, .. } = &*self.limit;
        let (name, id) = (short_name(algorithm), &self.business_id);
        // Every call spells one, so it is pushed rather than formatted.
        for part in ["tk1:", name, ":"] {
            text.push_str(part);
        }
        write(text, window);
        for part in [":{", id, "}"] {
            text.push_str(part);
        }
        if algorithm.is_aligned() {
            text.push(':');
            write(text, start.as_secs());
        }
    }

    /// A hash of the business ID alone: the same for all of a counter's windows, and whatever the limit.
    pub fn hash_of_id(&self, hasher: &impl BuildHasher) -> u64 {
        hasher.hash_one(&self.business_id)
    }

    /// A hash that is the same for all counters that [`meet`](Self::same_counter).
    pub fn hash_of_identity(&self, hasher: &impl BuildHasher) -> u64 {
        let Limit { algorithm, window, .. } = &*self.limit;
        hasher.hash_one((&self.business_id, window.seconds(), short_name(algorithm)))
    }

    /// When the key of the window that ends at `end` may go: when it counts no more or a little
    /// later, by its name, so that midnight does not expire every key at once. One window later it
    /// has gone.
    pub fn expiry(&self, end: Timestamp) -> Timestamp {
        let end = match self.limit.algorithm {
            // Its hits are weighed until the next window ends.
            Algorithm::SlidingWindow => end.plus_millis(self.limit.window.millis()),
            _ => end,
        };
        let room = SPREAD_MS_MAX.min(self.limit.window.millis());
        Timestamp::from_millis(end.as_millis() + fnv1a(self.business_id.as_bytes()) % room)
    }
}

/// A caller's name as it is remembered: the value of a descriptor, spelled like a part of a key.
pub fn caller(value: &[u8]) -> Box<str> {
    let mut spelled = String::new();
    push_part(&mut spelled, value);
    spelled.into()
}

/// The algorithm in keys and in the scripts' arguments.
pub const fn short_name(algorithm: &Algorithm) -> &'static str {
    match algorithm {
        Algorithm::FixedWindow => "fw",
        Algorithm::FirstHitWindow => "fh",
        Algorithm::SlidingLog { .. } => "sl",
        Algorithm::SlidingWindow => "sw",
        Algorithm::TokenBucket { .. } => "tb",
    }
}

fn push_part(id: &mut String, part: &[u8]) {
    if part.len() > PART_BYTES_MAX {
        id.push_str("%~");
        for byte in Sha256::digest(part).iter().take(16) {
            push_hex(id, *byte);
        }
        return;
    }
    for &byte in part {
        match byte {
            b'%' | b'|' | b'=' | b'{' | b'}' => push_escaped(id, byte),
            0x21..=0x7e => id.push(char::from(byte)),
            _ => push_escaped(id, byte),
        }
    }
}

fn push_escaped(id: &mut String, byte: u8) {
    id.push('%');
    push_hex(id, byte);
}

fn push_hex(id: &mut String, byte: u8) {
    write(id, format_args!("{byte:02X}"));
}

fn write(text: &mut String, part: impl fmt::Display) {
    write!(text, "{part}").expect("a String takes all that is written to it");
}

/// FNV-1a, 64 bits: the same on every replica, which std's hashers do not promise.
/// <https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{calendar::Calendar, rule::Unit, time::Window};
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

    /// Changing a line of this table splits every counter in a rolling upgrade.
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
        let shared = [Some("*.pdf".into())];
        keys += &(Counter::shared("shop", &file, &shared, per(Unit::Minute)).key(start) + "\n");
        let others = [
            Algorithm::FirstHitWindow,
            Algorithm::SlidingLog { remember: None },
            Algorithm::SlidingWindow,
            Algorithm::TokenBucket { burst: 5 },
        ];
        let minute = |algorithm| Limit { algorithm, ..(*per(Unit::Minute)).clone() };
        for limit in others.map(minute).into_iter().chain([day]) {
            let alice = entries(&[(b"user", b"alice")]);
            keys += &(Counter::new("shop", &alice, Arc::new(limit)).key(start) + "\n");
        }
        assert_eq!(keys, include_str!("key.golden"));
    }

    #[test]
    fn the_expiry_is_spread_within_one_window_and_five_minutes() {
        for user in 0..1000_u32 {
            for unit in Unit::ALL {
                let pairs = entries(&[(b"user", user.to_string().as_bytes())]);
                let counter = Counter::new("shop", &pairs, per(unit));
                let end = Timestamp::from_secs(1_795_219_200);
                let late = counter.expiry(end).millis_since(end);
                assert!((0..300_000.min(unit.seconds() as i64 * 1000)).contains(&late));
            }
        }
    }

    /// Bytes that a careless format would trip over, and strings around the digest's edge.
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

    fn key_of(domain: &str, pairs: &[(Vec<u8>, Vec<u8>)]) -> String {
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
        counter(domain, &pairs).key(Timestamp::from_secs(0))
    }

    proptest! {
        /// P8: two descriptors share a key only if they are the same.
        #[test]
        fn keys_are_injective(
            a in descriptor(), b in descriptor(),
            domain_a in "[a|=%{]{1,2}", domain_b in "[a|=%{]{1,2}",
        ) {
            let same = (&domain_a, &a) == (&domain_b, &b);
            prop_assert_eq!(key_of(&domain_a, &a) == key_of(&domain_b, &b), same);
        }

        /// P10: the hash tag is the business ID, whatever the values hold.
        #[test]
        fn keys_are_visible_ascii_with_one_hash_tag(pairs in descriptor()) {
            let key = key_of("shop", &pairs);
            prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(key.matches('{').count(), 1);
            prop_assert_eq!(key.matches('}').count(), 1);
        }
    }
}
