//! Calls that go to one server together, in one write: a script run for those on fixed windows, and one for the
//! others; or such runs for each hash slot.

use std::vec;

use redis::RedisResult;

use crate::{
    engine::time::Timestamp,
    store::{
        metrics::StoreMetrics,
        redis::{
            script::{
                self, KeyDeclaration, RedisOutcome, Reply, Script, ScriptRun, Scripts,
                WriteRefusal, fixed, ledger::LedgerRun, unexpected_reply, work::NodeWork,
            },
            wire::{connection::Connection, hash_slot::HashSlot, resp},
        },
    },
};

/// The most weight of one batch, except for one heavier call; see [`fixed::KEYS_MAX`].
pub(super) const WEIGHT_MAX: usize = fixed::KEYS_MAX;

/// The weight of a charge for the ledger, by the time that it costs Redis; one on a fixed window weighs 1.
const LEDGER_WEIGHT: usize = 6;

/// The least weight of a call that may need a run of its own.
const RUN_WEIGHT: usize = 3;

/// How the calls of a batch are put into runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// One run for all, with declared keys: on a server that is no part of a cluster.
    Single,
    /// One run for all, with undeclared keys.
    NodeWide,
    /// One run for each hash slot, with declared keys.
    PerSlot,
}

/// The script that decides a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptKind {
    Fixed,
    Ledger,
}

impl ScriptKind {
    /// The cheapest script that can do this.
    pub(crate) fn of(work: &NodeWork) -> Self {
        match work {
            NodeWork::Charges(charges) if fixed::accepts(charges) => Self::Fixed,
            NodeWork::Charges(_) | NodeWork::GiveBack(_) => Self::Ledger,
        }
    }

    /// Its name in metrics and spans.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Ledger => "ledger",
        }
    }

    /// The time that it costs Redis, relative to other work.
    pub(crate) fn weight(self, work: &NodeWork, runs: Runs) -> usize {
        let weight = match self {
            Self::Fixed => work.len(),
            Self::Ledger => LEDGER_WEIGHT * work.len(),
        };
        match runs {
            Runs::Single | Runs::NodeWide => weight,
            Runs::PerSlot => weight.max(RUN_WEIGHT),
        }
    }
}

/// Calls in the order in which they were added.
#[derive(Debug)]
pub(crate) struct Batch {
    kind: Runs,
    runs: Vec<Run>,
    /// The index of each call's run.
    calls: Vec<usize>,
}

/// Calls that one script decides.
#[derive(Debug)]
struct Run {
    /// The hash slot of all keys, if each has a run of its own.
    slot: Option<HashSlot>,
    calls: RunCalls,
}

#[derive(Debug)]
enum RunCalls {
    Fixed(fixed::FixedRun),
    Ledger(LedgerRun),
}

impl Batch {
    pub(crate) const fn new(kind: Runs) -> Self {
        Self { kind, runs: Vec::new(), calls: Vec::new() }
    }

    /// Adds a call in the windows that hold `assumed_now`, on keys that begin with `key_prefix`. All
    /// calls together must not weigh more than [`WEIGHT_MAX`], except for one alone.
    pub(crate) fn add(
        &mut self,
        kind: ScriptKind,
        work: &NodeWork,
        assumed_now: Timestamp,
        key_prefix: &str,
    ) {
        let slot = match self.kind {
            Runs::Single | Runs::NodeWide => None,
            Runs::PerSlot => work.slot(),
        };
        let known = self.runs.iter().position(|run| run.slot == slot && run.calls.kind() == kind);
        let index = known.unwrap_or(self.runs.len());
        if known.is_none() {
            self.runs.push(Run { slot, calls: RunCalls::new(kind) });
        }
        if let Some(run) = self.runs.get_mut(index) {
            run.calls.add(work, assumed_now, key_prefix);
            self.calls.push(index);
        }
    }

    /// The index of each call's run.
    pub(super) fn runs_of_calls(&self) -> &[usize] {
        &self.calls
    }

    /// The script of each run, by the order in which they are sent.
    pub(crate) fn scripts(&self) -> impl Iterator<Item = ScriptKind> {
        self.runs.iter().map(|run| run.calls.kind())
    }

