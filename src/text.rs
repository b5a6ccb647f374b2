//! Text for people: escaping what comes from outside, near names, and lengths of time.

pub(crate) mod did_you_mean;
pub(crate) mod duration;
pub(crate) mod members;
pub(crate) mod printable;

/// A number of things: `1 rule`, `2 rules`.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
