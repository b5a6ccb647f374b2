//! Patterns: text in which each `*` matches any number of bytes.

use memchr::memmem::Finder;

/// A pattern, split at its stars.
#[derive(Debug, Clone)]
pub struct Pattern {
    /// The start of a matching value.
    head: Box<[u8]>,
    /// What follows, in this order, with any bytes between. The search takes time linear in the value
    /// alone, since values come from callers.
    middle: Vec<Finder<'static>>,
    /// The end of a matching value.
    tail: Box<[u8]>,
}

impl Pattern {
    /// Parses a pattern; `None` if `text` has no star.
    pub fn new(text: &str) -> Option<Self> {
        let mut parts = text.split('*').map(str::as_bytes);
        let (head, tail) = (parts.next()?.into(), parts.next_back()?.into());
        let middle =
            parts.filter(|part| !part.is_empty()).map(|part| Finder::new(part).into_owned());
        let middle = middle.collect();
        Some(Self { head, middle, tail })
    }

    /// The pattern of a value; `None` if it is not text with a star.
    pub fn of(value: &[u8]) -> Option<Self> {
        std::str::from_utf8(value).ok().and_then(Self::new)
    }

    /// The start and the end of each value that matches.
    pub fn ends(&self) -> (&[u8], &[u8]) {
        (&self.head, &self.tail)
    }

    /// What each value that matches has between its start and its end, in this order.
    pub fn inner_parts(&self) -> impl Iterator<Item = &[u8]> {
        self.middle.iter().map(Finder::needle)
    }

    /// Whether `value` matches.
    pub fn matches(&self, value: &[u8]) -> bool {
        let Some(rest) = value.strip_prefix(&*self.head) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.tail) else { return false };
        for part in &self.middle {
            // The leftmost match of each part leaves the most for the parts after it.
            let Some(start) = part.find(rest) else { return false };
            let Some(after) = rest.get(start + part.needle().len()..) else { return false };
            rest = after;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(pattern: &str, matches: &[&str], others: &[&str]) {
        let pattern = Pattern::new(pattern).expect("a star");
        for value in matches {
            assert!(pattern.matches(value.as_bytes()), "{pattern:?} and `{value}`");
        }
        for value in others {
            assert!(!pattern.matches(value.as_bytes()), "{pattern:?} and `{value}`");
        }
    }

    #[test]
    fn a_star_matches_any_number_of_bytes() {
        check("*", &["", "a", "*"], &[]);
        check("foo*", &["foo", "foo1", "foobar"], &["fo", "xfoo"]);
        check("*.pdf", &[".pdf", "a.pdf", "a.pdf.pdf"], &["a.pd", "a.pdfx"]);
        check("bar*b", &["barb", "barab"], &["bar", "bara", "xbarb"]);
        check("foo*bar*baz", &["foobarbaz", "foo1bar2baz"], &["foobaz", "foobazbar", "foobarba"]);
        check("a*b*b", &["abb", "axbxb"], &["ab"]);
        check("a**b", &["ab", "axb"], &["a", "b"]);
        check("aba*aba", &["abaaba", "abaxaba"], &["aba", "ababa"]);
        assert!(Pattern::new("plain").is_none());
    }

    #[test]
    fn what_all_matching_values_have_is_between_the_stars() {
        for (text, head, inner, tail) in [
            ("*", "", &[][..], ""),
            ("a**b", "a", &[], "b"),
            ("foo*bar*q*baz", "foo", &["bar", "q"], "baz"),
        ] {
            let pattern = Pattern::new(text).unwrap();
            assert_eq!(pattern.ends(), (head.as_bytes(), tail.as_bytes()), "{text}");
            let inner = inner.iter().map(|part| part.as_bytes());
            assert!(pattern.inner_parts().eq(inner), "{text}");
        }
    }

    /// A second implementation, which tries every length of every star.
    fn exhaustive(pattern: &[u8], value: &[u8]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some((b'*', rest)) => (0..=value.len()).any(|skip| exhaustive(rest, &value[skip..])),
            Some((byte, rest)) => value.first() == Some(byte) && exhaustive(rest, &value[1..]),
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_what_an_exhaustive_search_matches(text in "[ab*]{0,6}\\*[ab*]{0,4}", value in "[ab]{0,9}") {
            let pattern = Pattern::new(&text).expect("a star");
            let found = exhaustive(text.as_bytes(), value.as_bytes());
            prop_assert_eq!(pattern.matches(value.as_bytes()), found);
        }
    }
}
