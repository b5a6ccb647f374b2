//! The scripts, how they are run, and what a run replies. One file for each: its arguments and its reply.
//!
//! The Lua itself is in `lua/`. Which server a script runs on, and when, is left to `node` and `topology`.

pub mod commit;
pub mod counter;
pub mod fixed;
mod keys;
pub mod ledger;
pub(super) mod work;

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};
use tollkeeper_engine::{
    algorithm::account::COUNT_MAX,
    ledger::{CounterState, Verdict},
    time::Timestamp,
};

use crate::StoreError;

/// Where the script reads the time: Redis's own clock, once. A test may put another line here.
pub const CLOCK: &str = include_str!("lua/clock.lua");

/// What the scripts for any algorithm share, in this order.
const SHARED: [&str; 10] = [
    include_str!("lua/refusal.lua"),
    include_str!("lua/value.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/first_hit_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/token_bucket.lua"),
    include_str!("lua/in_flight.lua"),
    include_str!("lua/charge.lua"),
    include_str!("lua/holds.lua"),
];
const FIXED: [&str; 2] = [include_str!("lua/refusal.lua"), include_str!("lua/fixed.lua")];
const COMMIT: &str = include_str!("lua/commit.lua");
const LEDGER: &str = include_str!("lua/ledger.lua");
const COUNTER: &str = include_str!("lua/counter.lua");

/// What the scripts reply for a call with a key that another server of the cluster has.
const ELSEWHERE: i64 = -7;

/// What the scripts reply for a call of which a command failed for a reason that has no code, see `lua/refusal.lua`.
const FAILED: i64 = -9;

/// What is added to the refusal of a call that is denied, see `lua/ledger.lua`.
const UNWRITTEN: i64 = -10;

/// How a run names its keys to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDeclaration {
    /// In KEYS. On a cluster they must be in one slot, and a server that does not have it says so.
    Declared,
    /// In KEYS, for a server that is about to take over their hash slot, and has one of them or may create it.
    Importing,
    /// Not at all, and no script runs: EXISTS on each key has a server that gives their hash slot away answer ASK if it has
    /// none of them.
    Leaving,
    /// Among the other arguments, for a server that is about to take over their hash slot, and may create all of them.
    /// Of several declared ones it must have all.
    ImportingUndeclared,
    /// Among the other arguments. They may be in any slots of one server of a cluster. Calls whose keys
    /// are elsewhere are [`Elsewhere`](ScriptVerdict::Elsewhere).
    Undeclared,
}

impl KeyDeclaration {
    /// What scripts begin with, after the clock.
    const fn prologue(self) -> &'static str {
        if self.are_declared() {
            include_str!("lua/declared.lua")
        } else {
            include_str!("lua/undeclared.lua")
        }
    }

    const fn are_declared(self) -> bool {
        !matches!(self, Self::ImportingUndeclared | Self::Undeclared)
    }

    /// Adds the keys of a run, and its other arguments by `add_arguments`.
    fn write(self, command: &mut Cmd, keys: &[&[String]], add_arguments: impl FnOnce(&mut Cmd)) {
        let count: usize = keys.iter().map(|keys| keys.len()).sum();
        if self.are_declared() {
            command.arg(count).arg(keys);
            add_arguments(command);
        } else {
            command.arg(0);
            add_arguments(command);
            command.arg(keys).arg(count);
        }
    }
}

/// The text of the script that decides calls, on this clock.
pub fn ledger(clock: &str, keys: KeyDeclaration) -> String {
    clock.to_owned() + keys.prologue() + &SHARED.concat() + LEDGER
}

/// The text of the script that decides calls on fixed windows, on this clock.
pub fn fixed(clock: &str, keys: KeyDeclaration) -> String {
    clock.to_owned() + keys.prologue() + &FIXED.concat()
}

/// The text of the script that commits holds on fixed windows, on this clock.
pub fn commit(clock: &str, keys: KeyDeclaration) -> String {
    clock.to_owned() + keys.prologue() + COMMIT
}

/// The text of the script that reads one counter, on this clock.
pub fn counter(clock: &str) -> String {
    clock.to_owned() + &SHARED.concat() + COUNTER
}

/// The scripts that decide calls, and the one that reads a counter.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(super) fixed: Script,
    pub(super) commit: Script,
    pub(super) ledger: Script,
    pub(super) counter: Script,
}

#[derive(Debug)]
pub(crate) struct Script {
    source: String,
    hash: String,
}

/// Redis's verdict on one call, or its reading of a counter. Unless it is decided or failed, nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptVerdict {
    Decided(Verdict),
    /// The call is denied, and the server refuses to write what still counts: debits, refunds and commits.
    Unwritten(Verdict, WriteRefusal),
    Read(CounterState),
    /// A window is not the present one.
    Stale,
    /// The counters of these charges are corrupt, and their limits do not decide the call.
    Corrupt(Vec<usize>),
    /// The call would be admitted, but the server takes no writes.
    WriteRefused(WriteRefusal),
    /// A command of the call failed for another reason. Those before it may have been done.
    Failed,
    /// Another server of the cluster has a key of the call.
    Elsewhere,
}

impl ScriptVerdict {
    /// What an error means that a script replies as this integer.
    fn from_error(code: i64) -> Option<Self> {
        if code == FAILED {
            return Some(Self::Failed);
        }
        WriteRefusal::from_reply(code).map(Self::WriteRefused)
    }
}

