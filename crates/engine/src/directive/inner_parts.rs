//! Which of many patterns a value may match, by one search for the inner parts of all: values come from callers, and may be
//! long.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use hashbrown::HashMap;

use crate::pattern::Pattern;

/// The inner parts of patterns. One that ends with another is searched as that one, so that at most one ends at each byte.
#[derive(Debug)]
pub(super) struct InnerParts {
    search: AhoCorasick,
    /// What is searched of each pattern, by its number, in the order of its parts.
    of_each: Vec<Vec<usize>>,
}

/// For each part, the end of its first place in a value, and the start of its last one.
pub(super) type Places = Vec<Option<(usize, usize)>>;

impl InnerParts {
    /// The parts of these patterns, of which one may be absent; `None` if there are no parts.
    pub(super) fn new<'all>(patterns: impl Iterator<Item = Option<&'all Pattern>>) -> Option<Self> {
        let patterns: Vec<Vec<&[u8]>> = patterns
            .map(|pattern| pattern.into_iter().flat_map(Pattern::inner_parts).collect())
            .collect();
        let mut all: Vec<&[u8]> = patterns.iter().flatten().copied().collect();
        if all.is_empty() {
            return None;
        }
        all.sort_unstable_by_key(|part| (part.len(), *part));
        all.dedup();
        let (mut numbers, mut parts) = (HashMap::new(), Vec::<&[u8]>::new());
        for part in all {
            let end = parts.iter().position(|end| part.ends_with(end));
            numbers.insert(part, end.unwrap_or(parts.len()));
            parts.extend(end.is_none().then_some(part));
        }
        let numbers = |parts: &Vec<&[u8]>| {
            parts.iter().filter_map(|part| numbers.get(part)).copied().collect()
        };
        let of_each = patterns.iter().map(numbers).collect();
        // Of the other kinds, one is slower, and one may take 90 MB.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let search = AhoCorasick::builder().kind(kind).build(&parts).ok()?;
        Some(Self { search, of_each })
    }

    /// Where the parts are in a value.
    pub(super) fn places(&self, value: &[u8]) -> Places {
        let mut places: Places = vec![None; self.search.patterns_len()];
        for found in self.search.find_overlapping_iter(value) {
            if let Some(place) = places.get_mut(found.pattern().as_usize()) {
                let (first_end, _) = place.unwrap_or((found.end(), 0));
                *place = Some((first_end, found.start()));
            }
        }
        places
    }

    /// Whether the pattern with this index may match a value with these places: each part is there, and may follow the one
    /// before it.
    pub(super) fn may_match(&self, pattern: usize, places: &Places) -> bool {
        let mut end = 0;
        self.of_each.get(pattern).into_iter().flatten().all(|part| {
            let Some(Some((first_end, last_start))) = places.get(*part) else { return false };
            let follows = *last_start >= end;
            end = *first_end;
            follows
        })
    }
}
