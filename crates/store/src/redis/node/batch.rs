//! Calls that go to one server together, in one write: a script run for those on fixed windows, one for
//! commits on them, and one for the others; or such runs for each hash slot. A call that goes by itself is a batch of one.

use std::{slice, vec};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::time::Instant;
use tollkeeper_engine::{
    key::Counter, ledger::Charge, rule::Algorithm, text::named::named, time::Timestamp,
};

use crate::{
    metrics::{StoreMetrics, redis_error_type},
    redis::{
        script::{
            KeyDeclaration, Reply, ScriptVerdict, Scripts, WriteRefusal, commit, counter, fixed,
            is_unknown_script, ledger::LedgerRun, unexpected_reply, work::NodeWork,
        },
        transactions,
        wire::{connection::Connection, hash_slot::HashSlot, resp},
    },
};

/// The most weight of one batch, except for one heavier call; see [`fixed::KEYS_MAX`].
pub(super) const WEIGHT_MAX: usize = fixed::KEYS_MAX;

/// The weight of a charge for the ledger, by the time that it costs Redis; one on a fixed window weighs 1. What reads a
/// hold or searches a log weighs twice as much.
const LEDGER_WEIGHT: usize = 6;

/// The weight of what may look at hundreds of calls or of a log's entries.
const SEARCH_WEIGHT: usize = 48;

/// The number of bytes of a counter's name that weigh 1.
const WEIGHED_BYTES: usize = 256;

/// The weight of a commit on a fixed window. Two keys.
const COMMIT_WEIGHT: usize = 2;

/// The least weight of a call that may need a run of its own.
const RUN_WEIGHT: usize = 3;

/// How the calls of a batch are put into runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// One run for all, with declared keys: on a server outside of a cluster.
    Single,
    /// One run for all, with undeclared keys.
    NodeWide,
    /// One run for each hash slot, with declared keys.
    PerSlot,
    /// None: each call goes by itself, as transactions, to a server that runs no scripts.
    Transactions,
}

impl Runs {
    pub(crate) const fn keys(self) -> KeyDeclaration {
        match self {
            Self::NodeWide => KeyDeclaration::Undeclared,
            Self::Single | Self::PerSlot | Self::Transactions => KeyDeclaration::Declared,
        }
    }
}

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ScriptKind {
        Fixed = "fixed",
        Commit = "commit",
        Ledger = "ledger",
        Counter = "counter",
    }
}

impl ScriptKind {
    pub(crate) fn of(work: &NodeWork) -> Self {
        match work {
            NodeWork::Charges(charges) if fixed::accepts(charges) => Self::Fixed,
            NodeWork::Charges(charges) if commit::accepts(charges) => Self::Commit,
            _ => Self::of_lone(work),
        }
    }

    /// The script that does this by itself, however its keys are declared.
    pub(crate) const fn of_lone(work: &NodeWork) -> Self {
        match work {
            NodeWork::Charges(_) | NodeWork::GiveBack(_) => Self::Ledger,
            NodeWork::Read(..) => Self::Counter,
        }
    }

    /// The time that it costs Redis, relative to other work.
    pub(crate) fn weight(self, work: &NodeWork, runs: Runs) -> usize {
        let weight = match self {
            Self::Fixed => work.len(),
            Self::Commit => COMMIT_WEIGHT * work.len(),
            Self::Ledger => {
                work.charges().iter().map(ledger_weight).sum::<usize>().max(LEDGER_WEIGHT)
            }
            Self::Counter => work.counters().map(reading_weight).sum(),
        };
        match runs {
            Runs::Single | Runs::NodeWide | Runs::Transactions => weight,
            Runs::PerSlot => weight.max(RUN_WEIGHT),
        }
    }
}

/// A run of its own, which may look at all that is open or remembered.
fn reading_weight(counter: &Counter) -> usize {
    let limit = &*counter.limit;
    let searches = limit.counts_calls() || limit.has_open_holds();
    let is_log = matches!(limit.algorithm, Algorithm::SlidingLog { .. });
    if searches || is_log { SEARCH_WEIGHT } else { 2 * LEDGER_WEIGHT }
}

