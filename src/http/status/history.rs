//! What this replica did lately: rates of the last seconds, and six hours of them in bounded memory. One task takes a
//! reading every ten seconds; a request compares the numbers of now with a reading that is ten to twenty seconds old.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{task::spawn_blocking, time};

use super::numbers::{StatusNumbers, by_mode};
use crate::{
    process::clock::unix_seconds,
    telemetry::{Telemetry, breaker_openings},
};

const READ_EVERY: Duration = Duration::from_secs(10);

/// Six hours of points, of 64 bytes each.
const POINTS_MAX: usize = 6 * 360;

/// Readings in the time in which openings of breakers are counted: ten minutes.
const OPENINGS_POINTS: usize = 60;

/// The name of a number of a point, and the number; NaN if it is missing.
type Column = (&'static str, fn(&Recent, &StatusNumbers) -> f64);

/// The numbers of a point, in their order.
const COLUMNS: [Column; 10] = [
    ("decisions", |recent, _| recent.decisions),
    ("denied", |recent, _| recent.denied),
    ("shadow", |recent, _| recent.shadow),
    ("failed", |recent, _| recent.failed),
    ("late", |recent, _| recent.late),
    ("fallbacks", |recent, _| recent.fallbacks.iter().sum()),
    ("p50", |recent, _| recent.p50.unwrap_or(f64::NAN)),
    ("p99", |recent, _| recent.p99.unwrap_or(f64::NAN)),
    ("round_trip", |recent, _| recent.round_trip.unwrap_or(f64::NAN)),
    ("servers_down", |_, numbers| numbers.servers_down().into()),
];

/// Rates per second, and quantiles of durations in seconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Recent {
    pub(super) seconds: f64,
    pub(super) calls: f64,
    pub(super) decisions: f64,
    pub(super) denied: f64,
    pub(super) shadow: f64,
    pub(super) failed: f64,
    pub(super) late: f64,
    /// By the modes of `on_store_failure`.
    #[serde(serialize_with = "by_mode")]
    pub(super) fallbacks: [f64; 4],
    pub(super) p50: Option<f64>,
    /// Of at least 100 calls: of fewer it is the longest.
    pub(super) p99: Option<f64>,
    pub(super) round_trip: Option<f64>,
    /// How often breakers have opened in the last ten minutes.
    pub(super) breaker_openings: u64,
}

#[derive(Debug)]
pub struct History {
    pub(super) decision_budget: Duration,
    readings: Mutex<Readings>,
}

#[derive(Debug, Default)]
struct Readings {
    /// The last two.
    last: VecDeque<(Instant, StatusNumbers)>,
    points: VecDeque<Point>,
}

#[derive(Debug)]
struct Point {
    /// Unix seconds.
    at: i64,
    /// Since the start.
    openings: u64,
    /// In the order of [`COLUMNS`].
    numbers: [f32; COLUMNS.len()],
}

impl History {
    /// No readings yet, with the longest duration of a decision whose caller announces no timeout.
    pub fn new(decision_budget: Duration) -> Self {
        Self { decision_budget, readings: Mutex::default() }
    }

    /// Takes readings, and never returns.
    pub async fn follow(self: Arc<Self>, telemetry: Arc<Telemetry>) {
        let mut ticks = time::interval(READ_EVERY);
        loop {
            ticks.tick().await;
            let (history, telemetry) = (Arc::clone(&self), Arc::clone(&telemetry));
            let read = move || {
                history.read(Instant::now(), StatusNumbers::of(&telemetry.families()));
            };
            // A panic is reported, and the next reading is taken.
            drop(spawn_blocking(read).await);
        }
    }

    pub(super) fn recent(&self, now: Instant, numbers: &StatusNumbers) -> Recent {
        self.readings.lock().recent(now, numbers)
    }

    pub(super) fn json(&self) -> Value {
        let readings = self.readings.lock();
        let points: Vec<_> =
            readings.points.iter().map(|point| (point.at, point.numbers)).collect();
        drop(readings);
        let columns = COLUMNS.map(|(name, _)| name);
        json!({ "every_seconds": READ_EVERY.as_secs(), "columns": columns, "points": points })
    }

    fn read(&self, now: Instant, mut numbers: StatusNumbers) {
        let mut readings = self.readings.lock();
        numbers.by_rule.clear();
        if let Some((last_at, last)) = readings.last.back() {
            let recent = Recent::between(last, &numbers, now.duration_since(*last_at));
            let point = Point {
                at: unix_seconds(),
                openings: breaker_openings(),
                numbers: recent.columns(&numbers),
            };
            readings.points.push_back(point);
        }
        if readings.points.len() > POINTS_MAX {
            readings.points.pop_front();
        }
        readings.last.push_back((now, numbers));
        if readings.last.len() > 2 {
            readings.last.pop_front();
        }
    }
}

impl Readings {
    fn recent(&self, now: Instant, numbers: &StatusNumbers) -> Recent {
        let Some((at, earlier)) = self.last.front() else { return Recent::default() };
        let recent = Recent::between(earlier, numbers, now.duration_since(*at));
        let before = self.points.len().checked_sub(OPENINGS_POINTS);
        let before =
            before.and_then(|index| self.points.get(index)).map_or(0, |point| point.openings);
        Recent { breaker_openings: breaker_openings().saturating_sub(before), ..recent }
    }
}

impl Recent {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn between(earlier: &StatusNumbers, now: &StatusNumbers, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let grown = |count: fn(&StatusNumbers) -> u64| count(now).saturating_sub(count(earlier));
        let rate = |count| grown(count) as f64 / seconds;
        let mut fallbacks = [0.0; 4];
        for (rate, (now, earlier)) in
            fallbacks.iter_mut().zip(now.fallbacks.iter().zip(&earlier.fallbacks))
        {
            *rate = now.saturating_sub(*earlier) as f64 / seconds;
        }
        let latency = |part| now.calls.quantile_since(&earlier.calls, part);
        Self {
            seconds,
            calls: rate(|numbers| numbers.calls.count),
            decisions: rate(|numbers| numbers.decisions.sum()),
            denied: rate(|numbers| numbers.decisions.over_limit),
            shadow: rate(|numbers| numbers.decisions.shadow),
            failed: rate(|numbers| numbers.calls_failed),
            late: rate(|numbers| numbers.calls_late),
            fallbacks,
            p50: latency(0.5),
            p99: latency(0.99).filter(|_| grown(|numbers| numbers.calls.count) >= 100),
            round_trip: now.round_trips.quantile_since(&earlier.round_trips, 0.5),
            breaker_openings: 0,
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough for a drawing")]
    fn columns(&self, now: &StatusNumbers) -> [f32; COLUMNS.len()] {
        COLUMNS.map(|(_, number)| number(self, now) as f32)
    }
}
