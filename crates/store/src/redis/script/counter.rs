//! Reading and resetting one counter, as `lua/counter.lua` does it.

use std::time::Duration;

use redis::{Value, from_redis_value};
use tollkeeper_engine::{
    ledger::{CounterState, Remembered},
    time::Timestamp,
};

use super::{Reply, ScriptVerdict, count, timestamp};

/// The counter's state by the reply; `None` if it has another form.
pub fn read(reply: Vec<Value>) -> Option<Reply> {
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
    let [seconds, micros, verdict, used, remaining, reset, held, open_holds, closed] = numbers[..]
    else {
        return None;
    };
    let verdict = match verdict {
        -1 => ScriptVerdict::Stale,
        -2 => ScriptVerdict::Corrupt(vec![0]),
        _ => ScriptVerdict::Read(CounterState {
            used: count(used)?,
            remaining: count(remaining)?,
            held: count(held)?,
            open_holds: count(open_holds)?,
            credit: 0,
            closed: closed == 1,
            reset: Duration::from_millis(u64::try_from(reset).ok()?),
            remembered,
        }),
    };
    Some(Reply { now: timestamp(seconds, micros)?, verdict })
}

/// `at sum hits` and perhaps the caller, as `lua/sliding_log.lua` writes it.
pub(in crate::redis) fn one_remembered(entry: &str) -> Option<Remembered> {
    let mut words = entry.split(' ');
    let at = Timestamp::from_millis(words.next()?.parse().ok()?);
    let hits = words.nth(1)?.parse().ok()?;
    Some(Remembered { at, hits, caller: words.next().map(Into::into) })
}
