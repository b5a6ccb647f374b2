//! The scripts. One file for each: how it is asked, and what its reply says.

pub mod counter;
pub mod fixed;
pub mod ledger;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};

use crate::engine::{ledger::Tally, time::Timestamp};

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
    pub(super) counter: Script,
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
}

impl Script {
    fn new(source: String) -> Self {
        Self { hash: redis::Script::new(&source).get_hash().to_owned(), source }
    }
}

/// A server that was restarted or flushed has forgotten the script, and has run nothing.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

pub(super) fn another_form() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "the script's reply has another form").into()
}

/// Calls that one script decides in one run.
pub trait Question: Sync {
    /// Whether there is none.
    fn is_empty(&self) -> bool;

    /// The command `verb` that runs the script: EVALSHA and its hash, or EVAL and its text.
    fn command(&self, verb: &str, script: &str) -> Cmd;

    /// What the reply says of each call, in the order in which they were added, and Redis's time;
    /// `None` if it has another form.
    fn read(&self, reply: &[i64]) -> Option<(Timestamp, Vec<Answer>)>;
}

fn timestamp(seconds: i64, micros: i64) -> Option<Timestamp> {
    let millis = seconds.checked_mul(1000)?.checked_add(micros / 1000)?;
    Some(Timestamp::from_millis(u64::try_from(millis).ok()?))
}
