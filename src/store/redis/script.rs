//! The scripts, how they are run, and what a run says. One file for each: its arguments and its reply.
//!
//! The Lua itself is in `lua/`. Which server a script runs on, and when, is left to `node` and `topology`.

pub mod counter;
pub mod fixed;
pub mod ledger;
pub(super) mod work;

use std::time::{Duration, Instant};

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind};

use super::wire::connection::Connection;
use crate::{
    engine::{ledger::Judgement, time::Timestamp},
    store::{
        StoreError,
        metrics::{StoreMetrics, redis_error_type},
    },
};

/// Where the script reads the time: Redis's own clock, once. A test may put another line here.
pub const CLOCK: &str = include_str!("lua/clock.lua");

/// What the scripts for any algorithm share, in this order.
const SHARED: [&str; 8] = [
    include_str!("lua/refusal.lua"),
    include_str!("lua/value.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/first_hit_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/token_bucket.lua"),
    include_str!("lua/charge.lua"),
];
const FIXED: [&str; 2] = [include_str!("lua/refusal.lua"), include_str!("lua/fixed.lua")];
const LEDGER: &str = include_str!("lua/ledger.lua");
const COUNTER: &str = include_str!("lua/counter.lua");

/// What the scripts reply for a call with a key that another server of the cluster has.
const ELSEWHERE: i64 = -7;

/// How a run names its keys to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDeclaration {
    /// In KEYS. On a cluster they must be in one slot, and a server that does not have it says so.
    Declared,
    /// In KEYS, for a server that is about to take over their hash slot, and has one of them or may create it.
    Importing,
    /// Not at all, to a server that is giving their hash slot away: it is only asked whether it has any of them. If
    /// not, its answer is ASK.
    Leaving,
    /// Among the other arguments, for a server that is about to take over their hash slot, and may create all of them.
    /// Of several declared ones it must have all.
    ImportingUndeclared,
    /// Among the other arguments. They may be in any slots of one server of a cluster. Calls whose keys
    /// are elsewhere are [`Elsewhere`](RedisOutcome::Elsewhere).
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
    fn write(self, command: &mut Cmd, keys: &[String], add_arguments: impl FnOnce(&mut Cmd)) {
        if self.are_declared() {
            command.arg(keys.len()).arg(keys);
            add_arguments(command);
        } else {
            command.arg(0);
            add_arguments(command);
            command.arg(keys).arg(keys.len());
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

/// The text of the script that looks at one counter, on this clock.
pub fn counter(clock: &str) -> String {
    clock.to_owned() + &SHARED.concat() + COUNTER
}

/// The scripts.
#[derive(Debug)]
pub struct Scripts {
    declared: CallScripts,
    undeclared: CallScripts,
    pub(super) counter: Script,
    pub(super) key_prefix: String,
}

/// The scripts that decide calls.
#[derive(Debug)]
pub(crate) struct CallScripts {
    pub(super) ledger: Script,
    pub(super) fixed: Script,
}

/// A script and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    source: String,
    hash: String,
}

/// What Redis says of one call, or of one look. Unless it is decided, nothing was charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisOutcome<T = Judgement> {
    /// It was decided.
    Decided(T),
    /// A window is not the present one.
    Stale,
    /// The counters of these charges are corrupt, and their limits do not decide the call.
    Corrupt(Vec<usize>),
    /// The call would be admitted, but the server takes no writes.
    WriteRefused(WriteRefusal),
    /// Another server of the cluster has a key of the call.
    Elsewhere,
}

/// What Redis says, and the time by its clock.
#[derive(Debug)]
pub struct Reply<T = Judgement> {
    /// Redis's time.
    pub now: Timestamp,
    /// What it says.
    pub outcome: RedisOutcome<T>,
}

/// Why a server takes no writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteRefusal {
    /// It is out of memory, and evicts nothing.
    Memory,
    /// It has too few replicas.
    Replicas,
    /// It cannot save to its disk.
    Disk,
    /// It is a replica.
    Replica,
    /// The user may not run a command.
    Rights,
}

impl WriteRefusal {
    /// Those that an error of the server says of itself.
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

    /// The refusal that an error of Redis's says.
    pub(super) fn from_error(error: &RedisError) -> Option<Self> {
        Self::OF_SERVER.into_iter().find(|refusal| error.code() == Some(refusal.code()))
    }

