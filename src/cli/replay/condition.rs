//! `--fail-if`.

use std::{fmt, str::FromStr};

use super::report::Changes;
use crate::engine::algorithm::account::real;

/// That more than a part of all calls, or more than a number of calls, has another verdict.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    text: String,
    verdict: NewVerdict,
    most: f64,
    is_percent: bool,
}

#[derive(Debug, Clone, Copy)]
enum NewVerdict {
    Denied,
    Admitted,
}

impl FromStr for Condition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ALLOWED: &str = "must be `denied` or `admitted`, `>`, and a number of calls or of percent, such as 'denied > 0.1 %'";
        let (verdict, most) = text.split_once('>').ok_or(ALLOWED)?;
        let verdict = match verdict.trim() {
            "denied" => NewVerdict::Denied,
            "admitted" => NewVerdict::Admitted,
            _ => return Err(ALLOWED),
        };
        let most = most.trim();
        let (number, is_percent) = match most.strip_suffix('%') {
            Some(number) => (number.trim_end(), true),
            None => (most, false),
        };
        let most: f64 = number.parse().map_err(|_| ALLOWED)?;
        if !most.is_finite() || most < 0.0 {
            return Err(ALLOWED);
        }
        Ok(Self { text: text.to_owned(), verdict, most, is_percent })
    }
}

impl Condition {
    pub(super) fn is_met(&self, changes: &Changes) -> bool {
        let calls = match self.verdict {
            NewVerdict::Denied => changes.newly_denied,
            NewVerdict::Admitted => changes.newly_admitted,
        };
        let number = if self.is_percent { changes.percent(calls) } else { real(calls) };
        number > self.most
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--fail-if: {} is so", self.text)
    }
}
