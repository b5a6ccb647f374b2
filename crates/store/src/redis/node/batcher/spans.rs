//! The spans of a batch's script runs, if it has sampled calls.

use std::time::Duration;

use opentelemetry::KeyValue;
use redis::RedisResult;
use tokio::time::Instant;
use tollkeeper_base::telemetry::StoreSpan;

use super::queue::QueuedCall;
use crate::{
    metrics::redis_error_type,
    redis::{
        node::batch::{Batch, ScriptKind, refusal},
        script::Reply,
        wire::endpoint::Address,
    },
};

/// The spans of the runs that serve sampled calls. Dropped before they [end](Self::end), the runs got no answer.
pub(super) struct RunSpans {
    spans: Vec<(usize, StoreSpan)>,
    runs: Vec<usize>,
}

impl RunSpans {
    /// Begins them, when `batch` with these calls is sent to the server at `address`, after `for_connection` of
    /// waiting for a connection.
    pub(super) fn begin(
        calls: &[QueuedCall],
        batch: &Batch,
        address: &Address,
        for_connection: Duration,
    ) -> Self {
        if calls.iter().all(|call| call.span.is_none()) {
            return Self { spans: Vec::new(), runs: Vec::new() };
        }
        let (runs, now) = (batch.runs_of_calls().to_vec(), Instant::now());
        let mut spans = Vec::new();
        for (index, script) in batch.scripts().enumerate() {
            let of_run = || calls.iter().zip(&runs).filter(|(_, run)| **run == index);
            let mut sampled = Vec::new();
            for (call, _) in of_run() {
                if let Some(queued) = &call.span {
                    sampled.push((queued.span(), queued.wait(call.since, now, for_connection)));
                }
            }
            let attributes = attributes(script, of_run().count(), address);
            let span = StoreSpan::begin_run("EVALSHA", attributes, &sampled);
            spans.extend(span.map(|span| (index, span)));
        }
        Self { spans, runs }
    }

    /// Ends them by the replies to the calls, in their order.
    pub(super) fn end(self, replies: &[RedisResult<Reply>]) {
        for (index, span) in self.spans {
            let of_run = replies.iter().zip(&self.runs).filter(|(_, run)| **run == index);
            span.end(of_run.into_iter().find_map(|(reply, _)| error_type(reply)));
        }
    }
}

fn attributes(script: ScriptKind, calls: usize, address: &Address) -> Vec<KeyValue> {
    let calls = i64::try_from(calls).unwrap_or(i64::MAX);
    let mut attributes = vec![
        KeyValue::new("db.stored_procedure.name", script.name()),
        KeyValue::new("ratelimit.batch.calls", calls),
    ];
    match address {
        Address::Tcp { host, port } => {
            attributes.push(KeyValue::new("server.address", host.clone()));
            attributes.push(KeyValue::new("server.port", i64::from(*port)));
        }
        Address::Unix(path) => {
            attributes.push(KeyValue::new("server.address", path.display().to_string()));
        }
    }
    attributes
}

fn error_type(reply: &RedisResult<Reply>) -> Option<String> {
    match reply {
        Err(error) => Some(redis_error_type(error)),
        Ok(_) => refusal(reply).map(|refusal| refusal.code().to_owned()),
    }
}
