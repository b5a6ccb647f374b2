//! The parameters of holds: entries of a descriptor whose keys begin with `hold.`, and which are no part of its path.
//!
//! Their values are written by end users and models, so a bad one counts as missing: it is never an error.

use crate::{algorithm::account::COUNT_MAX, hold::HoldPolicy, request::Entry};

/// What the keys of parameters begin with.
const PREFIX: &[u8] = b"hold.";

/// Longer numbers, in bytes, are no numbers.
const NUMBER_BYTES_MAX: usize = 40;

/// Envoy has no longer flag of a response.
const FLAG_BYTES_MAX: usize = 5;

/// The entries of a descriptor, some of which are parameters.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'call>(&'call [Entry]);

impl<'call> Parameters<'call> {
    /// The parameters among these entries. Most calls have no parameters.
    pub fn of(entries: &'call [Entry]) -> Option<Self> {
        entries.iter().any(Self::is_parameter).then_some(Self(entries))
    }

    /// Whether this entry is one.
    pub fn is_parameter(entry: &Entry) -> bool {
        entry.key.starts_with(PREFIX)
    }

    /// Whether this entry is one whose value identifies nobody: a number of hits, or the end of a call, such as `503 UF`.
    pub fn is_harmless(entry: &Entry) -> bool {
        let is_end = |value: &[u8]| {
            let mut words = value.split(|byte| matches!(byte, b' ' | b','));
            let is_code = words
                .next()
                .is_some_and(|code| code.len() == 3 && code.iter().all(u8::is_ascii_digit));
            let is_flag = |word: &[u8]| {
                word.len() <= FLAG_BYTES_MAX
                    && word.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'-')
            };
            is_code && words.all(is_flag)
        };
        match entry.key.strip_prefix(PREFIX) {
            Some(b"end") => is_end(&entry.value),
            Some(name) if is_kind_of(name, b"used") || is_kind_of(name, b"estimate") => {
                number(&entry.value).is_some()
            }
            Some(_) | None => false,
        }
    }

    /// Whether this entry is one of a commit: its token, what was used, or the end of the call.
    pub fn is_of_commit(entry: &Entry) -> bool {
        let name = entry.key.strip_prefix(PREFIX);
        name.is_some_and(|name| matches!(name, b"commit" | b"end") || is_kind_of(name, b"used"))
    }

    /// Whether this key of a rule would be one.
    pub fn is_parameter_key(key: &str) -> bool {
        key.as_bytes().starts_with(PREFIX)
    }

    /// The token of a commit.
    pub fn commit(self) -> Option<&'call [u8]> {
        self.value(b"commit")
    }

    /// The id of a take and of its commit.
    pub fn id(self) -> Option<&'call [u8]> {
        self.value(b"id")
    }

    /// The hits that a take announces.
    pub fn estimate(self, weights: &[(Box<str>, i64)]) -> Option<u64> {
        self.weighed(b"estimate", weights)
    }

    /// The hits that a commit states. The plain number 0 says that no work was done, of any kind.
    pub fn used(self, weights: &[(Box<str>, i64)]) -> Option<u64> {
        let of_none = || number(self.value(b"used")?).filter(|used| *used == 0);
        self.weighed(b"used", weights).or_else(of_none)
    }

    /// The hits that it stands for as the commit of a hold of `held` hits: all of them if it has no number, unless its end
    /// shows that no work was done.
    pub fn used_of(self, policy: &HoldPolicy, held: u64) -> u64 {
        match self.used(&policy.weights) {
            Some(used) => used,
            None if self.ended_in(policy) => 0,
            None => held,
        }
    }

    /// The end of the call, such as `503 UF`.
    pub fn end(self) -> Option<&'call [u8]> {
        self.value(b"end")
    }

    /// Whether the end of the call has a flag, a code, or a class of codes after which nothing was used.
    pub fn ended_in(self, policy: &HoldPolicy) -> bool {
        let end = self.end().unwrap_or_default();
        let mut words = end.split(|byte| matches!(byte, b' ' | b','));
        words.any(|word| policy.unused_ends().any(|end| is_end(word, end.as_bytes())))
    }

    /// The value of a parameter; none if empty.
    fn value(self, name: &[u8]) -> Option<&'call [u8]> {
        let named = self.0.iter().find(|entry| entry.key.strip_prefix(PREFIX) == Some(name))?;
        Some(&*named.value).filter(|value| !value.is_empty())
    }

    /// The plain number, or the sum of the kinds by their weights. `None` without a valid number: a sum below 0 states more of a
    /// part than of its whole.
    fn weighed(self, name: &[u8], weights: &[(Box<str>, i64)]) -> Option<u64> {
        if weights.is_empty() {
            return number(self.value(name)?);
        }
        let mut sum = None;
        for entry in self.0 {
            let Some(kind) = entry.key.strip_prefix(PREFIX).and_then(|key| key.strip_prefix(name))
            else {
                continue;
            };
            let known =
                weights.iter().find(|(known, _)| kind.strip_prefix(b".") == Some(known.as_bytes()));
            if let (Some((_, weight)), Some(number)) = (known, number(&entry.value)) {
                let hits = i128::from(number) * i128::from(*weight);
                sum = Some(hits.saturating_add(sum.unwrap_or(0)));
            }
        }
        u64::try_from(sum?.min(COUNT_MAX.into())).ok()
    }
}

