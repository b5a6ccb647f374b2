//! One call as transactions: what it charges, and what it corrects when the answers are known.

use std::collections::HashMap;

use redis::{Pipeline, RedisResult, Value};
use tollkeeper_engine::{
    algorithm::{
        AnyAccount,
        hold_record::{HoldRecord, HoldState},
    },
    ledger::{self, Charge, CommitOutcome, Fit, HoldAction, Posting, Verdict},
    request::Hits,
    rule::WhenDenied,
    time::Timestamp,
};

use super::exchange::{account, count, exchange, transaction, unexpected_reply};
use crate::{
    metrics::StoreMetrics,
    redis::{
        script::{Reply, ScriptVerdict, WriteRefusal},
        wire::connection::Connection,
    },
};

/// A call's charges, and the counters that they are on.
pub(super) struct TransactionCall<'call> {
    charges: &'call [Charge],
    counters: Vec<CountedKey>,
    /// For each charge, the index of its counter.
    counter_of: Vec<usize>,
    /// The records of the holds that are committed: the index of the charge, the key, and the deadline.
    records: Vec<(usize, String, Timestamp)>,
    /// The times at which the counters of commits were reset: the index of the charge, and the key.
    resets: Vec<(usize, String)>,
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

struct Settlement {
    verdict: ScriptVerdict,
    /// What each counter is to hold.
    wanted: Vec<u64>,
}

