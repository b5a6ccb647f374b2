//! A look at one counter, as `lua/counter.lua` takes it.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, RedisResult, Value, from_redis_value};

use super::{
    KeyDeclaration, RedisOutcome, Reply, ScriptRun, Scripts, ledger::LedgerRun, run, timestamp,
    unexpected_reply,
};
use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, CounterState, Remembered},
        request::Hits,
        time::Timestamp,
    },
    store::{
        Clear,
        metrics::StoreMetrics,
        redis::{
            node::link::Question,
            wire::{connection::Connection, resp},
        },
    },
};

/// One look: the arguments of a look that is judged, and whether the counter is cleared.
struct LookRun(LedgerRun);

impl LookRun {
    fn new(counter: &Counter, clear: Clear, assumed_now: Timestamp, key_prefix: &str) -> Self {
        let look = Charge { counter: counter.clone(), hits: Hits::Look, caller: None };
        let mut look_run = LedgerRun::default();
        look_run.add(&Arc::from([look]), assumed_now, key_prefix);
        look_run.arguments.push(match clear {
            Clear::No => "show".to_owned(),
            Clear::Yes => "clear".to_owned(),
        });
        Self(look_run)
    }
}

impl ScriptRun for LookRun {
    fn command(&self, verb: &str, script: &str, keys: KeyDeclaration) -> Cmd {
        self.0.command(verb, script, keys)
    }
}

/// A look at one counter.
pub(crate) struct ScriptLook<'look> {
    pub(crate) scripts: &'look Scripts,
    pub(crate) counter: &'look Counter,
    pub(crate) clear: Clear,
    pub(crate) keys: KeyDeclaration,
}

impl Question for ScriptLook<'_> {
    type Answer = CounterState;

    async fn ask(
        &self,
        connection: &mut Connection,
        assumed_now: Timestamp,
        metrics: &StoreMetrics,
    ) -> RedisResult<Reply<CounterState>> {
        let Self { scripts, counter, clear, keys } = *self;
        let keys = match keys {
            KeyDeclaration::ImportingUndeclared => KeyDeclaration::Importing,
            keys => keys,
        };
        let look = LookRun::new(counter, clear, assumed_now, &scripts.key_prefix);
        let runs: [(_, &dyn ScriptRun); 1] = [(&scripts.counter, &look)];
        let mut ran = run(&runs, keys, connection, metrics, resp::value).await;
        metrics.record("EVALSHA", ran.took, ran.error_type);
        let reply = ran.replies.pop().ok_or_else(unexpected_reply)??;
        read_look(reply).ok_or_else(unexpected_reply)
    }
}

fn read_look(reply: Vec<Value>) -> Option<Reply<CounterState>> {
    let mut numbers = Vec::new();
    let mut remembered = Vec::new();
    for value in reply {
        match value {
            Value::Int(number) => numbers.push(number),
            // What somebody else wrote between our entries is left out.
            other => {
                let entry = from_redis_value::<String>(other).ok();
                remembered.extend(entry.and_then(|entry| one_remembered(&entry)));
            }
        }
    }
    let [seconds, micros, verdict, used, remaining, reset] = numbers[..] else { return None };
    let outcome = match verdict {
        -1 => RedisOutcome::Stale,
        -2 => RedisOutcome::Corrupt(vec![0]),
        _ => RedisOutcome::Decided(CounterState {
            used: u64::try_from(used).ok()?,
            remaining: u32::try_from(remaining).ok()?,
            reset: Duration::from_millis(u64::try_from(reset).ok()?),
            remembered,
        }),
    };
    Some(Reply { now: timestamp(seconds, micros)?, outcome })
}

/// `at sum hits` and perhaps the caller, as `lua/sliding_log.lua` writes it.
fn one_remembered(entry: &str) -> Option<Remembered> {
    let mut words = entry.split(' ');
    let at = Timestamp::from_millis(words.next()?.parse().ok()?);
    let hits = words.nth(1)?.parse().ok()?;
    Some(Remembered { at, hits, caller: words.next().map(Into::into) })
}