fn ledger_weight(charge: &Charge) -> usize {
    let limit = &*charge.counter.limit;
    let is_log = matches!(limit.algorithm, Algorithm::SlidingLog { .. });
    let own = match charge.hold {
        None if limit.counts_calls() && charge.hits.asks_nothing() => SEARCH_WEIGHT,
        None if !is_log => LEDGER_WEIGHT,
        _ => 2 * LEDGER_WEIGHT,
    };
    own + charge.counter.id_bytes() / WEIGHED_BYTES
}

/// Calls in the order in which they were added.
#[derive(Debug)]
pub(crate) struct Batch<'prefix> {
    kind: Runs,
    keys: KeyDeclaration,
    key_prefix: &'prefix str,
    runs: Vec<Run>,
    calls: Vec<usize>,
    /// The only call, and the time by which its windows are chosen, if the server runs no scripts.
    transaction: Option<(NodeWork, Timestamp)>,
}

/// Calls that one run of a script decides.
#[derive(Debug)]
struct Run {
    /// The hash slot of all keys, if each has a run of its own.
    slot: Option<HashSlot>,
    script: ScriptKind,
    calls: RunCalls,
}

#[derive(Debug)]
enum RunCalls {
    Fixed(fixed::FixedRun),
    Commit(commit::CommitRun),
    Ledger(LedgerRun),
}

impl<'prefix> Batch<'prefix> {
    /// A batch without calls, on keys that begin with `key_prefix`, and are declared like this.
    pub(crate) fn new(kind: Runs, keys: KeyDeclaration, key_prefix: &'prefix str) -> Self {
        let (runs, calls) = (Vec::new(), Vec::new());
        Self { kind, keys, key_prefix, runs, calls, transaction: None }
    }

    /// Adds a call in the windows that hold `assumed_now`. All calls together must not weigh more than
    /// [`WEIGHT_MAX`], except for one alone.
    pub(crate) fn add(&mut self, script: ScriptKind, work: &NodeWork, assumed_now: Timestamp) {
        let slot = match self.kind {
            Runs::Single | Runs::NodeWide => None,
            Runs::PerSlot => work.slot(),
            Runs::Transactions => {
                self.transaction = Some((work.clone(), assumed_now));
                return;
            }
        };
        let script = self.script_in_order(script, work);
        let is_same = |run: &Run| run.slot == slot && run.script == script;
        // A run of the counter script reads one counter.
        let is_known = script != ScriptKind::Counter;
        let known = self.runs.iter().position(is_same).filter(|_| is_known);
        let mut index = known.unwrap_or(self.runs.len());
        if known.is_none() {
            let calls = match script {
                ScriptKind::Fixed => RunCalls::Fixed(fixed::FixedRun::default()),
                ScriptKind::Commit => RunCalls::Commit(commit::CommitRun::default()),
                ScriptKind::Ledger | ScriptKind::Counter => RunCalls::Ledger(LedgerRun::default()),
            };
            if script == ScriptKind::Fixed {
                // Decided before the others, see below.
                index = 0;
                self.calls.iter_mut().for_each(|run| *run += 1);
            }
            self.runs.insert(index, Run { slot, script, calls });
        }
        if let Some(run) = self.runs.get_mut(index) {
            match (&mut run.calls, work) {
                (RunCalls::Fixed(run), NodeWork::Charges(charges)) => {
                    run.add(charges, assumed_now, self.key_prefix);
                }
                (RunCalls::Commit(run), NodeWork::Charges(charges)) => {
                    run.add(charges, assumed_now, self.key_prefix);
                }
                (RunCalls::Ledger(run), work) => run.add_work(work, assumed_now, self.key_prefix),
                (RunCalls::Fixed(_) | RunCalls::Commit(_), _) => {}
            }
            self.calls.push(index);
        }
    }

