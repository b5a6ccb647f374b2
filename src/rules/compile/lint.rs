//! What is allowed, and hardly meant: it becomes a warning.

use std::collections::{HashMap, HashSet};

use crate::{
    engine::pattern::Pattern,
    rules::{
        schema::{Descriptor, Placed},
        yaml::Place,
    },
};

/// Each descriptor is held against so many patterns of its key: a look at the rules must stay quick.
const PATTERNS_MAX: usize = 1000;

/// A descriptor whose value is a pattern.
type Patterned<'level> = (usize, Pattern, &'level Placed<Descriptor>);

/// Looks at the descriptors of one level, each against those beside it.
pub(super) fn level(siblings: &[Placed<Descriptor>], warn: &mut impl FnMut(Place, String)) {
    let mut patterns: HashMap<&str, Vec<Patterned<'_>>> = HashMap::new();
    let mut defaults: HashSet<&str> = HashSet::new();
    for (number, it) in siblings.iter().enumerate() {
        match it.value.value.as_deref().map(Pattern::new) {
            None => drop(defaults.insert(&it.value.key)),
            Some(None) => {}
            Some(Some(pattern)) => {
                patterns.entry(&it.value.key).or_default().push((number, pattern, it));
            }
        }
    }
    for (number, Placed { place, value: it }) in siblings.iter().enumerate() {
        let value = it.value.as_deref();
        // A pattern's literals hold no star, so those of this value can only meet its stars.
        let covers = |(_, pattern, _): &&Patterned<'_>| {
            value.is_some_and(|value| pattern.matches(value.as_bytes()))
        };
        let of_key = || patterns.get(&*it.key).into_iter().flatten().take(PATTERNS_MAX);
        if value.is_some_and(|value| value.contains('*'))
            && let Some((_, _, first)) = of_key().find(|it| it.0 < number && covers(it))
        {
            let (pattern, line) = (first.value.value.as_deref().unwrap_or_default(), first.place.0);
            let message = format!(
                "never matches: the pattern `{pattern}` in line {line} takes all of its values"
            );
            warn(*place, message);
        }
        let is_idle = it.limits.is_empty() && it.descriptors.is_empty();
        let is_exception = value.is_some()
            && (defaults.contains(&*it.key) || of_key().any(|it| it.0 != number && covers(&it)));
        if is_idle && !is_exception {
            warn(*place, "never limits: nothing else here matches its values".to_owned());
        }
        limits(it, warn);
    }
}

fn limits(it: &Descriptor, warn: &mut impl FnMut(Place, String)) {
    for limit in it.limits.iter().filter(|limit| !limit.value.unlimited) {
        match limit.value.requests_per_unit {
            None => warn(
                limit.place,
                "requests_per_unit: missing, which counts as 0: always over the limit".to_owned(),
            ),
            Some(0) => warn(limit.place, "requests_per_unit: 0 lets nothing pass".to_owned()),
            Some(_) => {}
        }
    }
}
