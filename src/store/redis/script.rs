//! The scripts: how calls are written into them, and what their replies say.

pub mod fixed;

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value, from_redis_value};

use super::connection::Connection;
use crate::{
    engine::{
        key::{Counter, short_name},
        ledger::{Charge, Remembered, Standing, Tally, Verdict},
        request::Hits,
        rule::{Algorithm, Mode, WhenDenied},
        time::Timestamp,
    },
    store::Clear,
    telemetry::StoreMetrics,
};

/// Where the script reads the time: Redis's own clock, once. A test may put another line here.
pub const CLOCK: &str = include_str!("lua/clock.lua");

/// What the scripts for any algorithm share, in this order.
const SHARED: [&str; 7] = [
    include_str!("lua/value.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/first_hit_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/token_bucket.lua"),
    include_str!("lua/charge.lua"),
];
const LEDGER: &str = include_str!("lua/ledger.lua");
const COUNTER: &str = include_str!("lua/counter.lua");

/// The text of the script that decides calls, on this clock.
pub fn ledger(clock: &str) -> String {
    clock.to_owned() + &SHARED.concat() + LEDGER
}

/// The text of the script that decides calls on fixed windows, on this clock.
pub fn fixed(clock: &str) -> String {
    clock.to_owned() + include_str!("lua/fixed.lua")
}

/// The text of the script that looks at one counter, on this clock.
pub fn counter(clock: &str) -> String {
    clock.to_owned() + &SHARED.concat() + COUNTER
}

/// The scripts.
#[derive(Debug)]
pub struct Scripts {
    pub(super) ledger: Script,
    pub(super) fixed: Script,
    counter: Script,
    pub(super) key_prefix: String,
}

/// A script and its hash.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: String,
    pub(super) hash: String,
}

/// What the script said of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was decided; a tally for each charge.
    Judged(Vec<Tally>),
    /// A charge's window is not the present one; nothing was charged.
    Stale,
    /// The counters of these charges hold no count; nothing was charged.
    Unreadable(Vec<usize>),
}

impl Scripts {
    /// The scripts, on keys that begin with `key_prefix`.
    pub fn new(key_prefix: String) -> Self {
        let [ledger, fixed, counter] =
            [ledger, fixed, counter].map(|script| Script::new(script(CLOCK)));
        Self { ledger, fixed, counter, key_prefix }
    }

    /// Looks at one counter, in the window of `stamp`.
    pub(super) async fn look(
        &self,
        connection: &mut Connection,
        counter: &Counter,
        clear: Clear,
        stamp: Timestamp,
        metrics: &StoreMetrics,
    ) -> RedisResult<(Timestamp, Looked)> {
        let look = Charge { counter: counter.clone(), hits: Hits::Look, caller: None };
        let mut call = Calls::default();
        call.add(&[look], stamp, &self.key_prefix);
        call.arguments.push(match clear {
            Clear::No => "show".to_owned(),
            Clear::Yes => "clear".to_owned(),
        });
        let Script { source, hash } = &self.counter;
        let command = call.command("EVALSHA", hash);
        let mut reply = metrics.round_trip("EVALSHA", connection.query(&command)).await;
        if reply.as_ref().is_err_and(is_unknown_script) {
            let command = call.command("EVAL", source);
            reply = metrics.round_trip("EVAL", connection.query(&command)).await;
        }
        read_look(reply?).ok_or_else(another_form)
    }
}

impl Script {
    fn new(source: String) -> Self {
        Self { hash: redis::Script::new(&source).get_hash().to_owned(), source }
    }
}

/// A server that was restarted or flushed has forgotten the script, and has run nothing.
pub(super) fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

pub(super) fn another_form() -> redis::RedisError {
    (ErrorKind::UnexpectedReturnType, "the script's reply has another form").into()
}

/// What came of a look at one counter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// It stands so.
    Standing(Standing),
    /// Its window is not the present one.
    Stale,
    /// It holds no count.
    Unreadable,
}

/// Calls that one script decides in one run.
pub trait Question: Sync {
    /// Whether there is none.
    fn is_empty(&self) -> bool;

    /// Writes the command `verb` that runs the script: EVALSHA and its hash, or EVAL and its text.
    fn write(&self, command: &mut Vec<u8>, verb: &str, script: &str);

    /// What the reply says of each call, in the order in which they were added, and Redis's time;
    /// `None` if it has another form.
    fn read(&self, reply: &[i64]) -> Option<(Timestamp, Vec<Answer>)>;
}

/// Calls, as `lua/ledger.lua` takes them.
#[derive(Debug, Default)]
pub struct Calls {
    keys: Vec<String>,
    arguments: Vec<String>,
    /// How many charges each has.
    charges: Vec<usize>,
}

impl Calls {
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

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }
}

impl Question for Calls {
    fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    fn write(&self, command: &mut Vec<u8>, verb: &str, script: &str) {
        self.command(verb, script).write_packed_command(command);
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

fn timestamp(seconds: i64, micros: i64) -> Option<Timestamp> {
    let millis = seconds.checked_mul(1000)?.checked_add(micros / 1000)?;
    Some(Timestamp::from_millis(u64::try_from(millis).ok()?))
}

fn read_look(reply: Vec<Value>) -> Option<(Timestamp, Looked)> {
    let mut numbers = Vec::new();
    let mut remembered = Vec::new();
    for value in reply {
        match value {
            Value::Int(number) => numbers.push(number),
            // What somebody else wrote between ours is left out.
            other => {
                let entry = from_redis_value::<String>(other).ok();
                remembered.extend(entry.and_then(|entry| one_remembered(&entry)));
            }
        }
    }
    let [seconds, micros, outcome, used, remaining, reset] = numbers[..] else { return None };
    let looked = match outcome {
        -1 => Looked::Stale,
        -2 => Looked::Unreadable,
        _ => Looked::Standing(Standing {
            used: u64::try_from(used).ok()?,
            remaining: u32::try_from(remaining).ok()?,
            reset: Duration::from_millis(u64::try_from(reset).ok()?),
            remembered,
        }),
    };
    Some((timestamp(seconds, micros)?, looked))
}

/// `at sum hits` and perhaps the caller, as `lua/sliding_log.lua` writes it.
fn one_remembered(entry: &str) -> Option<Remembered> {
    let mut words = entry.split(' ');
    let at = Timestamp::from_millis(words.next()?.parse().ok()?);
    let hits = words.nth(1)?.parse().ok()?;
    Some(Remembered { at, hits, caller: words.next().map(Into::into) })
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
    fn calls(charges: usize) -> Calls {
        Calls { charges: vec![charges], ..Calls::default() }
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
            assert_eq!(calls(1).read(reply), None, "for {reply:?}");
        }
    }

    #[test]
    fn a_reply_tells_redis_time_in_milliseconds() {
        let (now, answer) =
            calls(2).read(&[1_795_215_600, 123_999, 0, -1, 1500, 7, 20]).expect("a good reply");
        let tally = |verdict, ms| Tally { verdict, reset: Duration::from_millis(ms) };
        assert_eq!(now, Timestamp::from_millis(1_795_215_600_123));
        let fits = Verdict::Fits { remaining: 7 };
        let judged = Answer::Judged(vec![tally(Verdict::Over, 1500), tally(fits, 20)]);
        assert_eq!(answer, [judged]);
    }
}
