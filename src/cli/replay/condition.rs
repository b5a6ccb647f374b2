//! `--fail-if`.

use std::str::FromStr;

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
    /// That it is met, and by how much; `None` if it is not.
    pub(super) fn problem(&self, changes: &Changes) -> Option<String> {
        let calls = match self.verdict {
            NewVerdict::Denied => changes.newly_denied,
            NewVerdict::Admitted => changes.newly_admitted,
        };
        let percent = changes.percent(calls);
        let number = if self.is_percent { percent } else { real(calls) };
        let is_met = number > self.most;
        is_met.then(|| format!("--fail-if: {} is met: {calls} calls, {percent:.3} %", self.text))
    }
}