/// Whether this is the name of a number, or of one of its kinds, such as `used.input`.
fn is_kind_of(name: &[u8], number: &[u8]) -> bool {
    name.strip_prefix(number).is_some_and(|kind| kind.is_empty() || kind.starts_with(b"."))
}

fn is_end(word: &[u8], end: &[u8]) -> bool {
    match end {
        [class, b'x', b'x'] => matches!(word, [first, _, _] if first == class),
        end => !word.is_empty() && word == end,
    }
}

/// A whole number, perhaps with a fraction, which is rounded up: Envoy writes `12.000000`. More than [`COUNT_MAX`] counts
/// as that.
fn number(text: &[u8]) -> Option<u64> {
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (text.get(..point)?, text.get(point + 1..)?),
        None => (text, &b"0"[..]),
    };
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    if text.len() > NUMBER_BYTES_MAX || !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    let digit = |byte: &u8| u64::from(byte - b'0');
    let whole =
        whole.iter().fold(0_u64, |sum, byte| sum.saturating_mul(10).saturating_add(digit(byte)));
    let rounded = whole.saturating_add(u64::from(fraction.iter().any(|byte| *byte != b'0')));
    Some(rounded.min(COUNT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<Entry> {
        let entry = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap();
            Entry { key: key.to_owned().into(), value: value.to_owned().into() }
        };
        text.split(' ').map(entry).collect()
    }

    #[test]
    fn a_number_is_digits_and_anything_else_is_none() {
        for (text, expected) in [
            ("0", Some(0)),
            ("42", Some(42)),
            ("0.500000", Some(1)),
            ("1000000000000.000000", Some(1_000_000_000_000)),
            ("9007199254740992", Some(COUNT_MAX)),
            ("99999999999999999999999999999999999999", Some(COUNT_MAX)),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text}");
        }
        for bad in [
            "", "none", "-1", "+1", "1e3", "0x10", "nan", "inf", "1.", ".5", "1.2.3", " 1", "1 ",
            "١",
        ] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(number(&[b'1'; 40]), Some(COUNT_MAX));
        assert_eq!(number(&[b'1'; 41]), None);
    }

    #[test]
    fn a_parameter_is_harmless_if_its_value_is_a_number_or_the_end_of_a_call() {
        for (pair, is_harmless, is_of_commit) in [
            ("hold.used=5", true, true),
            ("hold.used.input=5.5", true, true),
            ("hold.used=alice", false, true),
            ("hold.usedx=5", false, false),
            ("hold.estimate=5", true, false),
            ("hold.estimate.input=5", true, false),
            ("hold.end=503", true, true),
            ("hold.end=503,UF", true, true),
            ("hold.end=503,UPE,URX,-", true, true),
            ("hold.end=503,UFABCD", false, true),
            ("hold.end=503,uf", false, true),
            ("hold.end=5030", false, true),
            ("hold.end=50a", false, true),
            ("hold.end=alice", false, true),
            ("hold.id=5", false, false),
            ("hold.commit=5", false, true),
            ("used=5", false, false),
        ] {
            let entry = &entries(pair)[0];
            assert_eq!(Parameters::is_harmless(entry), is_harmless, "{pair}");
            assert_eq!(Parameters::is_of_commit(entry), is_of_commit, "{pair}");
            let is_parameter = pair.starts_with("hold.");
            assert_eq!(Parameters::is_parameter(entry), is_parameter, "{pair}");
            assert_eq!(Parameters::is_parameter_key(pair), is_parameter, "{pair}");
        }
    }

    #[test]
    fn a_commit_stands_for_its_number_or_for_nothing_or_for_all_that_was_held() {
        for (text, commit, id, used) in [
            ("hold.commit=token hold.used=3", Some("token"), None, 3),
            ("hold.id=job hold.used=9", None, Some("job"), 9),
            ("hold.id=job hold.end=UF", None, Some("job"), 0),
            ("hold.id=job hold.end=UF hold.used=2", None, Some("job"), 2),
            ("hold.id= hold.end=200", None, None, 4),
            ("hold.used=many", None, None, 4),
        ] {
            let entries = entries(text);
            let parameters = Parameters::of(&entries).unwrap();
            assert_eq!(parameters.commit(), commit.map(str::as_bytes), "{text}");
            assert_eq!(parameters.id(), id.map(str::as_bytes), "{text}");
            assert_eq!(parameters.used_of(&HoldPolicy::new(1000), 4), used, "{text}");
        }
    }

    #[test]
    fn kinds_are_weighed_and_a_limit_without_weights_takes_the_plain_number() {
        let usage = entries("hold.used=99 hold.used.input=10 hold.used.output=2 hold.used.other=5");
        let usage = Parameters::of(&usage).unwrap();
        let weights = [("input".into(), 250), ("output".into(), 1000)];
        assert_eq!(usage.used(&weights), Some(4500));
        assert_eq!(usage.used(&[]), Some(99));
        assert_eq!(usage.estimate(&weights), None);
        assert_eq!(usage.used(&[("cached".into(), 1)]), None);
        let released = entries("hold.used=0 hold.used.other=5");
        assert_eq!(Parameters::of(&released).unwrap().used(&weights), Some(0));
    }

    #[test]
    fn a_kind_that_another_includes_changes_what_its_part_costs() {
        let usage = entries("hold.used.input=1000 hold.used.cached=900");
        let usage = Parameters::of(&usage).unwrap();
        assert_eq!(usage.used(&[("input".into(), 250), ("cached".into(), 25 - 250)]), Some(47_500));
        // A caller that states more of the part than of the whole states no number.
        assert_eq!(usage.used(&[("input".into(), 1), ("cached".into(), -9)]), None);
    }

    #[test]
    fn an_end_is_recognized_by_its_flags_and_by_its_code() {
        let ended = |end: &str, ends: &[&str]| {
            let entry = Entry { key: "hold.end".into(), value: end.to_owned().into() };
            let unused_on = Some(ends.iter().map(|end| (*end).into()).collect());
            let policy = HoldPolicy { unused_on, ..HoldPolicy::new(1000) };
            Parameters::of(&[entry]).unwrap().ended_in(&policy)
        };
        assert!(ended("503 UF", &["UF"]));
        assert!(ended("503 UF,URX", &["URX"]));
        assert!(ended("503 -", &["5xx"]));
        assert!(ended("429 RL", &["429"]));
        assert!(!ended("200 -", &["UF", "5xx"]));
        assert!(!ended("", &["UF", "5xx"]));
        assert!(!ended("0 DC", &["UF", "5xx"]));
    }
}