impl<'call> TransactionCall<'call> {
    pub(super) fn new(charges: &'call [Charge], key_prefix: &str, assumed_now: Timestamp) -> Self {
        let (counters, counter_of) = (Vec::new(), Vec::new());
        let (records, resets) = (Vec::new(), Vec::new());
        let mut call = Self { charges, counters, counter_of, records, resets, assumed_now };
        let mut known = HashMap::new();
        for (index, charge) in charges.iter().enumerate() {
            if let Some(hold @ HoldAction::Commit { deadline, .. }) = charge.hold {
                let key = hold.key_beside(&charge.counter);
                call.records.extend(key.map(|key| (index, key_prefix.to_owned() + &key, deadline)));
                call.resets.push((index, key_prefix.to_owned() + &charge.counter.reset_key()));
            }
            let span = charge.terms(assumed_now).span;
            let key = key_prefix.to_owned() + &charge.counter.key(span.start);
            let index = *known.entry(key).or_insert_with_key(|key| {
                let expiry = charge.counter.expiry(span.end).as_millis();
                let ttl_ms = expiry.saturating_sub(assumed_now.as_millis()).max(1);
                call.counters.push(CountedKey { key: key.clone(), ttl_ms, charged: 0 });
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

    /// The sum of the charges on a counter if it may fit; else of those that count even if denied.
    fn to_charge(&self, counter: usize) -> u64 {
        let (mut sum, mut counted, mut may_fit) = (0_u64, 0_u64, true);
        for charge in self.charges_on(counter) {
            if let Hits::Charge(hits) = charge.hits {
                sum = sum.saturating_add(hits);
                if charge.when_denied() == WhenDenied::Counted {
                    counted = counted.saturating_add(hits).min(Hits::MAX);
                }
            }
        }
        for charge in self.charges_on(counter) {
            may_fit &= sum <= charge.counter.limit.requests_per_unit
                || !matches!(charge.hits, Hits::Charge(_));
        }
        if may_fit { sum } else { counted }
    }

    fn charges_on(&self, counter: usize) -> impl Iterator<Item = &Charge> {
        let charges = self.charges.iter().zip(&self.counter_of);
        charges.filter(move |(_, index)| **index == counter).map(|(charge, _)| charge)
    }

    pub(super) async fn run(
        &self,
        connection: &mut Connection,
        metrics: &StoreMetrics,
    ) -> RedisResult<Reply> {
        // Whether a refund or a part changes a counter, and by how much, depends on what the counter holds.
        let reads = |charge: &Charge| charge.hits.asks_nothing() || charge.is_part;
        let answer = if self.charges.iter().any(reads) {
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

    /// Charges the counters, judges by the answers, and corrects them. `None`, with its charge taken back, if a
    /// counter was negative: a refund set it to 0 while it held hits of another call, which then took them
    /// back. The caller repeats the call under WATCH, so that only one client adds what is missing.
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

        let counters = self.counters.iter().zip(&answers);
        let before: Vec<_> = counters.map(|(counter, answer)| counter.before(answer)).collect();
        let is_negative = before.iter().flatten().any(|count| *count < 0);
        let settlement = if is_negative { None } else { Some(self.judge(&before, now)) };

        let mut correct = transaction();
        for (index, (counter, answer)) in self.counters.iter().zip(&answers).enumerate() {
            let before = before.get(index).copied().flatten();
            let wanted = settlement.as_ref().and_then(|settlement| settlement.wanted.get(index));
            let added = match (before, wanted, answer) {
                // Nothing was added to a value that is not a number.
                (None, _, Value::ServerError(_)) => 0,
                (Some(before), Some(wanted), _) => {
                    i128::from(*wanted) - i128::from(before) - i128::from(counter.charged)
                }
                _ => -i128::from(counter.charged),
            };
            counter.add(&mut correct, added);
        }
        if !correct.is_empty() {
            let corrected = metrics.round_trip("MULTI", connection.pipeline(&correct)).await;
            // It has charged: a refusal now must not look as if it had not.
            corrected.map_err(|_| unexpected_reply())?;
        }
        Ok(settlement.map(|settlement| Reply { now, verdict: settlement.verdict }))
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
        let mut reads = redis::pipe();
        reads.ignore_errors();
        reads.cmd("WATCH").arg(self.keys()).ignore();
        for key in self.keys() {
            reads.cmd("GET").arg(key);
        }
        reads.cmd("TIME");
        let (now, answers) = exchange("WATCH", &reads, connection, metrics).await?;
        let before: Vec<Option<i64>> = answers.iter().map(count).collect();
        let Settlement { verdict, wanted } = self.judge(&before, now);

        let mut write = transaction();
        if let ScriptVerdict::Decided(Verdict { tallies, .. }) = &verdict {
            for (charge, key, deadline) in &self.records {
                let fit = tallies.get(*charge).map(|tally| tally.fit);
                if fit == Some(Fit::Commit(CommitOutcome::Applied)) {
                    let ttl_ms = deadline.millis_since(now).max(1);
                    write.cmd("SET").arg(key).arg(1).arg("PX").arg(ttl_ms).ignore();
                }
            }
        }
        if matches!(verdict, ScriptVerdict::Decided(_)) {
            for ((counter, before), wanted) in self.counters.iter().zip(&before).zip(wanted) {
                if let Some(before) = before {
                    counter.add(&mut write, i128::from(wanted) - i128::from(*before));
                }
            }
        }
        // It also ends the watch where there is nothing to write.
        write.cmd("TIME");
        let written = metrics.round_trip("MULTI", connection.pipeline(&write)).await?;
        Ok(written.map(|_| Reply { now, verdict }))
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
        let mut reads = redis::pipe();
        reads.ignore_errors();
        for key in self.keys() {
            reads.cmd("GET").arg(key);
        }
        reads.cmd("TIME");
        let (now, answers) = exchange("GET", &reads, connection, metrics).await?;
        let before: Vec<Option<i64>> = answers.iter().map(count).collect();
        let Settlement { verdict, wanted } = self.judge(&before, now);
        let verdict = match verdict {
            ScriptVerdict::Decided(verdict) if !verdict.denied && used(&before) != wanted => {
                ScriptVerdict::WriteRefused(refusal)
            }
            verdict => verdict,
        };
        Ok(Reply { now, verdict })
    }

    fn keys(&self) -> Vec<&str> {
        let counters = self.counters.iter().map(|counter| counter.key.as_str());
        let records = self.records.iter().map(|(_, key, _)| key.as_str());
        counters.chain(records).chain(self.resets.iter().map(|(_, key)| key.as_str())).collect()
    }

    /// The verdict, by what the counters held at `now`, and behind them the records; `None` is a corrupt counter. A
    /// negative count is read as 0, and a record that does not exist too.
    fn judge(&self, before: &[Option<i64>], now: Timestamp) -> Settlement {
        if self.charges.iter().any(|charge| self.is_stale(charge, now)) {
            return Settlement { verdict: ScriptVerdict::Stale, wanted: used(before) };
        }
        let (counters, records) = before.split_at(self.counters.len().min(before.len()));
        let (records, resets) = records.split_at(self.records.len().min(records.len()));
        let mut accounts: Vec<AnyAccount> =
            counters.iter().map(|count| account(count.unwrap_or(0))).collect();
        accounts.extend(records.iter().map(|record| {
            let state = (*record != Some(0)).then_some(HoldState::Committed);
            AnyAccount::HoldRecord(Box::new(HoldRecord { state, ..HoldRecord::default() }))
        }));
        accounts.extend(resets.iter().map(|reset| {
            let at = reset.and_then(|at| u64::try_from(at).ok()).filter(|at| *at > 0);
            let record = at.map(|at| HoldRecord::of_reset(Timestamp::from_millis(at)));
            AnyAccount::HoldRecord(Box::new(record.unwrap_or_default()))
        }));
        let mut postings = Vec::with_capacity(self.charges.len());
        let mut corrupt = Vec::new();
        for (index, (charge, counter)) in self.charges.iter().zip(&self.counter_of).enumerate() {
            let is_readable = before.get(*counter).is_some_and(Option::is_some);
            if !is_readable {
                corrupt.push(index);
            }
            let terms = charge.terms(now);
            let account = is_readable.then_some(*counter);
            let of_charge = self.records.iter().find(|(of, ..)| *of == index);
            // A commit that is in the call twice has one record.
            let record = of_charge
                .and_then(|(_, key, _)| self.records.iter().position(|(_, known, _)| known == key));
            let hold = record.map(|record| self.counters.len() + record);
            let reset = self.resets.iter().position(|(of, _)| *of == index);
            let reset = reset.map(|reset| self.counters.len() + self.records.len() + reset);
            postings.push(Posting { account, hold, reset, hits: charge.hits, charge, terms });
        }
        let Some(verdict) = ledger::judge(&postings, &mut accounts) else {
            return Settlement { verdict: ScriptVerdict::Corrupt(corrupt), wanted: used(before) };
        };
        let wanted = accounts.iter().map(|account| match account {
            AnyAccount::FixedWindow(account) => account.used,
            // What `before` has of a record.
            AnyAccount::HoldRecord(record) => u64::from(record.state.is_some()),
            // The rules have no others where scripts are off.
            _ => 0,
        });
        Settlement { verdict: ScriptVerdict::Decided(verdict), wanted: wanted.collect() }
    }

    fn is_stale(&self, charge: &Charge, now: Timestamp) -> bool {
        charge.terms(now).span != charge.terms(self.assumed_now).span
    }
}

/// The counts, where a negative count and a corrupt counter are read as 0.
fn used(counts: &[Option<i64>]) -> Vec<u64> {
    counts.iter().map(|count| count.map_or(0, |count| count.max(0).cast_unsigned())).collect()
}

impl CountedKey {
    /// The count before the charge, by INCRBY's answer; `None` is a corrupt counter.
    fn before(&self, answer: &Value) -> Option<i64> {
        let before = count(answer)?.checked_sub_unsigned(self.charged)?;
        (before <= Hits::MAX.cast_signed()).then_some(before)
    }

    /// The key is created with its TTL, and only then counted.
    fn add(&self, pipeline: &mut Pipeline, hits: i128) {
        if hits != 0 {
            pipeline.cmd("SET").arg(&self.key).arg(0);
            pipeline.arg("PX").arg(self.ttl_ms).arg("NX").ignore();
            pipeline.cmd("INCRBY").arg(&self.key).arg(hits.to_string());
        }
    }
}