    /// The script for a call that keeps its order: fixed windows are decided before the others, so one on a counter that
    /// an earlier call has for the ledger goes there too.
    fn script_in_order(&self, script: ScriptKind, work: &NodeWork) -> ScriptKind {
        let NodeWork::Charges(charges) = work else { return script };
        let keeps_order = charges.iter().any(|charge| charge.keeps_order);
        let is_of_ledger = |run: &Run| match &run.calls {
            RunCalls::Ledger(run) => run.has_counter_of(charges),
            _ => false,
        };
        if script == ScriptKind::Fixed && keeps_order && self.runs.iter().any(is_of_ledger) {
            return ScriptKind::Ledger;
        }
        script
    }

    pub(super) fn runs_of_calls(&self) -> &[usize] {
        &self.calls
    }

    /// The operation of its round trip, as metrics name it.
    pub(crate) const fn operation(&self) -> &'static str {
        match self.kind {
            Runs::Single | Runs::NodeWide | Runs::PerSlot => "EVALSHA",
            Runs::Transactions => "MULTI",
        }
    }

    /// The script of each run, by the order in which they are sent.
    pub(crate) fn scripts(&self) -> impl Iterator<Item = ScriptKind> {
        self.runs.iter().map(|run| run.script)
    }

    /// Sends it, and reads the replies to the calls, in their order. A script that the server does not know has not run;
    /// it is sent once more with its text.
    pub(crate) async fn run(
        self,
        connection: &mut Connection,
        metrics: &StoreMetrics,
    ) -> Vec<RedisResult<Reply>> {
        if let Some((work, assumed_now)) = self.transaction {
            let prefix = self.key_prefix;
            let reply = transactions::run(&work, assumed_now, prefix, connection, metrics).await;
            return vec![reply];
        }
        if self.keys == KeyDeclaration::Leaving {
            return vec![Err(self.why_left(connection).await)];
        }
        let commands = self.commands("EVALSHA", &self.runs);
        let began = Instant::now();
        let mut by_run = self.send(&commands, &self.runs, connection).await;
        let took = began.elapsed();
        let error = by_run.iter().find_map(|reply| reply.as_ref().err());
        let error_type = error.map(redis_error_type);
        for (run, reply) in self.runs.iter().zip(&mut by_run) {
            if reply.as_ref().is_err_and(is_unknown_script) {
                let run = slice::from_ref(run);
                let commands = self.commands("EVAL", run);
                let sent = self.send(&commands, run, connection);
                let again = metrics.measure("EVAL", sent).await.pop();
                *reply = again.unwrap_or_else(|| Err(unexpected_reply()));
            }
        }
        let replies = in_order(&self.calls, by_run);

        let refused = replies.iter().find_map(refusal);
        let error_type = error_type.or(refused.map(|refusal| refusal.code().to_owned()));
        metrics.record("EVALSHA", took, error_type);
        if refused == Some(WriteRefusal::Replica) {
            // A demoted server must not be used again on this connection.
            connection.retire();
        }
        replies
    }

    fn commands(&self, verb: &str, runs: &[Run]) -> Vec<u8> {
        let mut commands = Vec::with_capacity(4096);
        if self.is_importing() {
            // It announces that the next command is for a hash slot that the server does not have yet. If it fails, so
            // does the command.
            redis::cmd("ASKING").write_packed_command(&mut commands);
        }
        for run in runs {
            run.command(verb, self.keys).write_packed_command(&mut commands);
        }
        commands
    }

    async fn send(
        &self,
        commands: &[u8],
        runs: &[Run],
        connection: &mut Connection,
    ) -> Vec<RunReply> {
        let announced = usize::from(self.is_importing());
        let (mut skipped, mut unread) = (0..announced, runs.iter());
        let read = |reply: &[u8]| match skipped.next() {
            Some(_) => Ok(None),
            None => unread.next().ok_or_else(unexpected_reply)?.read(reply).map(Some),
        };
        let replies = connection.exchange(commands, announced + runs.len(), read).await;
        replies.into_iter().skip(announced).filter_map(Result::transpose).collect()
    }

    const fn is_importing(&self) -> bool {
        matches!(self.keys, KeyDeclaration::Importing | KeyDeclaration::ImportingUndeclared)
    }

    /// Why a server that is giving a hash slot away does not decide this: ASK if it has none of the keys.
    async fn why_left(&self, connection: &mut Connection) -> RedisError {
        let mut why = unexpected_reply();
        let keys = self.runs.iter().flat_map(|run| match &run.calls {
            RunCalls::Ledger(run) => run.keys(),
            RunCalls::Fixed(_) | RunCalls::Commit(_) => &[],
        });
        for key in keys {
            match connection.query::<u8>(redis::cmd("EXISTS").arg(key)).await {
                Err(error) => why = error,
                Ok(_) => {
                    return (ErrorKind::Server(ServerErrorKind::TryAgain), "it has a key").into();
                }
            }
        }
        why
    }
}

