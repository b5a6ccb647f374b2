//! Calls that go to Redis together, in one write: one script run for those on fixed windows, and one for
//! the others.

use std::sync::Arc;

use redis::RedisResult;

use super::{
    connection::Connection,
    resp,
    script::{
        self, RedisOutcome, Scripts, WriteRefusal, fixed, ledger::LedgerRun, unexpected_reply,
    },
};
use crate::{
    engine::{ledger::Charge, time::Timestamp},
    telemetry::StoreMetrics,
};

/// The most weight of one batch, except for one heavier call; see [`fixed::KEYS_MAX`].
pub(super) const WEIGHT_MAX: usize = fixed::KEYS_MAX;

/// The weight of a charge for the ledger, by the time that it costs Redis; one on a fixed window weighs 1.
const LEDGER_WEIGHT: usize = 6;

/// The script that decides a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptKind {
    Fixed,
    Ledger,
}

impl ScriptKind {
    /// The cheapest script that can decide this call.
    pub(super) fn of(charges: &[Charge]) -> Self {
        if fixed::accepts(charges) { Self::Fixed } else { Self::Ledger }
    }

    /// The time that a call costs Redis, relative to others.
    pub(super) fn weight(self, charges: &[Charge]) -> usize {
        match self {
            Self::Fixed => charges.len(),
            Self::Ledger => LEDGER_WEIGHT * charges.len(),
        }
    }
}

/// Calls in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Batch {
    fixed: fixed::FixedRun,
    ledger: LedgerRun,
    kinds: Vec<ScriptKind>,
}

/// What a batch's replies say.
pub(super) struct Answers {
    /// Redis's time, unless all runs failed.
    pub(super) now: Option<Timestamp>,
    /// One for each call, in their order.
    pub(super) outcomes: Vec<RedisResult<RedisOutcome>>,
}

impl Batch {
    /// Adds a call in the windows that hold `assumed_now`, on keys that begin with `key_prefix`. All
    /// calls together must not weigh more than [`WEIGHT_MAX`], except for one alone.
    pub(super) fn add(
        &mut self,
        kind: ScriptKind,
        charges: &Arc<[Charge]>,
        assumed_now: Timestamp,
        key_prefix: &str,
    ) {
        match kind {
            ScriptKind::Fixed => self.fixed.add(charges, assumed_now, key_prefix),
            ScriptKind::Ledger => self.ledger.add(charges, assumed_now, key_prefix),
        }
        self.kinds.push(kind);
    }

    /// Sends it, and reads what became of each call.
    pub(super) async fn run(
        self,
        connection: &mut Connection,
        scripts: &Scripts,
        metrics: &StoreMetrics,
    ) -> Answers {
        let mut runs: Vec<(_, &dyn script::ScriptRun)> = Vec::with_capacity(2);
        if !self.fixed.is_empty() {
            runs.push((&scripts.fixed, &self.fixed));
        }
        if !self.ledger.is_empty() {
            runs.push((&scripts.ledger, &self.ledger));
        }
        let ran = script::run(&runs, connection, metrics, resp::integers).await;
        let mut replies = ran.replies.into_iter();
        let mut now = None;
        let mut fixed = Ok(Vec::new());
        if !self.fixed.is_empty() {
            fixed = read(replies.next(), &mut now, |reply| self.fixed.read(reply));
        }
        let mut ledger = Ok(Vec::new());
        if !self.ledger.is_empty() {
            ledger = read(replies.next(), &mut now, |reply| self.ledger.read(reply));
        }
        let outcomes = self.in_order(fixed, ledger);

        let refused = outcomes.iter().find_map(refusal);
        let error_type = ran.error_type.or(refused.map(|refusal| refusal.code().to_owned()));
        metrics.record("EVALSHA", ran.took, error_type);
        if refused == Some(WriteRefusal::Replica) {
            // A demoted server must not be asked again on this connection.
            connection.retire();
        }
        Answers { now, outcomes }
    }

    /// The outcomes of both runs, in the order of the calls.
    fn in_order(
        &self,
        fixed: RedisResult<Vec<RedisOutcome>>,
        ledger: RedisResult<Vec<RedisOutcome>>,
    ) -> Vec<RedisResult<RedisOutcome>> {
        let mut fixed = fixed.map(Vec::into_iter);
        let mut ledger = ledger.map(Vec::into_iter);
        let mut outcomes = Vec::with_capacity(self.kinds.len());
        for kind in &self.kinds {
            let of_kind = match kind {
                ScriptKind::Fixed => &mut fixed,
                ScriptKind::Ledger => &mut ledger,
            };
            outcomes.push(match of_kind {
                Ok(of_kind) => of_kind.next().ok_or_else(unexpected_reply),
                Err(error) => Err(error.clone()),
            });
        }
        outcomes
    }
}

/// Reads the reply to one run, and Redis's time from it.
fn read(
    reply: Option<RedisResult<Vec<i64>>>,
    now: &mut Option<Timestamp>,
    read: impl Fn(&[i64]) -> Option<(Timestamp, Vec<RedisOutcome>)>,
) -> RedisResult<Vec<RedisOutcome>> {
    let reply = reply.ok_or_else(unexpected_reply)??;
    let (told, outcomes) = read(&reply).ok_or_else(unexpected_reply)?;
    *now = Some(told);
    Ok(outcomes)
}

fn refusal(outcome: &RedisResult<RedisOutcome>) -> Option<WriteRefusal> {
    match outcome {
        Ok(RedisOutcome::WriteRefused(refusal)) => Some(*refusal),
        _ => None,
    }
}
