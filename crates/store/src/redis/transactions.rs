//! Calls in a Redis that runs no scripts: fixed windows, by INCRBY and TIME in one MULTI; and the logs of calls with an id.
//!
//! The charge is made first, and what the answers show to be too much is given back before the call
//! is answered. So a call may be denied too early for an instant; single hits on one counter are
//! exact. A call with refunds reads under WATCH instead, and starts again if a counter has changed.

mod call;
mod exchange;

use std::time::Duration;

use redis::{RedisResult, Value, from_redis_value};
use tollkeeper_engine::{
    algorithm::{Algorithm, hold_record::HoldRecord},
    key::Counter,
    ledger::{Charge, CounterState, Fit, Tally, Verdict},
    time::Timestamp,
};

use self::{
    call::TransactionCall,
    exchange::{account, count, exchange, transaction},
};
use super::{
    script::{Reply, ScriptVerdict, counter::one_remembered, work::NodeWork},
    wire::connection::Connection,
};
use crate::{Clear, metrics::StoreMetrics};

/// Does this work once, in the windows that hold `assumed_now`, on keys that begin with `key_prefix`. All charges must be
/// on fixed windows, or there is one on a log.
pub(super) async fn run(
    work: &NodeWork,
    assumed_now: Timestamp,
    key_prefix: &str,
    connection: &mut Connection,
    metrics: &StoreMetrics,
) -> RedisResult<Reply> {
    match work {
        NodeWork::Charges(charges)
            if let [hit] = &charges[..]
                && is_log(&hit.counter) =>
        {
            write_log(hit, assumed_now, key_prefix, connection, metrics).await
        }
        NodeWork::Charges(charges) => {
            let call = TransactionCall::new(charges, key_prefix, assumed_now);
            call.run(connection, metrics).await
        }
        NodeWork::Read(counter, clear) => {
            read(counter, *clear, assumed_now, key_prefix, connection, metrics).await
        }
        // Only parts of calls are given back, and all counters are on one server.
        NodeWork::GiveBack(_) => {
            Ok(Reply { now: assumed_now, verdict: ScriptVerdict::Decided(Verdict::default()) })
        }
    }
}

/// Reads a counter. One that is reset is read and deleted at once.
async fn read(
    counter: &Counter,
    clear: Clear,
    assumed_now: Timestamp,
    key_prefix: &str,
    connection: &mut Connection,
    metrics: &StoreMetrics,
) -> RedisResult<Reply> {
    let limit = &counter.limit;
    let assumed = limit.window.at(assumed_now);
    let key = key_prefix.to_owned() + &counter.key(assumed.start);
    let mut reads = match clear {
        // Without memory a server refuses every command inside of a transaction.
        Clear::No | Clear::Show => redis::pipe(),
        Clear::Holds | Clear::Yes => transaction(),
    };
    reads.ignore_errors();
    reads.cmd("GET").arg(&key);
    if clear == Clear::Yes {
        reads.cmd("DEL").arg(&key).ignore();
    }
    if clear.ends_holds() {
        let reset = key_prefix.to_owned() + &counter.reset_key();
        reads.cmd("SET").arg(reset).arg(assumed_now.as_millis());
        reads.arg("PX").arg(HoldRecord::RESET_MS).ignore();
    }
    reads.cmd("TIME");
    let (now, mut answers) = exchange("MULTI", &reads, connection, metrics).await?;
    let terms = limit.terms(now);
    let verdict = match answers.first().and_then(count) {
        _ if is_log(counter) => {
            let hit = answers.pop().and_then(|hit| from_redis_value::<String>(hit).ok());
            let remembered = hit.and_then(|hit| one_remembered(&hit)).into_iter().collect();
            ScriptVerdict::Read(CounterState { remembered, ..CounterState::default() })
        }
        _ if terms.span != assumed => ScriptVerdict::Stale,
        Some(count) => ScriptVerdict::Read(CounterState::of(&account(count), &terms)),
        None => ScriptVerdict::Corrupt(vec![0]),
    };
    Ok(Reply { now, verdict })
}

/// Whether a counter is a log. Rules have none here, but the records of calls with an id are, see `limiter/once.rs`.
fn is_log(counter: &Counter) -> bool {
    matches!(counter.limit.algorithm, Algorithm::SlidingLog { .. })
}

/// Writes a hit in place of the one that a log has. With a limit of 1 it must have none.
async fn write_log(
    Charge { counter, caller, .. }: &Charge,
    assumed_now: Timestamp,
    key_prefix: &str,
    connection: &mut Connection,
    metrics: &StoreMetrics,
) -> RedisResult<Reply> {
    let (at, caller) = (assumed_now.as_millis(), caller.as_deref().unwrap_or_default());
    let (window_ms, is_first) = (counter.limit.window_ms(), counter.limit.requests_per_unit == 1);
    let mut write = transaction();
    write.cmd("SET").arg(key_prefix.to_owned() + &counter.key(assumed_now));
    write.arg(format!("{at} 1 1 {caller}")).arg("PX").arg(window_ms);
    write.arg(if is_first { "NX" } else { "XX" }).cmd("TIME");
    let (now, answers) = exchange("MULTI", &write, connection, metrics).await?;
    let denied = answers.first() != Some(&Value::Okay);
    let fit = if denied { Fit::Over } else { Fit::Fits { remaining: 0 } };
    let tallies = vec![Tally::new(fit, Duration::from_millis(window_ms))];
    let verdict = Verdict { denied, tallies, ..Verdict::default() };
    Ok(Reply { now, verdict: ScriptVerdict::Decided(verdict) })
}
