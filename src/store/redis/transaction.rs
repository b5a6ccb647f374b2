//! For a server that runs no scripts: fixed windows, by INCRBY and TIME in one MULTI.
//!
//! The charge is made first, and what the answers show to be too much is given back before the call
//! is answered. So a call may be denied too early for an instant; single hits on one counter are
//! exact. A call with refunds reads under WATCH instead, and starts again if a counter has changed.

use redis::{ErrorKind, Pipeline, RedisResult, Value, from_redis_value};

use super::{
    connection::Connection,
    script::{Answer, counter::Looked},
};
use crate::{
    engine::{
        algorithm::{AnyAccount, Terms, fixed_window},
        key,
        ledger::{self, Charge, Posting, Standing, Tally},
        request::Hits,
        rule::WhenDenied,
        time::Timestamp,
    },
    store::Clear,
    telemetry::StoreMetrics,
};

/// Makes one call's charges, in the windows of `stamp`; tells Redis's time with the answer.
pub(super) async fn run(
    connection: &mut Connection,
    charges: &[Charge],
    key_prefix: &str,
    stamp: Timestamp,
    metrics: &StoreMetrics,
) -> RedisResult<(Timestamp, Answer)> {
    let call = Call::new(charges, key_prefix, stamp);
    match charges.iter().any(|charge| charge.hits.is_give_back()) {
        true => call.watch(connection, metrics).await,
        false => call.count(connection, metrics).await,
    }
}

/// Looks at one counter, in the window of `stamp`; a cleared one is read and deleted at once.
pub(super) async fn look(
    connection: &mut Connection,
    counter: &key::Counter,
    clear: Clear,
    key_prefix: &str,
    stamp: Timestamp,
    metrics: &StoreMetrics,
) -> RedisResult<(Timestamp, Looked)> {
    let key = key_prefix.to_owned() + &counter.key(counter.limit.window.at(stamp).start);
    let mut look = transaction();
    look.cmd("GET").arg(&key);
    if clear == Clear::Yes {
        look.cmd("DEL").arg(&key).ignore();
    }
    look.cmd("TIME");
    let reply = metrics.round_trip("MULTI", connection.transaction(&look)).await?;
    let (now, answers) = read(reply.ok_or_else(another_form)?)?;
    let terms = Terms::new(&counter.limit, now);
    let looked = match answers.first().map(count) {
        _ if terms.span != counter.limit.window.at(stamp) => Looked::Stale,
        Some(Some(used)) => {
            let account = AnyAccount::FixedWindow(fixed_window::Account { used });
            Looked::Standing(Standing::of(&account, &terms))
        }
        _ => Looked::Unreadable,
    };
    Ok((now, looked))
}

/// A call's charges, and the counters that they meet.
struct Call<'call> {
    charges: &'call [Charge],
    counters: Vec<Counter>,
    /// Which of the counters each charge meets.
    places: Vec<usize>,
    stamp: Timestamp,
}

struct Counter {
    key: String,
    /// How long a new key lives, in milliseconds. Not an instant: one in the past would delete it.
    ttl: u64,
    /// What is charged before the answer is known; nothing, where it cannot fit.
    charged: u64,
}

impl<'call> Call<'call> {
    fn new(charges: &'call [Charge], key_prefix: &str, stamp: Timestamp) -> Self {
        let mut call = Self { charges, counters: Vec::new(), places: Vec::new(), stamp };
        for charge in charges {
            let span = charge.counter.limit.window.at(stamp);
            let key = key_prefix.to_owned() + &charge.counter.key(span.start);
            let known = call.counters.iter().position(|counter| counter.key == key);
            let place = known.unwrap_or_else(|| {
                let expiry = charge.counter.expiry(span.end).as_millis();
                let ttl = expiry.saturating_sub(stamp.as_millis()).max(1);
                call.counters.push(Counter { key, ttl, charged: 0 });
                call.counters.len() - 1
            });
            call.places.push(place);
        }
        let charged: Vec<u64> =
            (0..call.counters.len()).map(|place| call.to_charge(place)).collect();
        for (counter, charged) in call.counters.iter_mut().zip(charged) {
            counter.charged = charged;
        }
        call
    }