/// The reply of one run: Redis's time, and the verdict on each call.
type RunReply = RedisResult<(Timestamp, vec::IntoIter<ScriptVerdict>)>;

fn in_order(calls: &[usize], mut by_run: Vec<RunReply>) -> Vec<RedisResult<Reply>> {
    let mut replies = Vec::with_capacity(calls.len());
    for run in calls {
        replies.push(match by_run.get_mut(*run) {
            Some(Ok((now, of_run))) => match of_run.next() {
                Some(verdict) => Ok(Reply { now: *now, verdict }),
                None => Err(unexpected_reply()),
            },
            Some(Err(error)) => Err(error.clone()),
            None => Err(unexpected_reply()),
        });
    }
    replies
}

impl Run {
    fn command(&self, verb: &str, keys: KeyDeclaration) -> Cmd {
        let scripts = Scripts::on(keys);
        let script = match self.script {
            ScriptKind::Fixed => &scripts.fixed,
            ScriptKind::Commit => &scripts.commit,
            ScriptKind::Ledger => &scripts.ledger,
            ScriptKind::Counter => &scripts.counter,
        };
        match &self.calls {
            RunCalls::Fixed(run) => run.command(verb, script.named_by(verb), keys),
            RunCalls::Commit(run) => run.command(verb, script.named_by(verb), keys),
            RunCalls::Ledger(run) => run.command(verb, script.named_by(verb), keys),
        }
    }

    fn read(&self, reply: &[u8]) -> RunReply {
        if self.script == ScriptKind::Counter {
            let reply = counter::read(resp::value(reply)?).ok_or_else(unexpected_reply)?;
            return Ok((reply.now, vec![reply.verdict].into_iter()));
        }
        let reply = resp::integers(reply)?;
        let read = match &self.calls {
            RunCalls::Fixed(run) => run.read(&reply),
            RunCalls::Commit(run) => run.read(&reply),
            RunCalls::Ledger(run) => run.read(&reply),
        };
        let (now, verdicts) = read.ok_or_else(unexpected_reply)?;
        Ok((now, verdicts.into_iter()))
    }
}

pub(crate) fn refusal(reply: &RedisResult<Reply>) -> Option<WriteRefusal> {
    match reply {
        Ok(Reply { verdict: ScriptVerdict::WriteRefused(refusal), .. }) => Some(*refusal),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollkeeper_engine::rule::{Limit, Unit};

    use super::*;
    use crate::Clear;

    #[test]
    fn eight_plain_counters_and_two_logs_are_read_in_a_batch() {
        for (algorithm, runs) in [
            (Algorithm::FixedWindow, 8),
            (Algorithm::SlidingWindow, 8),
            (Algorithm::SlidingLog { remember: None }, 2),
        ] {
            let limit = Limit { algorithm, ..Limit::new(1, Unit::Day, 1).unwrap() };
            let counter = Counter::new("shop", &[], Arc::new(limit));
            let work = NodeWork::Read(Box::new(counter), Clear::No);
            let weight = ScriptKind::of(&work).weight(&work, Runs::Single);
            assert_eq!(WEIGHT_MAX / weight, runs, "{work:?}");
        }
    }
}