    /// The code of Redis's error.
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
    /// The scripts, on keys that begin with `key_prefix`.
    pub fn new(key_prefix: String) -> Self {
        let [declared, undeclared] =
            [KeyDeclaration::Declared, KeyDeclaration::Undeclared].map(|keys| CallScripts {
                ledger: Script::new(ledger(CLOCK, keys)),
                fixed: Script::new(fixed(CLOCK, keys)),
            });
        Self { declared, undeclared, counter: Script::new(counter(CLOCK)), key_prefix }
    }

    /// The scripts that decide calls, and take their keys like this.
    pub(super) const fn on(&self, keys: KeyDeclaration) -> &CallScripts {
        if keys.are_declared() { &self.declared } else { &self.undeclared }
    }
}

impl Script {
    fn new(source: String) -> Self {
        Self { hash: redis::Script::new(&source).get_hash().to_owned(), source }
    }
}

/// One run of a script.
pub trait ScriptRun: Sync {
    /// The command `verb` that runs the script: EVALSHA and its hash, or EVAL and its text.
    fn command(&self, verb: &str, script: &str, keys: KeyDeclaration) -> Cmd;
}

/// What runs in one round trip came to.
pub(crate) struct Ran<T> {
    /// One for each run.
    pub(super) replies: Vec<RedisResult<T>>,
    /// How long the round trip took.
    pub(super) took: Duration,
    /// The type of its first error.
    pub(super) error_type: Option<String>,
}

/// Runs scripts in one round trip, and reads each reply by `read`. A script that the server does not know,
/// since it was restarted or flushed, has not run; it is sent once more with its text.
pub(super) async fn run<T>(
    runs: &[(&Script, &dyn ScriptRun)],
    keys: KeyDeclaration,
    connection: &mut Connection,
    metrics: &StoreMetrics,
    read: impl Fn(&[u8]) -> RedisResult<T>,
) -> Ran<T> {
    let mut commands = Vec::with_capacity(4096);
    for (script, run) in runs {
        run.command("EVALSHA", &script.hash, keys).write_packed_command(&mut commands);
    }
    let began = Instant::now();
    ask_for_import(keys, connection).await;
    let mut replies = connection.exchange(&commands, runs.len(), &read).await;
    let took = began.elapsed();
    let error = replies.iter().find_map(|reply| reply.as_ref().err());
    let error_type = error.map(redis_error_type);
    for ((script, run), reply) in runs.iter().zip(&mut replies) {
        if reply.as_ref().is_err_and(is_unknown_script) {
            let command = run.command("EVAL", &script.source, keys).get_packed_command();
            ask_for_import(keys, connection).await;
            let exchanged = connection.exchange(&command, 1, &read);
            let again = metrics.measure("EVAL", exchanged).await.pop();
            *reply = again.unwrap_or_else(|| Err(unexpected_reply()));
        }
    }
    Ran { replies, took, error_type }
}

/// Announces that the next command is for a hash slot that the server does not have yet.
async fn ask_for_import(keys: KeyDeclaration, connection: &mut Connection) {
    if matches!(keys, KeyDeclaration::Importing | KeyDeclaration::ImportingUndeclared) {
        // If it fails, so does the command.
        drop(connection.query::<()>(&redis::cmd("ASKING")).await);
    }
}

/// Why a server that is giving a hash slot away does not decide a call on these keys of it: ASK if it has none of them.
pub(super) async fn why_left(keys: &[String], connection: &mut Connection) -> RedisError {
    let mut why = unexpected_reply();
    for key in keys {
        match connection.query::<u8>(redis::cmd("EXISTS").arg(key)).await {
            Err(error) => why = error,
            Ok(_) => return (ErrorKind::Server(ServerErrorKind::TryAgain), "it has a key").into(),
        }
    }
    why
}

/// Whether a server of a cluster has refused a run because it does not have all of its keys now.
pub(super) fn is_elsewhere(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    match error.kind() {
        ErrorKind::Server(Ask | ClusterDown | Moved | TryAgain) => true,
        // So says a serverless cluster while it scales.
        _ => error.detail().is_some_and(|detail| detail.contains("non local key")),
    }
}

/// Whether a node of a cluster says that it serves no hash slot at all, and not only that one has no owner.
pub(super) fn is_cluster_down(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ClusterDown)
        && error.detail().is_some_and(|detail| detail.starts_with("The cluster is down"))
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

pub(super) fn unexpected_reply() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "the script's reply has an unexpected form").into()
}

fn timestamp(seconds: i64, micros: i64) -> Option<Timestamp> {
    let millis = seconds.checked_mul(1000)?.checked_add(micros / 1000)?;
    Some(Timestamp::from_millis(u64::try_from(millis).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithm::Algorithm;

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
