//! The result of a run.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use hdrhistogram::Histogram;
use tollkeeper_base::net::grpc::status_name;
use tonic::Code;

use super::answer::OverallCode;

/// Counts and latencies of the calls of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// Calls that may pass.
    pub ok: u64,
    pub over_limit: u64,
    /// Calls without a decision, by the name of their gRPC status.
    pub errors: BTreeMap<&'static str, u64>,
    /// Calls of an open loop that were due and not made, because too many were under way.
    pub not_sent: u64,
    /// How often a lost connection was made again.
    pub reconnects: u64,
    /// From the start of the measurement to the last answer.
    pub elapsed: Duration,
    /// Duration of decisions, in nanoseconds; in an open loop, since the call was due.
    pub latency: Histogram<u64>,
    /// The first answer, undecoded; empty if there was none.
    pub sample: Bytes,
}

impl Default for Report {
    fn default() -> Self {
        let latency = Histogram::new_with_max(LATENCY_MAX_NANOS, 3);
        Self {
            ok: 0,
            over_limit: 0,
            errors: BTreeMap::new(),
            not_sent: 0,
            reconnects: 0,
            elapsed: Duration::ZERO,
            latency: latency.expect("an hour of nanoseconds in three digits is a histogram"),
            sample: Bytes::new(),
        }
    }
}

const LATENCY_MAX_NANOS: u64 = 3_600_000_000_000;

impl Report {
    pub fn decisions(&self) -> u64 {
        self.ok + self.over_limit
    }

    /// Calls that were made: those that were decided and those that failed.
    pub fn calls(&self) -> u64 {
        self.decisions() + self.errors.values().sum::<u64>()
    }

    pub fn per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.decisions() as f64 / seconds } else { 0.0 }
    }

    /// The latency that this part of the decisions did not exceed.
    pub fn quantile(&self, part: f64) -> Duration {
        Duration::from_nanos(self.latency.value_at_quantile(part))
    }

    pub(super) fn count(&mut self, answer: Result<OverallCode, Code>, latency: Duration) {
        match answer {
            Ok(OverallCode::Ok) => self.ok += 1,
            Ok(OverallCode::OverLimit) => self.over_limit += 1,
            Err(code) => return self.fail(code, 1),
        }
        self.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn fail(&mut self, code: Code, calls: u64) {
        if calls > 0 {
            *self.errors.entry(status_name(code)).or_default() += calls;
        }
    }

    /// Adds the measurements of another thread of the same run.
    pub(super) fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.over_limit += other.over_limit;
        for (code, count) in &other.errors {
            *self.errors.entry(code).or_default() += count;
        }
        self.not_sent += other.not_sent;
        self.reconnects += other.reconnects;
        self.elapsed = self.elapsed.max(other.elapsed);
        if self.sample.is_empty() {
            self.sample.clone_from(&other.sample);
        }
        self.latency.add(&other.latency).expect("all histograms have the same bounds");
    }
}
