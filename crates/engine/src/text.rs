//! Text for people: escaping what comes from outside, near names, and lengths of time.

pub mod did_you_mean;
pub mod duration;
pub mod named;
pub mod printable;

/// A number of things: `1 rule`, `2 rules`.
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_counted_in_the_singular() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "rule")), ["0 rules", "1 rule", "2 rules"]);
    }
}
