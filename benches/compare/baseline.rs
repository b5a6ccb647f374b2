//! Redis on its own: the least that a counter with an expiry costs it, and the shortest round trip.

mod pairs;
mod script;

use std::time::Duration;

use hdrhistogram::Histogram;

pub(crate) use self::{pairs::pairs, script::script};
use crate::{process::Result, sample::Sample};

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_max(1_000_000_000, 3)?)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn sample(latency: &Histogram<u64>, slice: Duration) -> Sample {
    Sample {
        per_second: latency.len() as f64 / slice.as_secs_f64(),
        p50_us: quantile_us(latency, 0.5),
        p99_us: quantile_us(latency, 0.99),
        p999_us: quantile_us(latency, 0.999),
        ..Sample::default()
    }
}

fn quantile_us(latency: &Histogram<u64>, part: f64) -> f64 {
    latency.value_at_quantile(part) as f64 / 1e3
}
