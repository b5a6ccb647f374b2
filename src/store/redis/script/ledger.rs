//! Calls of any kind, as `lua/ledger.lua` takes them.

use std::time::Duration;

use redis::Cmd;

use super::{Answer, Question, timestamp};
use crate::engine::{
    key::{Counter, short_name},
    ledger::{Charge, Tally, Verdict},
    request::Hits,
    rule::{Algorithm, Mode, WhenDenied},
    time::Timestamp,
};

/// Calls that share one run.
#[derive(Debug, Default)]
pub struct Run {
    keys: Vec<String>,
    pub(super) arguments: Vec<String>,
    /// How many charges each has.
    charges: Vec<usize>,
}

impl Run {
    /// Adds a call in the windows of `stamp`, on keys that begin with `prefix`.
    pub fn add(&mut self, charges: &[Charge], stamp: Timestamp, prefix: &str) {
        self.charges.push(charges.len());
        self.arguments.push(charges.len().to_string());
        for Charge { counter, hits, caller } in charges {
            let limit = &*counter.limit;
            let span = limit.window.at(stamp);
            let place = self.place(prefix, counter, span.start);
            let (start, stop, expiry) = match limit.algorithm.is_aligned() {
                true => (span.start.as_millis(), span.end.as_millis(), counter.expiry(span.end)),
                false => (0, limit.window.millis(), span.end),
            };
            let (kind, hits) = match *hits {
                Hits::Take(hits) => ("take", hits),
                Hits::Look => ("look", 0),
                Hits::GiveBack(hits) => ("give", hits),
            };
            let extra = match limit.algorithm {
                Algorithm::SlidingWindow => {
                    self.place(prefix, counter, span.before().start).to_string()
                }
                Algorithm::TokenBucket { burst } => burst.to_string(),
                _ => caller.as_deref().unwrap_or_default().to_owned(),
            };
            self.arguments.extend([
                short_name(&limit.algorithm).to_owned(),
                place.to_string(),
                start.to_string(),
                stop.to_string(),
                kind.to_owned(),
                hits.to_string(),
                limit.requests_per_unit.to_string(),
                match limit.when_denied {
                    WhenDenied::Free => "free".to_owned(),
                    WhenDenied::Counted => "count".to_owned(),
                },
                match limit.mode {
                    Mode::Enforced => "enforced".to_owned(),
                    Mode::Shadow => "shadow".to_owned(),
                    Mode::Quota => "quota".to_owned(),
                },
                expiry.as_millis().to_string(),
                extra,
            ]);
        }
    }

    /// The place of a counter's key in KEYS, counted from 1 as Lua does.
    fn place(&mut self, prefix: &str, counter: &Counter, start: Timestamp) -> usize {
        let mut key = prefix.to_owned();
        counter.write_key(&mut key, start);
        self.keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        }) + 1
    }
}

impl Question for Run {
    fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }

    fn read(&self, reply: &[i64]) -> Option<(Timestamp, Vec<Answer>)> {
        let [seconds, micros, rest @ ..] = reply else { return None };
        let now = timestamp(*seconds, *micros)?;
        let mut rest = rest;
        let mut answer = |charges: &usize| {
            let verdict = *rest.split_off_first()?;
            let (answers, []) = rest.split_off(..2 * charges)?.as_chunks::<2>() else {
                return None;
            };
            read_call(verdict, answers)
        };
        let answers = self.charges.iter().map(&mut answer).collect::<Option<_>>()?;
        rest.is_empty().then_some((now, answers))
    }
}

fn read_call(verdict: i64, answers: &[[i64; 2]]) -> Option<Answer> {
    Some(match verdict {
        -1 => Answer::Stale,
        -2 => {
            let at_fault = answers.iter().enumerate().filter(|(_, [answer, _])| *answer == -2);
            let at_fault: Vec<usize> = at_fault.map(|(charge, _)| charge).collect();
            Some(Answer::Unreadable(at_fault)).filter(|it| *it != Answer::Unreadable(vec![]))?
        }
        _ => {
            Answer::Judged(answers.iter().map(|answer| one_tally(*answer)).collect::<Option<_>>()?)
        }
    })
}

fn one_tally([answer, reset]: [i64; 2]) -> Option<Tally> {
    let reset = Duration::from_millis(u64::try_from(reset).ok()?);
    let verdict = match answer {
        -1 => Verdict::Over,
        remaining => Verdict::Fits { remaining: u32::try_from(remaining).ok()? },
    };
    Some(Tally { verdict, reset })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One call of so many charges.
    fn run(charges: usize) -> Run {
        Run { charges: vec![charges], ..Run::default() }
    }

    #[test]
    fn a_reply_of_another_form_decides_nothing() {
        for reply in [
            &[][..],
            &[1_795_215_600],
            &[1_795_215_600, 0, 1],
            &[1_795_215_600, 0, 1, 5],
            &[1_795_215_600, 0, 1, 5, 0, 5],
            &[1_795_215_600, 0, 1, 5, 0, 5, 0],
            &[1_795_215_600, 0, 1, -7, 0],
            &[1_795_215_600, 0, 1, 7, -1],
            &[1_795_215_600, 0, 1, i64::MAX, 0],
            &[-5, 0, 1, 5, 0],
            &[i64::MAX, 0, 1, 5, 0],
            &[1_795_215_600, 0, -2, 0, 0],
        ] {
            assert_eq!(run(1).read(reply), None, "for {reply:?}");
        }
    }

    #[test]
    fn a_reply_tells_redis_time_in_milliseconds() {
        let (now, answer) =
            run(2).read(&[1_795_215_600, 123_999, 0, -1, 1500, 7, 20]).expect("a good reply");
        let tally = |verdict, ms| Tally { verdict, reset: Duration::from_millis(ms) };
        assert_eq!(now, Timestamp::from_millis(1_795_215_600_123));
        let fits = Verdict::Fits { remaining: 7 };
        let judged = Answer::Judged(vec![tally(Verdict::Over, 1500), tally(fits, 20)]);
        assert_eq!(answer, [judged]);
    }
}
