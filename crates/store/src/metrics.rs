//! Metrics of the store: its round trips and its failures.

use std::{io, time::Duration};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter},
};
use redis::{RedisError, RedisResult};
use tokio::time::Instant;
use tollkeeper_base::telemetry::{StoreSpan, current, instruments, with_call};

instruments! {
    pub struct StoreMetrics {
        duration: Histogram<f64> => ROUND_TRIPS = Histogram(
            "db.client.operation.duration", ["db.system.name", "db.operation.name", "error.type"],
            "duration of round trips to Redis; one may serve many calls"
        ) in Seconds;
        cached: Counter<u64> => CACHED = Counter("ratelimit.store.cached", [],
            "calls denied by the over-limit cache");
        failovers: Counter<u64> => FAILOVERS = Counter("ratelimit.store.failovers", [],
            "masters replaced by another server (Sentinel, Cluster)");
        charges_lost: Counter<u64> => CHARGES_LOST = Counter("ratelimit.store.charges.lost", [],
            "acknowledged charges that a new master lacks, estimated");
        unreplicated: Counter<u64> => CHARGES_UNREPLICATED = Counter(
            "ratelimit.store.charges.unreplicated", [],
            "acknowledged charges that too few replicas had after 5 ms (`--store-wait-replicas`)"
        );
        failed_checks: UpDownCounter<i64> => CHECK_FAILED = Gauge(
            "ratelimit.store.check.failed", ["check"],
            "servers that failed a check (docs/redis.md) at their last new connection"
        );
        up: Gauge<u64> => UP = Gauge("ratelimit.store.up", ["server"],
            "1 while the server answers and accepts writes, else 0; remains 1 for a server no longer in use; absent before its first request");
        breaker: Gauge<u64> => BREAKER_OPEN = Gauge("ratelimit.store.breaker.open", ["server"],
            "1 while calls are answered without the server, else 0; absent before its first request");
        shed: Counter<u64> => SHED = Counter("ratelimit.store.shed", [],
            "calls not sent in time: more arrive than Redis can decide");
        starved: Counter<f64> => STARVED = Counter("ratelimit.starved", [],
            "time that calls waited for CPU, from 5 ms") in Seconds;
        commits_queued: UpDownCounter<i64> => COMMITS_QUEUED = Gauge("ratelimit.commits.queued", [],
            "commits, debits and refunds that wait for Redis");
        debits_dropped: Counter<u64> => DEBITS_DROPPED = Counter(
            "ratelimit.debits.dropped", ["reason"],
            "debits and refunds never sent: queue `full` (`--debits-queued-max`), window `ended`, service `stopped`"
        );
        batch_calls: Histogram<f64> => BATCH_CALLS = Histogram("ratelimit.store.batch.calls", [],
            "calls sent to Redis in one batch");
        batch_wait: Histogram<f64> => BATCH_WAIT = Histogram("ratelimit.store.batch.wait", [],
            "time that a batch's first call waited in queue and for a connection") in Seconds;
        lease_hits: Counter<u64> => LEASE_HITS = Counter("ratelimit.lease.hits", ["event"],
            "hits of leases: `granted` to this replica, and then `spent`, `returned`, or `stranded`: unspent, and counted as used until their window ends; or `lent` to a caller, and `given_back` by it"
        );
        script_runs: Counter<u64> => SCRIPT_RUNS = Counter(
            "ratelimit.store.script.runs", ["script"],
            "script runs: `fixed` for fixed windows, `commit` for commits on them, `ledger` for the rest"
        );
        stale: Counter<u64> => STALE = Counter("ratelimit.store.stale", [],
            "calls sent again: their window was not current by Redis's clock");
        connection_failures: Counter<u64> => CONNECTION_FAILURES = Counter(
            "ratelimit.store.connection.failures", [],
            "failed attempts to connect to Redis"
        );
    }
}

impl StoreMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        let metrics = Self::of_meter(meter);
        // Rates begin with the first event.
        metrics.starved.add(0.0, &[]);
        metrics.commits_queued.add(0, &[]);
        for event in ["granted", "spent", "returned", "stranded", "lent", "given_back"] {
            metrics.leased(event, 0);
        }
        for reason in ["full", "ended", "stopped"] {
            metrics.debits_dropped.add(0, &[KeyValue::new("reason", reason)]);
        }
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

    /// Counts a master that was replaced, and the acknowledged charges that the new one lacks.
    pub(crate) fn failed_over(&self, charges_lost: u64) {
        self.failovers.add(1, &[]);
        self.charges_lost.add(charges_lost, &[]);
    }

    /// Counts servers that fail this check from now on, or, below 0, no longer.
    pub(crate) fn check_failed(&self, check: &'static str, change: i64) {
        self.failed_checks.add(change, &[KeyValue::new("check", check)]);
    }

    /// Records a batch of this many calls, of which the first has waited this long.
    pub(crate) fn batch(&self, calls: usize, waited: Duration) {
        self.batch_calls.record(u32::try_from(calls).map_or(f64::INFINITY, f64::from), &[]);
        self.batch_wait.record(waited.as_secs_f64(), &[]);
    }

    /// Counts hits of leases, by what has become of them.
    pub(crate) fn leased(&self, event: &'static str, hits: u64) {
        self.lease_hits.add(hits, &[KeyValue::new("event", event)]);
    }

    pub(crate) fn script_ran(&self, script: &'static str) {
        self.script_runs.add(1, &[KeyValue::new("script", script)]);
    }

    /// Counts calls whose window was not the present one by Redis's clock.
    pub(crate) fn stale(&self, count: usize) {
        if count > 0 {
            self.stale.add(count as u64, &[]);
        }
    }

    /// Counts calls that waited too long to be sent.
    pub(crate) fn shed(&self, count: usize) {
        if count > 0 {
            self.shed.add(count as u64, &[]);
        }
    }

    /// Counts a debit or a refund that is never sent, by the reason.
    pub(crate) fn debit_dropped(&self, reason: &'static str) {
        self.debits_dropped.add(1, &[KeyValue::new("reason", reason)]);
    }

    /// Records whether a server answers, and whether its breaker is open. Its address is from the settings, or from
    /// a server that they name.
    pub(crate) fn server(&self, address: &str, is_up: bool, is_open: bool) {
        let server = [KeyValue::new("server", address.to_owned())];
        self.up.record(u64::from(is_up), &server);
        self.breaker.record(u64::from(is_open), &server);
    }

    /// Counts a call that was denied without asking the store, and records it in its span.
    pub(crate) fn cached(&self) {
        self.cached.add(1, &[]);
        with_call(|call| call.record([KeyValue::new("ratelimit.cached", true)]));
    }
}

/// Makes a round trip to the store for one call, in a span of its own if the call is sampled.
pub(crate) async fn in_store_span<T>(
    operation: &'static str,
    answer: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let Some(call) = current() else { return answer.await };
    let span = StoreSpan::begin(operation, Vec::new(), &call);
    let answer = answer.await;
    span.end(answer.as_ref().err().map(redis_error_type));
    answer
}

/// An error of Redis as a value of `error.type`. Only codes that redis-rs knows are used: the text of a server
/// could be anything.
pub(crate) fn redis_error_type(error: &RedisError) -> String {
    match error.kind() {
        redis::ErrorKind::Server(_) => error.code().unwrap_or("ERR").to_owned(),
        _ => error.category().to_owned(),
    }
}
