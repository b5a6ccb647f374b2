//! What is allowed, and hardly meant: it becomes a warning.

use crate::{
    engine::pattern::Pattern,
    rules::{
        schema::{Descriptor, Placed},
        yaml::Place,
    },
};

/// Looks at the descriptors of one level, each against those beside it.
pub(super) fn level(siblings: &[Placed<Descriptor>], warn: &mut impl FnMut(Place, String)) {
    for (number, Placed { place, value: it }) in siblings.iter().enumerate() {
        let same_key = |other: &&Placed<Descriptor>| other.value.key == it.key;
        let earlier = siblings.iter().take(number).filter(same_key);
        let is_pattern = it.value.as_deref().is_some_and(|value| value.contains('*'));
        if let Some(first) = earlier.clone().find(|other| is_pattern && covers(&other.value, it)) {
            let pattern = first.value.value.as_deref().unwrap_or_default();
            let message = format!(
                "never matches: the pattern `{pattern}` in line {} takes all of its values",
                first.place.0
            );
            warn(*place, message);
        }
        let mut others =
            siblings.iter().filter(|other| !std::ptr::eq(&other.value, it)).filter(same_key);
        let is_idle = it.limits.is_empty() && it.descriptors.is_empty();
        if is_idle && !others.any(|other| other.value.value.is_none() || covers(&other.value, it)) {
            warn(*place, "never limits: nothing else here matches its values".to_owned());
        }
        limits(it, warn);
    }
}

/// Whether all values that `it` matches match `other` as well.
fn covers(other: &Descriptor, it: &Descriptor) -> bool {
    let pattern = other.value.as_deref().and_then(Pattern::new);
    // The other's literals hold no star, so those of this one can only meet its stars.
    let value = it.value.as_deref().unwrap_or("*");
    pattern.is_some_and(|pattern| pattern.matches(value.as_bytes()))
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