/// Redis's reply, and the time by its clock.
#[derive(Debug)]
pub struct Reply {
    pub now: Timestamp,
    pub verdict: ScriptVerdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteRefusal {
    /// It is out of memory, and evicts nothing.
    Memory,
    /// It has too few replicas.
    Replicas,
    /// It cannot save to its disk.
    Disk,
    Replica,
    /// The user may not run a command.
    Rights,
}

impl WriteRefusal {
    /// The refusals that an error of the server names by itself.
    const OF_SERVER: [Self; 4] = [Self::Memory, Self::Replicas, Self::Disk, Self::Replica];

    /// The refusal that `lua/refusal.lua` writes as this integer.
    fn from_reply(code: i64) -> Option<Self> {
        match code {
            -3 => Some(Self::Memory),
            -4 => Some(Self::Replicas),
            -5 => Some(Self::Disk),
            -6 => Some(Self::Replica),
            -8 => Some(Self::Rights),
            _ => None,
        }
    }

    pub(super) fn from_error(error: &RedisError) -> Option<Self> {
        Self::OF_SERVER.into_iter().find(|refusal| error.code() == Some(refusal.code()))
    }

    pub const fn code(self) -> &'static str {
        match self {
            Self::Memory => "OOM",
            Self::Replicas => "NOREPLICAS",
            Self::Disk => "MISCONF",
            Self::Replica => "READONLY",
            Self::Rights => "NOPERM",
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Memory => "it is out of memory",
            Self::Replicas => "it has too few replicas",
            Self::Disk => "it cannot save to disk",
            Self::Replica => "it is a read-only replica",
            Self::Rights => "the user may not run a command of the limit's algorithm",
        }
    }
}

impl From<WriteRefusal> for StoreError {
    fn from(refusal: WriteRefusal) -> Self {
        let (code, reason) = (refusal.code(), refusal.reason());
        Self::TakesNoWrites(format!("it takes no writes, since {reason} ({code})"))
    }
}

impl Scripts {
    /// The scripts that take their keys like this.
    pub(super) fn on(keys: KeyDeclaration) -> &'static Self {
        static DECLARED: LazyLock<Scripts> =
            LazyLock::new(|| Scripts::new(KeyDeclaration::Declared));
        static UNDECLARED: LazyLock<Scripts> =
            LazyLock::new(|| Scripts::new(KeyDeclaration::Undeclared));
        if keys.are_declared() { &DECLARED } else { &UNDECLARED }
    }

    fn new(keys: KeyDeclaration) -> Self {
        Self {
            fixed: Script::new(fixed(CLOCK, keys)),
            commit: Script::new(commit(CLOCK, keys)),
            ledger: Script::new(ledger(CLOCK, keys)),
            counter: Script::new(counter(CLOCK)),
        }
    }
}

impl Script {
    fn new(source: String) -> Self {
        Self { hash: redis::Script::new(&source).get_hash().to_owned(), source }
    }

    /// How the command `verb` names it: EVALSHA by its hash, EVAL by its text.
    pub(super) fn named_by(&self, verb: &str) -> &str {
        if verb == "EVAL" { &self.source } else { &self.hash }
    }
}

/// Whether a server of a cluster has refused a run because it does not have all of its keys now.
pub(super) fn is_elsewhere(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    match error.kind() {
        ErrorKind::Server(Ask | ClusterDown | Moved | TryAgain) => true,
        // A serverless cluster replies so while it scales.
        _ => error.detail().is_some_and(|detail| detail.contains("non local key")),
    }
}

/// Whether a node of a cluster serves no hash slot at all, and not only one has no owner.
pub(super) fn is_cluster_down(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ClusterDown)
        && error.detail().is_some_and(|detail| detail.starts_with("The cluster is down"))
}

/// Whether a run that a server has answered with this error may have done something; `None` if it is no answer of the
/// server.
pub(super) fn has_run(error: &RedisError) -> Option<bool> {
    let code = error.code()?;
    let refusals = ["BUSY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM", "EXECABORT"];
    let is_refused = refusals.contains(&code);
    Some(!is_refused && WriteRefusal::from_error(error).is_none())
}

/// Whether a server does not know a script, since it was restarted or flushed. The script has not run.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

pub(super) fn unexpected_reply() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "the script's reply has an unexpected form").into()
}

fn timestamp(seconds: i64, micros: i64) -> Option<Timestamp> {
    let millis = seconds.checked_mul(1000)?.checked_add(micros / 1000)?;
    Some(Timestamp::from_millis(u64::try_from(millis).ok()?))
}

fn count(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|count| *count <= COUNT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollkeeper_engine::algorithm::Algorithm;

    #[test]
    fn every_algorithm_has_its_script() {
        let scripts = SHARED.concat();
        for algorithm in Algorithm::all(1, None) {
            let (name, short_name) = (algorithm.name(), algorithm.short_name());
            assert!(scripts.contains(&format!("\nALGORITHMS.{short_name} = {name}\n")), "{name}");
            let is_aligned = scripts.contains(&format!("local {name} = {{ aligned = true }}\n"));
            assert_eq!(is_aligned, algorithm.is_aligned(), "{name}");
        }
    }
}
