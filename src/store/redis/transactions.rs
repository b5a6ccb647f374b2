//! Counters in a Redis that runs no scripts: fixed windows, by INCRBY and TIME in one MULTI.
//!
//! The charge is made first, and what the answers show to be too much is given back before the call
//! is answered. So a call may be denied too early for an instant; single hits on one counter are
//! exact. A call with refunds reads under WATCH instead, and starts again if a counter has changed.

use redis::{ErrorKind, Pipeline, RedisResult, Value, from_redis_value};

use super::{
    connection::Connection,
    node::{Node, Question},
    script::{Outcome, Reply, WriteRefusal},
};
use crate::{
    engine::{
        algorithm::{AnyAccount, fixed_window},
        key,
        ledger::{self, Charge, CounterState, Judgement, Posting},
        request::Hits,
        rule::WhenDenied,
        time::Timestamp,
    },
    store::{Clear, StoreError},
    telemetry::StoreMetrics,
};

/// Counters in a Redis that runs no scripts.
#[derive(Debug)]
pub struct TransactionStore {
    node: Node,
    key_prefix: String,
}

impl TransactionStore {
    /// A store on `node`, on keys that begin with `key_prefix`. It connects when it is first asked.
    pub fn new(node: Node, key_prefix: String) -> Self {
        Self { node, key_prefix }
    }

    /// Makes all charges of one call, or none. All must be on fixed windows.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn charge(&self, charges: &[Charge]) -> Result<Judgement, StoreError> {
        if charges.is_empty() {
            return Ok(Judgement::default());
        }
        Box::pin(self.node.ask(TransactionCharge { charges, key_prefix: &self.key_prefix })).await
    }

    /// The state of one counter; `clear` resets it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn look(
        &self,
        counter: &key::Counter,
        clear: Clear,
    ) -> Result<CounterState, StoreError> {
        self.node.ask(TransactionLook { counter, clear, key_prefix: &self.key_prefix }).await
    }

    /// Waits until Redis has answered once.
    pub async fn reached(&self) {
        self.node.reached().await;
    }
}

struct TransactionCharge<'call> {
    charges: &'call [Charge],
    key_prefix: &'call str,
}

impl Question for TransactionCharge<'_> {
    type Answer = Judgement;

    async fn ask(
        &self,
        connection: &mut Connection,
        assumed_now: Timestamp,
        metrics: &StoreMetrics,
    ) -> RedisResult<Reply> {
        TransactionCall::new(self.charges, self.key_prefix, assumed_now)
            .run(connection, metrics)
            .await
    }
}

struct TransactionLook<'look> {
    counter: &'look key::Counter,
    clear: Clear,
    key_prefix: &'look str,
}

impl Question for TransactionLook<'_> {
    type Answer = CounterState;

    /// A counter that is cleared is read and deleted at once.
    async fn ask(
        &self,
        connection: &mut Connection,
        assumed_now: Timestamp,
        metrics: &StoreMetrics,
    ) -> RedisResult<Reply<CounterState>> {
        let limit = &self.counter.limit;
        let assumed = limit.window.at(assumed_now);
        let key = self.key_prefix.to_owned() + &self.counter.key(assumed.start);
        let mut look = match self.clear {
            // Without memory a server refuses every command inside of a transaction.
            Clear::No => redis::pipe(),
            Clear::Yes => transaction(),
        };
        look.ignore_errors();
        look.cmd("GET").arg(&key);
        if self.clear == Clear::Yes {
            look.cmd("DEL").arg(&key).ignore();
        }
        look.cmd("TIME");
        let (now, answers) = exchange("MULTI", &look, connection, metrics).await?;
        let terms = limit.terms(now);
        let outcome = match answers.first().and_then(count) {
            _ if terms.span != assumed => Outcome::Stale,
            Some(count) => Outcome::Decided(CounterState::of(&account(count), &terms)),
            None => Outcome::Corrupt(vec![0]),
        };
        Ok(Reply { now, outcome })
    }
}