    /// All takes on a counter, if they may fit, or those that count in any case.
    fn to_charge(&self, place: usize) -> u64 {
        let takes = || {
            let here = self.charges.iter().zip(&self.places).filter(move |(_, it)| **it == place);
            here.filter_map(|(charge, _)| match charge.hits {
                Hits::Take(hits) => Some((hits, &charge.counter.limit)),
                Hits::Look | Hits::GiveBack(_) => None,
            })
        };
        let sum = takes().fold(0_u64, |sum, (hits, _)| sum.saturating_add(hits));
        if takes().all(|(_, limit)| sum <= u64::from(limit.requests_per_unit)) {
            return sum;
        }
        let counted = takes().filter(|(_, limit)| limit.when_denied == WhenDenied::Counted);
        counted.fold(0_u64, |sum, (hits, _)| sum.saturating_add(hits)).min(Hits::MAX)
    }

    /// Charges, judges by the answers, and corrects.
    async fn count(
        &self,
        connection: &mut Connection,
        metrics: &StoreMetrics,
    ) -> RedisResult<(Timestamp, Answer)> {
        let mut charge = transaction();
        for counter in &self.counters {
            match counter.charged {
                0 => charge.cmd("GET").arg(&counter.key),
                charged => counter.add(&mut charge, i128::from(charged)),
            };
        }
        charge.cmd("TIME");
        let reply = metrics.round_trip("MULTI", connection.transaction(&charge)).await?;
        let (now, answers) = read(reply.ok_or_else(another_form)?)?;

        // What each counter held before, where it is readable.
        let before = |(counter, answer): (&Counter, &Value)| {
            count(answer)?.checked_sub(counter.charged).filter(|used| *used <= Hits::MAX)
        };
        let before: Vec<Option<u64>> = self.counters.iter().zip(&answers).map(before).collect();
        let (answer, wanted) = match self.judge(&before, now) {
            Judged::Decided(tallies, after) => (Answer::Judged(tallies), after),
            Judged::Not(answer) => (answer, before.iter().map(|it| it.unwrap_or(0)).collect()),
        };
        let mut correct = transaction();
        for ((counter, before), (wanted, answer)) in
            self.counters.iter().zip(&before).zip(wanted.iter().zip(&answers))
        {
            let difference = match (before, answer) {
                // Nothing was written to what is no number.
                (None, Value::ServerError(_)) => 0,
                (None, _) => -i128::from(counter.charged),
                (Some(before), _) => {
                    i128::from(*wanted) - i128::from(*before) - i128::from(counter.charged)
                }
            };
            counter.add(&mut correct, difference);
        }
        if !correct.is_empty() {
            metrics.round_trip("MULTI", connection.transaction(&correct)).await?;
        }
        Ok((now, answer))
    }

    /// Reads, judges, and writes if nothing has changed meanwhile; else again.
    async fn watch(
        &self,
        connection: &mut Connection,
        metrics: &StoreMetrics,
    ) -> RedisResult<(Timestamp, Answer)> {
        // The decision budget ends this, if nothing else does.
        loop {
            let mut look = redis::pipe();
            look.ignore_errors();
            look.cmd("WATCH").arg(self.keys()).ignore();
            for counter in &self.counters {
                look.cmd("GET").arg(&counter.key);
            }
            look.cmd("TIME");
            let reply = metrics.round_trip("WATCH", connection.transaction(&look)).await?;
            let (now, answers) = read(reply.ok_or_else(another_form)?)?;
            let before: Vec<Option<u64>> = answers.iter().map(count).collect();

            let mut write = transaction();
            let answer = match self.judge(&before, now) {
                Judged::Decided(tallies, after) => {
                    for ((counter, before), after) in self.counters.iter().zip(&before).zip(after) {
                        let before = i128::from(before.unwrap_or(0));
                        counter.add(&mut write, i128::from(after) - before);
                    }
                    Answer::Judged(tallies)
                }
                Judged::Not(answer) => answer,
            };
            // It also ends the watch, where there is nothing to write.
            write.cmd("TIME");
            let written = metrics.round_trip("MULTI", connection.transaction(&write)).await?;
            if written.is_some() {
                return Ok((now, answer));
            }
        }
    }

