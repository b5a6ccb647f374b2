//! Metrics of the round trips to Redis.

use std::{
    io,
    time::{Duration, Instant},
};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter},
};
use redis::{RedisError, RedisResult};

use super::call::BOUNDARIES;
use crate::telemetry::in_store_span;

/// Metrics of the store.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    duration: Histogram<f64>,
    connection_failures: Counter<u64>,
    cached: Counter<u64>,
    failovers: Counter<u64>,
    charges_lost: Counter<u64>,
    unreplicated: Counter<u64>,
    failed_checks: UpDownCounter<i64>,
    shed: Counter<u64>,
    up: Gauge<u64>,
    breaker: Gauge<u64>,
}

impl StoreMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        let metrics = Self {
            duration: meter
                .f64_histogram("db.client.operation.duration")
                .with_description("Duration of round trips to the store")
                .with_unit("s")
                .with_boundaries(BOUNDARIES.to_vec())
                .build(),
            connection_failures: meter
                .u64_counter("ratelimit.store.connection.failures")
                .with_description("Connections to the store that could not be opened")
                .build(),
            shed: meter
                .u64_counter("ratelimit.store.shed")
                .with_description("Calls that waited for the store too long to be sent")
                .build(),
            up: meter
                .u64_gauge("ratelimit.store.up")
                .with_description("0 in an outage of the server, else 1")
                .build(),
            breaker: meter
                .u64_gauge("ratelimit.store.breaker.open")
                .with_description("1 while calls are answered without the server, else 0")
                .build(),
            cached: meter
                .u64_counter("ratelimit.store.cached")
                .with_description(
                    "Calls denied without asking the store, by its answers within the last second",
                )
                .build(),
            failovers: meter
                .u64_counter("ratelimit.store.failovers")
                .with_description("Masters that were replaced by others")
                .build(),
            charges_lost: meter
                .u64_counter("ratelimit.store.charges.lost")
                .with_description("Acknowledged charges that a new master lacks, about")
                .build(),
            unreplicated: meter
                .u64_counter("ratelimit.store.charges.unreplicated")
                .with_description("Acknowledged charges that too few replicas had 5 ms later")
                .build(),
            failed_checks: meter
                .i64_up_down_counter("ratelimit.store.check.failed")
                .with_description(
                    "Servers of the store that fail this check at each new connection",
                )
                .build(),
        };
        // Rates begin with the first call that is shed.
        metrics.shed.add(0, &[]);
        metrics
    }

    /// Measures one round trip, in a span of its own.
    pub(crate) async fn round_trip<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let measured = async {
            let began = Instant::now();
            let answer = answer.await;
            self.record(operation, began.elapsed(), answer.as_ref().err().map(redis_error_type));
            answer
        };
        in_store_span(operation, measured).await
    }

    /// Measures one round trip that many calls share, with the first error of its replies.
    pub(crate) async fn measure<T>(
        &self,
        operation: &'static str,
        replies: impl Future<Output = Vec<RedisResult<T>>>,
    ) -> Vec<RedisResult<T>> {
        let began = Instant::now();
        let replies = replies.await;
        let error = replies.iter().find_map(|reply| reply.as_ref().err());
        self.record(operation, began.elapsed(), error.map(redis_error_type));
        replies
    }

    /// Records a round trip that was given up.
    pub(crate) fn lost(&self, operation: &'static str, took: Duration) {
        let error = io::Error::from(io::ErrorKind::TimedOut);
        self.record(operation, took, Some(redis_error_type(&error.into())));
    }

    /// Records a round trip, and the [type](redis_error_type) of its error.
    pub(crate) fn record(
        &self,
        operation: &'static str,
        took: Duration,
        error_type: Option<String>,
    ) {
        let mut attributes = vec![
            KeyValue::new("db.system.name", "redis"),
            KeyValue::new("db.operation.name", operation),
        ];
        if let Some(error_type) = error_type {
            attributes.push(KeyValue::new("error.type", error_type));
        }
        self.duration.record(took.as_secs_f64(), &attributes);
    }

    /// Counts a connection that could not be opened.
    pub(crate) fn connection_failed(&self) {
        self.connection_failures.add(1, &[]);
    }

    /// Counts a master that was replaced, and the acknowledged charges that the new one lacks.
    pub(crate) fn failed_over(&self, charges_lost: u64) {
        self.failovers.add(1, &[]);
        self.charges_lost.add(charges_lost, &[]);
    }

    /// Counts acknowledged charges that too few replicas have.
    pub(crate) fn unreplicated(&self, charges: u64) {
        self.unreplicated.add(charges, &[]);
    }

    /// Counts servers that fail this check from now on, or, below 0, no longer.
    pub(crate) fn check_failed(&self, check: &'static str, change: i64) {
        self.failed_checks.add(change, &[KeyValue::new("check", check)]);
    }

    /// Counts calls that waited too long to be sent.
    pub(crate) fn shed(&self, count: usize) {
        if count > 0 {
            self.shed.add(u64::try_from(count).unwrap_or(u64::MAX), &[]);
        }
    }

    /// Records whether a server answers, and whether its breaker is open. Its address is from the settings, or from
    /// a server that they name.
    pub(crate) fn server(&self, address: &str, is_up: bool, is_open: bool) {
        let server = [KeyValue::new("server", address.to_owned())];
        self.up.record(u64::from(is_up), &server);
        self.breaker.record(u64::from(is_open), &server);
    }

    /// Counts a call that was denied without asking the store.
    pub(crate) fn cached(&self) {
        self.cached.add(1, &[]);
    }
}

/// An error of Redis as a value of `error.type`. Only codes that redis-rs knows are used: the text of a server
/// could be anything.
pub(crate) fn redis_error_type(error: &RedisError) -> String {
    match error.kind() {
        redis::ErrorKind::Server(_) => error.code().unwrap_or("ERR").to_owned(),
        _ => error.category().to_owned(),
    }
}