/// A call's charges, and the counters that they are on.
struct TransactionCall<'call> {
    charges: &'call [Charge],
    counters: Vec<CountedKey>,
    /// For each charge, the index of its counter.
    counter_of: Vec<usize>,
    assumed_now: Timestamp,
}

/// A key that charges of the call are on.
struct CountedKey {
    key: String,
    /// How long a new key lives, in milliseconds. Not an instant: one in the past would delete it.
    ttl_ms: u64,
    /// What is charged before the answer is known; nothing, where it cannot fit.
    charged: u64,
}

/// What a call comes to.
struct Settlement {
    outcome: Outcome,
    /// What each counter is to hold.
    wanted: Vec<u64>,
}

impl<'call> TransactionCall<'call> {
    fn new(charges: &'call [Charge], key_prefix: &str, assumed_now: Timestamp) -> Self {
        let (counters, counter_of) = (Vec::new(), Vec::new());
        let mut call = Self { charges, counters, counter_of, assumed_now };
        for charge in charges {
            let span = charge.counter.limit.window.at(assumed_now);
            let key = key_prefix.to_owned() + &charge.counter.key(span.start);
            let known = call.counters.iter().position(|counter| counter.key == key);
            let index = known.unwrap_or_else(|| {
                let expiry = charge.counter.expiry(span.end).as_millis();
                let ttl_ms = expiry.saturating_sub(assumed_now.as_millis()).max(1);
                call.counters.push(CountedKey { key, ttl_ms, charged: 0 });
                call.counters.len() - 1
            });
            call.counter_of.push(index);
        }
        for index in 0..call.counters.len() {
            let charged = call.to_charge(index);
            if let Some(counter) = call.counters.get_mut(index) {
                counter.charged = charged;
            }
        }
        call
    }

    /// All takes on a counter, if they may fit, or those that count in any case.
    fn to_charge(&self, counter: usize) -> u64 {
        let (mut sum, mut counted, mut may_fit) = (0_u64, 0_u64, true);
        for charge in self.charges_on(counter) {
            if let Hits::Charge(hits) = charge.hits {
                sum = sum.saturating_add(hits);
                if charge.counter.limit.when_denied == WhenDenied::Counted {
                    counted = counted.saturating_add(hits).min(Hits::MAX);
                }
            }
        }
        for charge in self.charges_on(counter) {
            may_fit &= sum <= u64::from(charge.counter.limit.requests_per_unit)
                || !matches!(charge.hits, Hits::Charge(_));
        }
        if may_fit { sum } else { counted }
    }

    fn charges_on(&self, counter: usize) -> impl Iterator<Item = &Charge> {
        let charges = self.charges.iter().zip(&self.counter_of);
        charges.filter(move |(_, index)| **index == counter).map(|(charge, _)| charge)
    }

    async fn run(&self, connection: &mut Connection, metrics: &StoreMetrics) -> RedisResult<Reply> {
        let answer = if self.charges.iter().any(|charge| charge.hits.is_refund()) {
            self.watch(connection, metrics).await
        } else {
            match self.count(connection, metrics).await {
                Ok(None) => self.watch(connection, metrics).await,
                Ok(Some(reply)) => Ok(reply),
                Err(error) => Err(error),
            }
        };
        match answer.as_ref().err().and_then(WriteRefusal::from_error) {
            Some(refusal) => self.judge_unwritten(refusal, connection, metrics).await,
            None => answer,
        }
    }