    fn keys(&self) -> Vec<&str> {
        self.counters.iter().map(|counter| counter.key.as_str()).collect()
    }

    fn judge(&self, before: &[Option<u64>], now: Timestamp) -> Judged {
        let unreadable = |(place, _): &(&usize, usize)| before.get(**place) == Some(&None);
        let numbered = self.places.iter().zip(0..);
        let unreadable: Vec<usize> =
            numbered.filter(unreadable).map(|(_, number)| number).collect();
        let present = |charge: &Charge| {
            let window = &charge.counter.limit.window;
            window.at(now) == window.at(self.stamp)
        };
        if !self.charges.iter().all(present) {
            return Judged::Not(Answer::Stale);
        }
        if !unreadable.is_empty() {
            return Judged::Not(Answer::Unreadable(unreadable));
        }
        let account = |used: &Option<u64>| {
            AnyAccount::FixedWindow(fixed_window::Account { used: used.unwrap_or(0) })
        };
        let mut accounts: Vec<AnyAccount> = before.iter().map(account).collect();
        let posting = |(charge, place): (&'call Charge, &usize)| {
            let terms = Terms::new(&charge.counter.limit, now);
            Posting { account: *place, hits: charge.hits, caller: None, terms }
        };
        let postings: Vec<Posting<'_>> =
            self.charges.iter().zip(&self.places).map(posting).collect();
        let tallies = ledger::judge(&postings, &mut accounts);
        let used = |account: &AnyAccount| match account {
            AnyAccount::FixedWindow(account) => account.used,
            // The rules hold no others where scripts are off.
            _ => 0,
        };
        Judged::Decided(tallies, accounts.iter().map(used).collect())
    }
}

enum Judged {
    /// The tallies, and what each counter is to hold.
    Decided(Vec<Tally>, Vec<u64>),
    /// Why not; nothing is to change.
    Not(Answer),
}

impl Counter {
    /// The key is born with its TTL, and only then counted.
    fn add<'pipe>(&self, pipeline: &'pipe mut Pipeline, difference: i128) -> &'pipe mut Pipeline {
        if difference == 0 {
            return pipeline;
        }
        pipeline.cmd("SET").arg(&self.key).arg(0).arg("PX").arg(self.ttl).arg("NX").ignore();
        pipeline.cmd("INCRBY").arg(&self.key).arg(difference.to_string())
    }
}

fn transaction() -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.atomic().ignore_errors();
    pipeline
}

/// The time, which is the last of the answers, and the others. Of errors only those are left that are
/// about a key's value.
fn read(mut answers: Vec<Value>) -> RedisResult<(Timestamp, Vec<Value>)> {
    let trouble = answers.iter().find_map(|answer| match answer {
        Value::ServerError(error) if !matches!(error.code(), "WRONGTYPE" | "ERR") => Some(error),
        _ => None,
    });
    if let Some(error) = trouble {
        return Err(error.clone().into());
    }
    let time = answers.pop().ok_or_else(another_form)?;
    let (seconds, micros): (u64, u64) = from_redis_value(time)?;
    Ok((Timestamp::from_millis(seconds.saturating_mul(1000) + micros / 1000), answers))
}

/// The count that is told; `None` if it is none.
fn count(answer: &Value) -> Option<u64> {
    match answer {
        Value::Nil => Some(0),
        Value::Int(number) => u64::try_from(*number).ok(),
        // What INCRBY will take, and no more than a script would.
        Value::BulkString(text) => {
            let number: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
            Some(number).filter(|it| *it <= Hits::MAX && it.to_string().as_bytes() == text)
        }
        _ => None,
    }
}

fn another_form() -> redis::RedisError {
    (ErrorKind::UnexpectedReturnType, "the transaction's reply has another form").into()
}
