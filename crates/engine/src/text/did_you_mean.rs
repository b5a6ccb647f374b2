//! "Did you mean": the known name nearest to an unknown one.

/// Longer names are not compared: they may come from requests, and comparing takes time.
const BYTES_MAX: usize = 256;

/// "; did you mean `x`?", for the end of a message; empty if no known name is near.
pub fn hint<'names>(name: &str, known: impl IntoIterator<Item = &'names str>) -> String {
    match nearest(name, known) {
        Some(nearest) => format!("; did you mean `{nearest}`?"),
        None => String::new(),
    }
}

/// The nearest known name: a third of the letters may be wrong, three at most.
fn nearest<'names>(
    name: &str,
    known: impl IntoIterator<Item = &'names str>,
) -> Option<&'names str> {
    if name.is_empty() || name.len() > BYTES_MAX {
        return None;
    }
    nearest_within((name.chars().count() / 3).clamp(1, 3), name, known)
}

/// The known name that a name of at least 8 bytes misspells, with at most two wrong letters. Fewer than [`hint`] allows: most
/// variables of an environment belong to other programs.
pub fn misspelt<'names>(
    name: &str,
    known: impl IntoIterator<Item = &'names str>,
) -> Option<&'names str> {
    if !(8..=BYTES_MAX).contains(&name.len()) {
        return None;
    }
    nearest_within(2, name, known)
}

fn nearest_within<'names>(
    wrong_max: usize,
    name: &str,
    known: impl IntoIterator<Item = &'names str>,
) -> Option<&'names str> {
    let name = name.to_lowercase();
    let mut nearest = None;
    for candidate in known {
        // A letter has at most four bytes.
        if candidate.len().abs_diff(name.len()) > 4 * wrong_max {
            continue;
        }
        let wrong = strsim::damerau_levenshtein(&name, &candidate.to_lowercase());
        // Of equally near names, always the same one, whatever their order.
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
    fn of_equally_near_names_the_same_one_is_suggested_whatever_their_order() {
        for known in [["bc", "ab"], ["ab", "bc"]] {
            assert_eq!(hint("ac", known), "; did you mean `ab`?");
        }
    }

    #[test]
    fn a_third_of_the_letters_may_be_wrong_three_at_most_and_of_a_variable_two() {
        let (long, longer) = ("e".repeat(256), "e".repeat(257));
        for (name, known, is_hint, is_misspelt) in [
            ("ab", "abc", true, false),
            ("abcde", "abcxy", false, false),
            ("abcdef", "abcdxy", true, false),
            ("abcdefg", "abcdefh", true, false),
            ("abcdefgh", "abcdefxy", true, true),
            ("abcdefgh", "abcdexyz", false, false),
            ("abcdefghi", "abcdefxyz", true, false),
            ("abcdefghijkl", "abcdefghwxyz", false, false),
            // A letter may have four bytes.
            ("abc", "abc𝒳", true, false),
            ("abcdefghi", "abcdefghi𝒳𝒴", true, true),
            ("abcdefghi", "abcdefghi𝒳𝒴𝒵", true, false),
            (&long, &longer, true, true),
            (&longer, &long, false, false),
        ] {
            assert_eq!(hint(name, [known]).is_empty(), !is_hint, "{name} {known}");
            assert_eq!(misspelt(name, [known]), is_misspelt.then_some(known), "{name} {known}");
        }
    }

    #[test]
    fn a_name_far_from_every_known_name_gets_no_suggestion() {
        check("fortnight", "");
        check("xyz", "");
        check("", "");
        check(&"e".repeat(257), "");
    }
}