    /// Charges, judges by the answers, and corrects. `None`, with nothing charged, if a counter is
    /// negative: a refund was floored while it held hits that another call then gave back. What it
    /// lacks must be added once, so it is repaired under WATCH.
    async fn count(
        &self,
        connection: &mut Connection,
        metrics: &StoreMetrics,
    ) -> RedisResult<Option<Reply>> {
        let mut charge = transaction();
        for counter in &self.counters {
            if counter.charged == 0 {
                charge.cmd("GET").arg(&counter.key);
            } else {
                counter.add(&mut charge, i128::from(counter.charged));
            }
        }
        charge.cmd("TIME");
        let (now, answers) = exchange("MULTI", &charge, connection, metrics).await?;

        let before = |(counter, answer): (&CountedKey, &Value)| {
            let before = count(answer)?.checked_sub_unsigned(counter.charged)?;
            Some(before).filter(|count| *count <= Hits::MAX.cast_signed())
        };
        let before: Vec<Option<i64>> = self.counters.iter().zip(&answers).map(before).collect();
        let is_negative = before.iter().flatten().any(|count| *count < 0);
        let verdict = if is_negative { None } else { Some(self.judge(&before, now)) };

        let mut correct = transaction();
        for (index, (counter, answer)) in self.counters.iter().zip(&answers).enumerate() {
            let before = before.get(index).copied().flatten();
            let wanted = verdict.as_ref().and_then(|verdict| verdict.wanted.get(index));
            let added = match (before, wanted, answer) {
                // Nothing was added to a value that is no number.
                (None, _, Value::ServerError(_)) => 0,
                (Some(before), Some(wanted), _) => {
                    i128::from(*wanted) - i128::from(before) - i128::from(counter.charged)
                }
                _ => -i128::from(counter.charged),
            };
            counter.add(&mut correct, added);
        }
        if !correct.is_empty() {
            metrics.round_trip("MULTI", connection.pipeline(&correct)).await?;
        }
        Ok(verdict.map(|verdict| Reply { now, outcome: verdict.outcome }))
    }

    /// Reads, judges, and writes if nothing has changed meanwhile; else again.
    async fn watch(
        &self,
        connection: &mut Connection,
        metrics: &StoreMetrics,
    ) -> RedisResult<Reply> {
        // The decision budget ends this, if nothing else does.
        loop {
            match self.watch_once(connection, metrics).await {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(error) => {
                    // It may still watch, and the next transaction on it would not run.
                    connection.retire();
                    return Err(error);
                }
            }
        }
    }

    async fn watch_once(
        &self,
        connection: &mut Connection,
        metrics: &StoreMetrics,
    ) -> RedisResult<Option<Reply>> {
        let mut look = redis::pipe();
        look.ignore_errors();
        look.cmd("WATCH").arg(self.keys()).ignore();
        for key in self.keys() {
            look.cmd("GET").arg(key);
        }
        look.cmd("TIME");
        let (now, answers) = exchange("WATCH", &look, connection, metrics).await?;
        let before: Vec<Option<i64>> = answers.iter().map(count).collect();
        let Settlement { outcome, wanted } = self.judge(&before, now);

        let mut write = transaction();
        if matches!(outcome, Outcome::Decided(_)) {
            for ((counter, before), wanted) in self.counters.iter().zip(&before).zip(wanted) {
                if let Some(before) = before {
                    counter.add(&mut write, i128::from(wanted) - i128::from(*before));
                }
            }
        }
        // It also ends the watch where there is nothing to write.
        write.cmd("TIME");
        let written = metrics.round_trip("MULTI", connection.pipeline(&write)).await?;
        Ok(written.map(|_| Reply { now, outcome }))
    }

    /// Judges a call where the server takes no writes: one that is denied, or that writes nothing, has an
    /// answer all the same.
    async fn judge_unwritten(
        &self,
        refusal: WriteRefusal,
        connection: &mut Connection,
        metrics: &StoreMetrics,
    ) -> RedisResult<Reply> {
        // Without memory a server refuses every command inside of a transaction.
        let mut look = redis::pipe();
        look.ignore_errors();
        for key in self.keys() {
            look.cmd("GET").arg(key);
        }
        look.cmd("TIME");
        let (now, answers) = exchange("GET", &look, connection, metrics).await?;
        let before: Vec<Option<i64>> = answers.iter().map(count).collect();
        let Settlement { outcome, wanted } = self.judge(&before, now);
        let used = before.iter().map(|count| count.map_or(0, |count| count.max(0).cast_unsigned()));
        let outcome = match outcome {
            Outcome::Decided(judgement) if !judgement.denied && !used.eq(wanted) => {
                Outcome::WriteRefused(refusal)
            }
            outcome => outcome,
        };
        Ok(Reply { now, outcome })
    }

