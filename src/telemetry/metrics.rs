//! The instruments. Names follow OpenTelemetry's semantic conventions 1.45 where there is one;
//! there is none for limiters.

use std::{
    io,
    time::{Duration, Instant},
};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Histogram, Meter},
};
use redis::RedisResult;
use tonic::Code;
use tracing::{Instrument as _, Span};

use super::labels::RuleLabels;
use crate::{
    VERSION,
    engine::{
        decision::{Decision, Outcome},
        request::{Hits, Request},
        rule::Rule,
        rule_set::RuleSet,
    },
    grpc,
    rules::Loaded,
};

/// Seconds. The conventions' own start at 5 ms, where Envoy's patience of 20 ms is nearly over.
const BOUNDARIES: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0];

/// The most hits of one descriptor that are counted. Callers may ask for up to 2^53 at once, and
/// Prometheus reads counters as floats: from 2^53 on it would not see single hits any more.
const HITS_MAX: u64 = u32::MAX as u64;

/// Records the version, as a gauge that is always 1.
pub(super) fn build_info(meter: &Meter) {
    let info =
        meter.u64_gauge("ratelimit.build_info").with_description("1, with the version").build();
    info.record(1, &[KeyValue::new("version", VERSION)]);
}

/// What is measured of calls.
#[derive(Debug, Clone)]
pub struct CallMetrics {
    duration: Histogram<f64>,
    decisions: Counter<u64>,
    hits: Counter<u64>,
    labels: RuleLabels,
    /// The part of a limit from which on hits are near it.
    near_ratio: f64,
    invalid_overrides: Counter<u64>,
    corrupt_counters: Counter<u64>,
    refused_debits: Counter<u64>,
}

impl CallMetrics {
    /// Instruments of `meter`. Hits beyond `near_ratio` of a limit are near it.
    pub fn new(meter: &Meter, near_ratio: f64) -> Self {
        Self {
            near_ratio,
            labels: RuleLabels::default(),
            hits: meter
                .u64_counter("ratelimit.hits")
                .with_description("Hits asked of limits, by how near they came")
                .build(),
            duration: meter
                .f64_histogram("rpc.server.call.duration")
                .with_description("Duration of ShouldRateLimit, by gRPC status")
                .with_unit("s")
                .with_boundaries(BOUNDARIES.to_vec())
                .build(),
            decisions: meter
                .u64_counter("ratelimit.decisions")
                .with_description("Descriptors decided, by configured domain and rule")
                .build(),
            invalid_overrides: meter
                .u64_counter("ratelimit.overrides.invalid")
                .with_description("Limit overrides ignored for an unknown unit or an absurd window")
                .build(),
            corrupt_counters: meter
                .u64_counter("ratelimit.counters.unreadable")
                .with_description("Charges that met a key in Redis which holds no count")
                .build(),
            refused_debits: meter
                .u64_counter("ratelimit.debits.refused")
                .with_description("Hits refused by rules that get looks and lack count_denied")
                .build(),
        }
    }

    /// Records one gRPC call.
    pub fn call(&self, began: Instant, code: Code) {
        let status = status_name(code);
        let mut attributes = vec![
            KeyValue::new("rpc.system.name", "grpc"),
            KeyValue::new("rpc.method", grpc::METHOD),
            KeyValue::new("rpc.status_code", status),
        ];
        if is_server_error(code) {
            attributes.push(KeyValue::new("error.type", status));
        }
        self.duration.record(began.elapsed().as_secs_f64(), &attributes);
    }

    /// Records one decision.
    pub fn decided(&self, request: &Request, decision: &Decision) {
        for (descriptor, status) in request.descriptors.iter().zip(&decision.statuses) {
            let (domain, rule) = self.labels.of(&status.met, &descriptor.entries);
            let [domain, rule] = [KeyValue::new("domain", domain), KeyValue::new("rule", rule)];
            let code = KeyValue::new("code", code(&status.outcome));
            self.decisions.add(1, &[domain.clone(), rule.clone(), code]);
            let Hits::Charge(hits) = descriptor.hits else { continue };
            let hits = hits.min(HITS_MAX);
            for (standing, count) in standings(&status.outcome, hits, self.near_ratio) {
                if count > 0 {
                    let standing = KeyValue::new("standing", standing);
                    self.hits.add(count, &[domain.clone(), rule.clone(), standing]);
                }
            }
        }
    }

    /// Forgets which values of rules that are not among these have a series of their own.
    pub(crate) fn forget_removed_rules(&self, rules: &RuleSet) {
        self.labels.retain(rules);
    }

    /// Records overrides that were ignored.
    pub fn overrides_ignored(&self, count: u64) {
        if count > 0 {
            self.invalid_overrides.add(count, &[]);
        }
    }

    /// Records hits that were refused by a rule which gets looks.
    pub fn debit_refused(&self, rule: &Rule) {
        self.refused_debits.add(1, &[KeyValue::new("rule", rule.path.clone())]);
    }

    /// Records a counter of this rule that holds something other than a count.
    pub fn corrupt_counter(&self, rule: &str) {
        self.corrupt_counters.add(1, &[KeyValue::new("rule", rule.to_owned())]);
    }
}

fn code(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Over { .. } => "over_limit",
        Outcome::Shadowed { .. } => "shadow",
        Outcome::NoLimit | Outcome::Unlimited | Outcome::Within { .. } => "ok",
    }
}

