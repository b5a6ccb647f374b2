//! The series of a counter that counts by rule. The SDK keeps each series of a counter permanently. These are
//! observed whenever metrics are read, so the series of removed rules can end.

use std::{
    collections::HashSet,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use hashbrown::HashMap;
use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Meter},
};
use parking_lot::RwLock;

use super::labels::SERIES_MAX;
use crate::{
    limiter::matched::OTHER,
    telemetry::{InstrumentRow, Recorder},
};

pub(in crate::limiter) type Count = Arc<AtomicU64>;

/// The series of one counter, by their labels in the order in which they are counted.
#[derive(Debug, Clone, Default)]
pub(in crate::limiter) struct RuleSeries {
    name: &'static str,
    series: Arc<RwLock<HashMap<Vec<KeyValue>, Count>>>,
}

/// What series have counted that have ended, by the name of their counter and their last label: a sum over all rules goes
/// on when rules are removed.
static ENDED: LazyLock<RwLock<HashMap<(&'static str, String), u64>>> =
    LazyLock::new(RwLock::default);

/// What the series of this counter with this last label have counted that have ended.
pub(crate) fn ended(row: &InstrumentRow, last: &str) -> u64 {
    ENDED.read().get(&(row.name, last.to_owned())).copied().unwrap_or(0)
}

impl Recorder for RuleSeries {
    fn of_row(row: &InstrumentRow, meter: &Meter) -> Self {
        let series = Self { name: row.name, ..Self::default() };
        series.observe(row, meter);
        series
    }
}

impl RuleSeries {
    pub(in crate::limiter) fn observe(&self, row: &InstrumentRow, meter: &Meter) {
        let observed = self.clone();
        row.observe_counts(meter, move |to: &dyn AsyncInstrument<u64>| {
            for (labels, count) in &*observed.series.read() {
                to.observe(count.load(Ordering::Relaxed), labels);
            }
        });
    }

    /// The count of the series with these labels, which exists from now on.
    pub(in crate::limiter) fn of(&self, labels: &[KeyValue]) -> Count {
        let known = self.series.read().get(labels).cloned();
        known.unwrap_or_else(|| {
            let mut series = self.series.write();
            Arc::clone(series.entry(labels.to_vec()).or_default())
        })
    }

    pub(in crate::limiter) fn add(&self, count: u64, labels: &[KeyValue]) {
        self.of(labels).fetch_add(count, Ordering::Relaxed);
    }

    /// Adds 1 to the series with this label; if there are [`SERIES_MAX`] others, to the series of `other`.
    pub(super) fn add_bounded(&self, mut label: KeyValue) {
        let series = self.series.read();
        if series.len() >= SERIES_MAX && !series.contains_key(std::slice::from_ref(&label)) {
            label.value = OTHER.into();
        }
        drop(series);
        self.add(1, &[label]);
    }

    /// Forgets the series whose domain and rule are not among these. An absent domain is an empty one.
    pub(in crate::limiter) fn retain(&self, in_force: &HashSet<[String; 2]>) {
        self.series.write().retain(|labels, count| {
            let stays = in_force.contains(&["domain", "rule"].map(|name| {
                let label = labels.iter().find(|label| label.key.as_str() == name);
                label.map(|label| label.value.to_string()).unwrap_or_default()
            }));
            let last = labels.last().filter(|last| !stays && last.key.as_str() != "rule");
            if let Some(last) = last {
                let mut ended = ENDED.write();
                *ended.entry((self.name, last.value.to_string())).or_default() +=
                    count.load(Ordering::Relaxed);
            }
            stays
        });
    }
}
