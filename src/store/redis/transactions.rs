//! Calls in a Redis that runs no scripts: fixed windows, by INCRBY and TIME in one MULTI.
//!
//! The charge is made first, and what the answers show to be too much is given back before the call
//! is answered. So a call may be denied too early for an instant; single hits on one counter are
//! exact. A call with refunds reads under WATCH instead, and starts again if a counter has changed.

mod call;
mod exchange;

use redis::RedisResult;

use self::{
    call::TransactionCall,
    exchange::{account, count, exchange, transaction},
};
use super::{
    script::{Reply, ScriptVerdict, work::NodeWork},
    wire::connection::Connection,
};
use crate::{
    engine::{
        key::Counter,
        ledger::{CounterState, Verdict},
        time::Timestamp,
    },
    store::{Clear, metrics::StoreMetrics},
};

/// Does this work once, in the windows that hold `assumed_now`, on keys that begin with `key_prefix`. All charges must be
/// on fixed windows.
pub(super) async fn run(
    work: &NodeWork,
    assumed_now: Timestamp,
    key_prefix: &str,
    connection: &mut Connection,
    metrics: &StoreMetrics,
) -> RedisResult<Reply> {
    match work {
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
        Clear::No => redis::pipe(),
        Clear::Yes => transaction(),
    };
    reads.ignore_errors();
    reads.cmd("GET").arg(&key);
    if clear == Clear::Yes {
        reads.cmd("DEL").arg(&key).ignore();
    }
    reads.cmd("TIME");
    let (now, answers) = exchange("MULTI", &reads, connection, metrics).await?;
    let terms = limit.terms(now);
    let verdict = match answers.first().and_then(count) {
        _ if terms.span != assumed => ScriptVerdict::Stale,
        Some(count) => ScriptVerdict::Read(CounterState::of(&account(count), &terms)),
        None => ScriptVerdict::Corrupt(vec![0]),
    };
    Ok(Reply { now, verdict })
}
