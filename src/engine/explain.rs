//! Why a descriptor meets the rule that it meets: the same walk as a decision's, told step by step.

use crate::engine::{
    request::Entry,
    rule_set::{Domain, Found, Taken},
};

/// What became of one descriptor.
#[derive(Debug)]
pub struct Explanation<'rules> {
    /// One for each entry that was looked at.
    pub steps: Vec<Step>,
    /// What it met.
    pub found: Found<'rules>,
}

/// What became of one entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// What was taken, in words.
    pub taken: String,
    /// What stood before it and did not match, in words.
    pub passed_over: Vec<String>,
}

/// Explains what `entries` meet in `domain`.
pub fn explain<'rules>(domain: &'rules Domain, entries: &[Entry]) -> Explanation<'rules> {
    let mut steps = Vec::new();
    let found = domain.walk(entries, |_, written, taken| {
        let values = match (taken, written.values) {
            (Taken::Value, _) | (_, 0) => None,
            (_, 1) => Some("one other value".to_owned()),
            (_, several) => Some(format!("{several} other values")),
        };
        let before = match taken {
            Taken::Pattern(place) => place,
            Taken::Value => 0,
            Taken::Key | Taken::Nothing => usize::MAX,
        };
        let patterns = written.patterns().take(before).map(|it| format!("the pattern `{it}`"));
        let taken = match taken {
            Taken::Value => "its value is written".to_owned(),
            Taken::Pattern(place) => {
                format!(
                    "matches the pattern `{}`",
                    written.patterns().nth(place).unwrap_or_default()
                )
            }
            Taken::Key => "matches the key alone".to_owned(),
            Taken::Nothing if written.is_empty() => "no such key here".to_owned(),
            Taken::Nothing => "matches nothing of this key".to_owned(),
        };
        steps.push(Step { taken, passed_over: values.into_iter().chain(patterns).collect() });
    });
    Explanation { steps, found }
}
