//! Commits of holds by token on fixed windows, as `lua/commit.lua` makes them: many in one run.

use redis::Cmd;
use tollkeeper_engine::{
    ledger::{Charge, CommitOutcome, Few, Fit, HoldAction, Tally, Verdict},
    request::Hits,
    rule::Algorithm,
    time::{Span, Timestamp},
};

use super::{KeyDeclaration, ScriptVerdict, fixed::KEYS_MAX, timestamp};

#[derive(Debug)]
pub struct CommitRun {
    counters: Vec<String>,
    /// Of the holds, in the order of the counters.
    records: Vec<String>,
    /// Of the times at which the counters were reset.
    resets: Vec<String>,
    /// Two for each charge.
    arguments: Vec<String>,
    /// The time in which all windows that are charged are the present ones.
    present: Span,
    /// The ends of the windows of each call.
    calls: Vec<Few<Timestamp>>,
}

impl Default for CommitRun {
    fn default() -> Self {
        let [start, end] = [0, Hits::MAX].map(Timestamp::from_millis);
        let (counters, records, resets) = (Vec::new(), Vec::new(), Vec::new());
        let (arguments, calls) = (Vec::new(), Vec::new());
        Self { counters, records, resets, arguments, present: Span { start, end }, calls }
    }
}

/// Whether this script can decide this call: only commits by token on fixed windows.
pub fn accepts(charges: &[Charge]) -> bool {
    // A charge has two keys.
    (1..=KEYS_MAX / 2).contains(&charges.len())
        && charges.iter().all(|charge| {
            matches!(charge.hold, Some(HoldAction::Commit { .. }))
                && charge.counter.limit.algorithm == Algorithm::FixedWindow
        })
}

impl CommitRun {
    /// Adds a call that [`accepts`] accepts, in the windows that hold `assumed_now`, on keys that begin with `prefix`.
    pub fn add(&mut self, charges: &[Charge], assumed_now: Timestamp, prefix: &str) {
        let mut ends = Few::new();
        for charge in charges {
            let Some(HoldAction::Commit { id, held, used, deadline, .. }) = charge.hold else {
                continue;
            };
            let span = charge.terms(assumed_now).span;
            let (sign, change) = if used < held { ("-", held - used) } else { ("", used - held) };
            if used >= held {
                let Span { start, end } = &mut self.present;
                (*start, *end) = (span.start.max(*start), span.end.min(*end));
            }
            self.counters.push(prefix.to_owned() + &charge.counter.key(span.start));
            self.records.push(prefix.to_owned() + &charge.counter.hold_record_key(id));
            self.resets.push(prefix.to_owned() + &charge.counter.reset_key());
            self.arguments.extend([format!("{sign}{change}"), deadline.as_millis().to_string()]);
            ends.push(span.end);
        }
        self.calls.push(ends);
    }

    /// The command `verb` that runs the script: EVALSHA and its hash, or EVAL and its text.
    pub fn command(&self, verb: &str, script: &str, keys: KeyDeclaration) -> Cmd {
        let mut command = redis::cmd(verb);
        keys.write(
            command.arg(script),
            &[&self.counters, &self.records, &self.resets],
            |command| {
                let Span { start, end } = self.present;
                command.arg(start.as_millis()).arg(end.as_millis());
                let charges =
                    self.calls.iter().map(|call| u8::try_from(call.len()).unwrap_or(u8::MAX));
                command.arg(charges.collect::<Vec<u8>>()).arg(&self.arguments);
            },
        );
        command
    }

    /// The verdict on each call, in the order in which they were added, and Redis's time; `None` if it has another form.
    /// What is left to the other script is [`Corrupt`](ScriptVerdict::Corrupt).
    pub fn read(&self, reply: &[i64]) -> Option<(Timestamp, Vec<ScriptVerdict>)> {
        let [seconds, micros, answers @ ..] = reply else { return None };
        let now = timestamp(*seconds, *micros)?;
        let verdict = |(ends, answer): (&Few<Timestamp>, &i64)| match answer {
            0 => Some(ScriptVerdict::Corrupt(Vec::new())),
            1 => {
                let fit = Fit::Commit(CommitOutcome::Applied);
                let tallies = ends.iter().map(|end| Tally::new(fit, now.until(*end)));
                let (tallies, at) = (tallies.collect(), Few::from_iter([now]));
                Some(ScriptVerdict::Decided(Verdict { tallies, at, ..Verdict::default() }))
            }
            _ => None,
        };
        let verdicts: Option<Vec<_>> = self.calls.iter().zip(answers).map(verdict).collect();
        verdicts.filter(|_| answers.len() == self.calls.len()).map(|verdicts| (now, verdicts))
    }
}
