//! The fixed-window script: how calls are written into it, and what its reply says.

use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind};

use super::pool::Connection;
use crate::{
    engine::{
        ledger::{Charge, Verdict},
        request::Hits,
        rule::WhenDenied,
        time::Timestamp,
    },
    telemetry::StoreMetrics,
};

const SOURCE: &str = include_str!("lua/fixed_window.lua");

/// The script and its hash.
#[derive(Debug)]
pub(super) struct FixedWindow {
    hash: String,
}

/// What the script said of one call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It was decided; a verdict for each charge.
    Judged(Vec<Verdict>),
    /// A charge's window is not the present one; nothing was charged.
    Stale,
    /// The counter of this charge holds no count; nothing was charged.
    Unreadable(usize),
}

impl FixedWindow {
    pub(super) fn new() -> Self {
        Self { hash: redis::Script::new(SOURCE).get_hash().to_owned() }
    }

    /// Runs the script for one call, in the windows of `stamp`; tells Redis's time with the answer.
    pub(super) async fn run(
        &self,
        connection: &mut Connection,
        charges: &[Charge],
        stamp: Timestamp,
        metrics: &StoreMetrics,
    ) -> RedisResult<(Timestamp, Answer)> {
        let call = Call::write(charges, stamp);
        let command = call.command("EVALSHA", &self.hash);
        let mut reply = metrics.round_trip("EVALSHA", connection.query(&command)).await;
        // A server that was restarted or flushed has forgotten the script, and has run nothing.
        if let Err(error) = &reply
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            let command = call.command("EVAL", SOURCE);
            reply = metrics.round_trip("EVAL", connection.query(&command)).await;
        }
        let reply: Vec<i64> = reply?;
        read(&reply, charges.len()).ok_or_else(|| {
            (ErrorKind::UnexpectedReturnType, "the script's reply has another form").into()
        })
    }
}

/// The arguments of one call, as `lua/fixed_window.lua` reads them.
struct Call {
    keys: Vec<String>,
    arguments: Vec<String>,
}

impl Call {
    fn write(charges: &[Charge], stamp: Timestamp) -> Self {
        let mut call = Self { keys: Vec::new(), arguments: vec![charges.len().to_string()] };
        for Charge { counter, hits, limit, when_denied } in charges {
            let span = counter.window.at(stamp);
            let place = call.place(counter.key(span.start));
            let (kind, hits) = match *hits {
                Hits::Take(hits) => ("take", hits),
                Hits::Look => ("look", 0),
                Hits::GiveBack(hits) => ("give", hits),
            };
            call.arguments.extend([
                place.to_string(),
                span.start.as_secs().to_string(),
                counter.window.seconds().to_string(),
                counter.expiry(span.end).as_millis().to_string(),
                kind.to_owned(),
                hits.to_string(),
                limit.to_string(),
                match when_denied {
                    WhenDenied::Free => "free".to_owned(),
                    WhenDenied::Counted => "count".to_owned(),
                },
            ]);
        }
        call
    }

    /// The place of `key` in KEYS, counted from 1 as Lua does.
    fn place(&mut self, key: String) -> usize {
        self.keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        }) + 1
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }
}

fn read(reply: &[i64], charges: usize) -> Option<(Timestamp, Answer)> {
    let [seconds, micros, verdict, answers @ ..] = reply else { return None };
    if answers.len() != charges {
        return None;
    }
    let millis = u64::try_from(seconds.checked_mul(1000)? + micros / 1000).ok()?;
    let answer = match verdict {
        -1 => Answer::Stale,
        -2 => Answer::Unreadable(answers.iter().position(|answer| *answer == -2)?),
        _ => Answer::Judged(answers.iter().map(|answer| one(*answer)).collect::<Option<_>>()?),
    };
    Some((Timestamp::from_millis(millis), answer))
}

fn one(answer: i64) -> Option<Verdict> {
    if answer == -1 {
        return Some(Verdict::Over);
    }
    let remaining = u32::try_from(answer).ok()?;
    Some(Verdict::Fits { remaining })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_form_decides_nothing() {
        for reply in [
            &[][..],
            &[1_795_215_600],
            &[1_795_215_600, 0, 1],
            &[1_795_215_600, 0, 1, 5, 5],
            &[1_795_215_600, 0, 1, -7],
            &[1_795_215_600, 0, 1, i64::MAX],
            &[-5, 0, 1, 5],
            &[i64::MAX, 0, 1, 5],
            &[1_795_215_600, 0, -2, 0],
        ] {
            assert_eq!(read(reply, 1), None, "for {reply:?}");
        }
    }

    #[test]
    fn a_reply_tells_redis_time_in_milliseconds() {
        let (now, answer) = read(&[1_795_215_600, 123_999, 0, -1, 7], 2).expect("a good reply");
        assert_eq!(now, Timestamp::from_millis(1_795_215_600_123));
        assert_eq!(answer, Answer::Judged(vec![Verdict::Over, Verdict::Fits { remaining: 7 }]));
    }
}