    fn keys(&self) -> Vec<&str> {
        self.counters.iter().map(|counter| counter.key.as_str()).collect()
    }

    /// The verdict, by what the counters held at `now`; `None` is a corrupt counter. A negative count is
    /// read as 0.
    fn judge(&self, before: &[Option<i64>], now: Timestamp) -> Settlement {
        let used = |count: &Option<i64>| count.map_or(0, |count| count.max(0).cast_unsigned());
        let unchanged = || before.iter().map(used).collect();
        let is_present = |charge: &Charge| {
            let window = &charge.counter.limit.window;
            window.at(now) == window.at(self.assumed_now)
        };
        if !self.charges.iter().all(is_present) {
            return Settlement { outcome: Outcome::Stale, wanted: unchanged() };
        }
        let mut accounts: Vec<AnyAccount> =
            before.iter().map(|count| account(count.unwrap_or(0))).collect();
        let mut postings = Vec::with_capacity(self.charges.len());
        let mut corrupt = Vec::new();
        for (index, (charge, counter)) in self.charges.iter().zip(&self.counter_of).enumerate() {
            let is_readable = before.get(*counter).is_some_and(Option::is_some);
            if !is_readable {
                corrupt.push(index);
            }
            let terms = charge.counter.limit.terms(now);
            postings.push(Posting { account: is_readable.then_some(*counter), charge, terms });
        }
        let Some(judgement) = ledger::judge(&postings, &mut accounts) else {
            return Settlement { outcome: Outcome::Corrupt(corrupt), wanted: unchanged() };
        };
        let wanted = accounts.iter().map(|account| match account {
            AnyAccount::FixedWindow(account) => account.used,
            // The rules hold no others where scripts are off.
            _ => 0,
        });
        Settlement { outcome: Outcome::Decided(judgement), wanted: wanted.collect() }
    }
}

impl CountedKey {
    /// The key is created with its TTL, and only then counted.
    fn add(&self, pipeline: &mut Pipeline, hits: i128) {
        if hits != 0 {
            pipeline.cmd("SET").arg(&self.key).arg(0);
            pipeline.arg("PX").arg(self.ttl_ms).arg("NX").ignore();
            pipeline.cmd("INCRBY").arg(&self.key).arg(hits.to_string());
        }
    }
}

fn account(count: i64) -> AnyAccount {
    AnyAccount::FixedWindow(fixed_window::FixedWindow { used: count.max(0).cast_unsigned() })
}

fn transaction() -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.atomic().ignore_errors();
    pipeline
}

/// Runs commands that end with TIME. Returns Redis's time, and the other answers; of errors only those are
/// among them that are about a key's value.
async fn exchange(
    operation: &'static str,
    commands: &Pipeline,
    connection: &mut Connection,
    metrics: &StoreMetrics,
) -> RedisResult<(Timestamp, Vec<Value>)> {
    let answers = metrics.round_trip(operation, connection.pipeline(commands)).await?;
    let mut answers = answers.ok_or_else(unexpected_reply)?;
    for answer in &answers {
        if let Value::ServerError(error) = answer
            && !matches!(error.code(), "WRONGTYPE" | "ERR")
        {
            return Err(error.clone().into());
        }
    }
    let time = answers.pop().ok_or_else(unexpected_reply)?;
    let (seconds, micros): (u64, u64) = from_redis_value(time)?;
    Ok((Timestamp::from_millis(seconds.saturating_mul(1000) + micros / 1000), answers))
}

/// The count in an answer; `None` if it is none. It may be negative, see [`TransactionCall::count`].
fn count(answer: &Value) -> Option<i64> {
    match answer {
        Value::Nil => Some(0),
        Value::Int(number) => Some(*number),
        // What INCRBY accepts, and no more than a script would.
        Value::BulkString(text) => {
            let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
            let is_ours = number.unsigned_abs() <= Hits::MAX;
            Some(number).filter(|it| is_ours && it.to_string().as_bytes() == text)
        }
        _ => None,
    }
}

fn unexpected_reply() -> redis::RedisError {
    (ErrorKind::UnexpectedReturnType, "the transaction's reply has an unexpected form").into()
}
