//! A look at one counter, as `lua/counter.lua` takes it.

use std::time::Duration;

use redis::{RedisResult, Value, from_redis_value};

use super::{
    Question as _, Script, Scripts, another_form, is_unknown_script, ledger::Run, timestamp,
};
use crate::{
    engine::{
        key::Counter,
        ledger::{Charge, Remembered, Standing},
        request::Hits,
        time::Timestamp,
    },
    store::{Clear, redis::connection::Connection},
    telemetry::StoreMetrics,
};

/// What came of a look at one counter.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Looked {
    /// It stands so.
    Standing(Standing),
    /// Its window is not the present one.
    Stale,
    /// It holds no count.
    Unreadable,
}

impl Scripts {
    /// Looks at one counter, in the window of `stamp`.
    pub(in crate::store::redis) async fn look(
        &self,
        connection: &mut Connection,
        counter: &Counter,
        clear: Clear,
        stamp: Timestamp,
        metrics: &StoreMetrics,
    ) -> RedisResult<(Timestamp, Looked)> {
        let look = Charge { counter: counter.clone(), hits: Hits::Look, caller: None };
        let mut call = Run::default();
        call.add(&[look], stamp, &self.key_prefix);
        call.arguments.push(match clear {
            Clear::No => "show".to_owned(),
            Clear::Yes => "clear".to_owned(),
        });
        let Script { source, hash } = &self.counter;
        let command = call.command("EVALSHA", hash);
        let mut reply = metrics.round_trip("EVALSHA", connection.query(&command)).await;
        if reply.as_ref().is_err_and(is_unknown_script) {
            let command = call.command("EVAL", source);
            reply = metrics.round_trip("EVAL", connection.query(&command)).await;
        }
        read_look(reply?).ok_or_else(another_form)
    }
}

fn read_look(reply: Vec<Value>) -> Option<(Timestamp, Looked)> {
    let mut numbers = Vec::new();
    let mut remembered = Vec::new();
    for value in reply {
        match value {
            Value::Int(number) => numbers.push(number),
            // What somebody else wrote between ours is left out.
            other => {
                let entry = from_redis_value::<String>(other).ok();
                remembered.extend(entry.and_then(|entry| one_remembered(&entry)));
            }
        }
    }
    let [seconds, micros, outcome, used, remaining, reset] = numbers[..] else { return None };
    let looked = match outcome {
        -1 => Looked::Stale,
        -2 => Looked::Unreadable,
        _ => Looked::Standing(Standing {
            used: u64::try_from(used).ok()?,
            remaining: u32::try_from(remaining).ok()?,
            reset: Duration::from_millis(u64::try_from(reset).ok()?),
            remembered,
        }),
    };
    Some((timestamp(seconds, micros)?, looked))
}

/// `at sum hits` and perhaps the caller, as `lua/sliding_log.lua` writes it.
fn one_remembered(entry: &str) -> Option<Remembered> {
    let mut words = entry.split(' ');
    let at = Timestamp::from_millis(words.next()?.parse().ok()?);
    let hits = words.nth(1)?.parse().ok()?;
    Some(Remembered { at, hits, caller: words.next().map(Into::into) })
}