    /// Sends it, and reads the replies to the calls, in their order.
    pub(crate) async fn run(
        self,
        connection: &mut Connection,
        scripts: &Scripts,
        metrics: &StoreMetrics,
    ) -> Vec<RedisResult<Reply>> {
        let keys = match self.kind {
            Runs::Single | Runs::PerSlot => KeyDeclaration::Declared,
            Runs::NodeWide => KeyDeclaration::Undeclared,
        };
        let mut runs: Vec<(_, &dyn ScriptRun)> = Vec::with_capacity(self.runs.len());
        for Run { calls, .. } in &self.runs {
            runs.push((calls.script(scripts, keys), calls.as_run()));
            metrics.script_ran(calls.kind().name());
        }
        let ran = script::run(&runs, keys, connection, metrics, resp::integers).await;
        let mut by_run = Vec::with_capacity(self.runs.len());
        for (run, reply) in self.runs.iter().zip(ran.replies) {
            by_run.push(run.calls.read(reply));
        }
        let replies = in_order(&self.calls, by_run);

        let refused = replies.iter().find_map(refusal);
        let error_type = ran.error_type.or(refused.map(|refusal| refusal.code().to_owned()));
        metrics.record("EVALSHA", ran.took, error_type);
        if refused == Some(WriteRefusal::Replica) {
            // A demoted server must not be asked again on this connection.
            connection.retire();
        }
        replies
    }
}

/// What one run replies: Redis's time, and what it says of each call.
type RunReply = RedisResult<(Timestamp, vec::IntoIter<RedisOutcome>)>;

/// The replies of all runs, in the order of the calls.
fn in_order(calls: &[usize], mut by_run: Vec<RunReply>) -> Vec<RedisResult<Reply>> {
    let mut replies = Vec::with_capacity(calls.len());
    for run in calls {
        replies.push(match by_run.get_mut(*run) {
            Some(Ok((now, of_run))) => match of_run.next() {
                Some(outcome) => Ok(Reply { now: *now, outcome }),
                None => Err(unexpected_reply()),
            },
            Some(Err(error)) => Err(error.clone()),
            None => Err(unexpected_reply()),
        });
    }
    replies
}

impl RunCalls {
    fn new(kind: ScriptKind) -> Self {
        match kind {
            ScriptKind::Fixed => Self::Fixed(fixed::FixedRun::default()),
            ScriptKind::Ledger => Self::Ledger(LedgerRun::default()),
        }
    }

    const fn kind(&self) -> ScriptKind {
        match self {
            Self::Fixed(_) => ScriptKind::Fixed,
            Self::Ledger(_) => ScriptKind::Ledger,
        }
    }

    fn add(&mut self, work: &NodeWork, assumed_now: Timestamp, key_prefix: &str) {
        match (self, work) {
            (Self::Fixed(run), NodeWork::Charges(charges)) => {
                run.add(charges, assumed_now, key_prefix)
            }
            (Self::Ledger(run), work) => run.add_work(work, assumed_now, key_prefix),
            (Self::Fixed(_), NodeWork::GiveBack(_)) => {}
        }
    }

    fn script<'scripts>(
        &self,
        scripts: &'scripts Scripts,
        keys: KeyDeclaration,
    ) -> &'scripts Script {
        match self {
            Self::Fixed(_) => &scripts.on(keys).fixed,
            Self::Ledger(_) => &scripts.on(keys).ledger,
        }
    }

    fn as_run(&self) -> &dyn ScriptRun {
        match self {
            Self::Fixed(run) => run,
            Self::Ledger(run) => run,
        }
    }

    fn read(&self, reply: RedisResult<Vec<i64>>) -> RunReply {
        let read = match self {
            Self::Fixed(run) => run.read(&reply?),
            Self::Ledger(run) => run.read(&reply?),
        };
        let (now, outcomes) = read.ok_or_else(unexpected_reply)?;
        Ok((now, outcomes.into_iter()))
    }
}

pub(crate) fn refusal(reply: &RedisResult<Reply>) -> Option<WriteRefusal> {
    match reply {
        Ok(Reply { outcome: RedisOutcome::WriteRefused(refusal), .. }) => Some(*refusal),
        _ => None,
    }
}
