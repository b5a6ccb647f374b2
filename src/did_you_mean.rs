//! "Did you mean": the name nearest to one that is unknown.

/// Longer names are not compared: they come from requests as well, and comparing takes time.
const BYTES_MAX: usize = 256;

/// "; did you mean `x`?", for the end of a message; empty where no known name is near.
pub(crate) fn hint<'names>(name: &str, known: impl IntoIterator<Item = &'names str>) -> String {
    match nearest(name, known) {
        Some(nearest) => format!("; did you mean `{nearest}`?"),
        None => String::new(),
    }
}

/// A third of the letters may be wrong, three at most.
fn nearest<'names>(
    name: &str,
    known: impl IntoIterator<Item = &'names str>,
) -> Option<&'names str> {
    if name.is_empty() || name.len() > BYTES_MAX {
        return None;
    }
    let wrong_max = (name.chars().count() / 3).clamp(1, 3);
    let name = name.to_lowercase();
    let mut nearest = None;
    for candidate in known {
        // Each missing byte is at least a quarter of a wrong letter.
        if candidate.len().abs_diff(name.len()) > 4 * wrong_max {
            continue;
        }
        let wrong = strsim::damerau_levenshtein(&name, &candidate.to_lowercase());
        // Of names that are equally near, the same one each time, whatever the order.
        if wrong <= wrong_max && nearest.is_none_or(|nearest| (wrong, candidate) < nearest) {
            nearest = Some((wrong, candidate));
        }
    }
    nearest.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: &str) {
        let known = ["example", "value", "minute", "month", "é", "Europe/Berlin"];
        assert_eq!(hint(name, known), expected, "for {name}");
    }

    #[test]
    fn the_nearest_name_is_suggested_whatever_its_case() {
        check("exmaple", "; did you mean `example`?");
        check("minutes", "; did you mean `minute`?");
        check("mont", "; did you mean `month`?");
        check("europe/berln", "; did you mean `Europe/Berlin`?");
        check("e", "; did you mean `é`?");
    }

    #[test]
    fn of_names_that_are_equally_near_the_same_one_is_suggested_whatever_their_order() {
        for known in [["bc", "ab"], ["ab", "bc"]] {
            assert_eq!(hint("ac", known), "; did you mean `ab`?");
        }
    }

    #[test]
    fn what_is_far_from_every_name_gets_no_suggestion() {
        check("fortnight", "");
        check("xyz", "");
        check("", "");
        check(&"e".repeat(257), "");
    }
}
