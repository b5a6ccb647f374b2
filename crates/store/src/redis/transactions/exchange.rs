//! Commands that are sent together, and their answers.

use redis::{ErrorKind, Pipeline, RedisResult, Value, from_redis_value};
use tollkeeper_engine::{
    algorithm::{AnyAccount, fixed_window},
    request::Hits,
    time::Timestamp,
};

use crate::{metrics::StoreMetrics, redis::wire::connection::Connection};

/// The account of a fixed window. A negative count is read as 0.
pub(super) fn account(count: i64) -> AnyAccount {
    AnyAccount::FixedWindow(fixed_window::FixedWindow { used: count.max(0).cast_unsigned() })
}

pub(super) fn transaction() -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.atomic().ignore_errors();
    pipeline
}

/// Runs commands that end with TIME. Returns Redis's time, and the other answers; of errors only those are
/// among them that are about a key's value.
pub(super) async fn exchange(
    operation: &'static str,
    commands: &Pipeline,
    connection: &mut Connection,
    metrics: &StoreMetrics,
) -> RedisResult<(Timestamp, Vec<Value>)> {
    let answers = metrics.round_trip(operation, connection.pipeline(commands)).await?;
    let mut answers = answers.ok_or_else(unexpected_reply)?;
    for answer in &answers {
        if let Value::ServerError(error) = answer
            && !matches!(error.code(), "WRONGTYPE" | "ERR")
        {
            // Commands of a transaction that were before it have run.
            let is_alone = operation != "MULTI";
            return Err(if is_alone { error.clone().into() } else { unexpected_reply() });
        }
    }
    let time = answers.pop().ok_or_else(unexpected_reply)?;
    let (seconds, micros): (u64, u64) = from_redis_value(time)?;
    Ok((Timestamp::from_millis(seconds.saturating_mul(1000) + micros / 1000), answers))
}

/// The count in an answer; `None` if it holds something else. It may be negative, see `TransactionCall::count`.
pub(super) fn count(answer: &Value) -> Option<i64> {
    match answer {
        Value::Nil => Some(0),
        Value::Int(number) => Some(*number),
        // What INCRBY accepts, and no more than a script would.
        Value::BulkString(text) => {
            let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
            let is_canonical = number.to_string().as_bytes() == text;
            (is_canonical && number.unsigned_abs() <= Hits::MAX).then_some(number)
        }
        _ => None,
    }
}

pub(super) fn unexpected_reply() -> redis::RedisError {
    (ErrorKind::UnexpectedReturnType, "the transaction's reply has an unexpected form").into()
}