/// The hits of a charge, by how near they came to the limit.
fn standings(outcome: &Outcome, hits: u64, near_ratio: f64) -> [(&'static str, u64); 4] {
    let (mut within, mut near, mut over, mut shadow) = (0, 0, 0, 0);
    match outcome {
        Outcome::NoLimit | Outcome::Unlimited => {}
        Outcome::Over { .. } => over = hits,
        Outcome::Shadowed { .. } => shadow = hits,
        Outcome::Within { limit, remaining, .. } => {
            let used = u64::from(limit.capacity().saturating_sub(*remaining));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to 2^32"
            )]
            let threshold = (f64::from(limit.capacity()) * near_ratio).floor() as u64;
            near = used.saturating_sub(threshold.max(used.saturating_sub(hits)));
            within = hits.saturating_sub(near);
        }
    }
    [("within", within), ("near", near), ("over", over), ("shadow", shadow)]
}

/// Which statuses are the server's fault, by the conventions for gRPC servers.
pub(crate) fn is_server_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// The status's name as the conventions write it.
pub(crate) fn status_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// What is measured of the store.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    duration: Histogram<f64>,
    connection_failures: Counter<u64>,
    cached: Counter<u64>,
}

impl StoreMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        Self {
            duration: meter
                .f64_histogram("db.client.operation.duration")
                .with_description("Duration of round trips to the store")
                .with_unit("s")
                .with_boundaries(BOUNDARIES.to_vec())
                .build(),
            connection_failures: meter
                .u64_counter("ratelimit.store.connection.failures")
                .with_description("Connections to the store that could not be made")
                .build(),
            cached: meter
                .u64_counter("ratelimit.store.cached")
                .with_description("Calls denied by what the store said within the last second")
                .build(),
        }
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
        in_span(store_span(operation), measured).await
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

    /// Measures a round trip that was given up.
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
        attributes.extend(error_type.map(|it| KeyValue::new("error.type", it)));
        self.duration.record(took.as_secs_f64(), &attributes);
    }

    /// Counts a connection that could not be made.
    pub(crate) fn connection_failed(&self) {
        self.connection_failures.add(1, &[]);
    }

    /// Counts a call that the store need not be asked.
    pub(crate) fn cached(&self) {
        self.cached.add(1, &[]);
    }
}

/// An error of Redis as a value of `error.type`. Only codes that redis-rs knows are used: a server's text
/// could be anything.
pub(crate) fn redis_error_type(error: &redis::RedisError) -> String {
    match error.kind() {
        redis::ErrorKind::Server(_) => error.code().unwrap_or("ERR").to_owned(),
        _ => error.category().to_owned(),
    }
}

/// What is measured of counters in memory.
#[derive(Debug, Clone)]
pub struct MemoryMetrics {
    evicted: Counter<u64>,
}

impl MemoryMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        Self {
            evicted: meter
                .u64_counter("ratelimit.counters.evicted")
                .with_description("Live counters in memory that were given up for others")
                .build(),
        }
    }

    /// Counts live counters that were given up.
    pub(crate) fn evicted(&self, count: u64) {
        self.evicted.add(count, &[]);
    }
}

/// The span of what is asked of the store; disabled where spans go nowhere.
pub(crate) fn store_span(operation: &'static str) -> Span {
    tracing::info_span!(
        "store",
        otel.name = operation,
        otel.kind = "client",
        otel.status_code = tracing::field::Empty,
        db.system.name = "redis",
        db.operation.name = operation,
    )
}

/// What is asked, in its span.
pub(crate) async fn in_span<T, E>(
    span: Span,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let answer = answer.instrument(span.clone()).await;
    if answer.is_err() {
        span.record("otel.status_code", "ERROR");
    }
    answer
}

/// What is measured of the rules.
#[derive(Debug, Clone)]
pub struct RuleMetrics {
    reloads: Counter<u64>,
    successful: Gauge<u64>,
}

impl RuleMetrics {
    /// Instruments of `meter`. The rules that are in force from the start are good.
    pub fn new(meter: &Meter) -> Self {
        let metrics = Self {
            reloads: meter
                .u64_counter("ratelimit.rules.reloads")
                .with_description("New content of the rules, by outcome")
                .build(),
            successful: meter
                .u64_gauge("ratelimit.rules.last_reload_successful")
                .with_description("1 if the newest content of the rules is in force, else 0")
                .build(),
        };
        metrics.successful.record(1, &[]);
        metrics
    }

    /// Records what became of new content.
    pub fn loaded(&self, loaded: Loaded) {
        let (outcome, successful) = match loaded {
            Loaded::Good => ("good", 1),
            Loaded::Bad => ("bad", 0),
        };
        self.reloads.add(1, &[KeyValue::new("outcome", outcome)]);
        self.successful.record(successful, &[]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::rule::{Limit, Unit};

    #[track_caller]
    fn check(limit: u32, used: u32, hits: u64, expected: [u64; 2]) {
        let limit = Arc::new(Limit::new(limit, Unit::Hour, 1).expect("a window"));
        let remaining = limit.requests_per_unit - used;
        let within = Outcome::Within { limit, remaining, reset: Duration::ZERO };
        let [(_, within), (_, near), ..] = standings(&within, hits, 0.8);
        assert_eq!([near, within], expected);
    }

    /// The table of envoyproxy/ratelimit's own tests, for what is admitted.
    #[test]
    fn hits_beyond_the_ratio_are_near_the_limit() {
        check(20, 5, 3, [0, 3]);
        check(8, 7, 2, [1, 1]);
        check(20, 19, 3, [3, 0]);
        check(15, 11, 1, [0, 1]);
        check(15, 13, 1, [1, 0]);
        check(0, 0, 0, [0, 0]);
    }
}
