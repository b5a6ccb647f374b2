//! The series of a counter that counts by rule. The SDK keeps each series of a counter permanently. These are
//! observed whenever metrics are read, so the series of removed rules can end.

use std::{
    collections::HashSet,
    sync::{
        Arc,
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
pub(in crate::limiter) struct RuleSeries(Arc<RwLock<HashMap<Vec<KeyValue>, Count>>>);

impl Recorder for RuleSeries {
    fn of_row(row: &InstrumentRow, meter: &Meter) -> Self {
        let series = Self::default();
        series.observe(row, meter);
        series
    }
}

impl RuleSeries {
    pub(in crate::limiter) fn observe(&self, row: &InstrumentRow, meter: &Meter) {
        let observed = self.clone();
        row.observe_counts(meter, move |to: &dyn AsyncInstrument<u64>| {
            for (labels, count) in &*observed.0.read() {
                to.observe(count.load(Ordering::Relaxed), labels);
            }
        });
    }

    /// The count of the series with these labels, which exists from now on.
    pub(in crate::limiter) fn of(&self, labels: &[KeyValue]) -> Count {
        let known = self.0.read().get(labels).cloned();
        known.unwrap_or_else(|| {
            let mut series = self.0.write();
            Arc::clone(series.entry(labels.to_vec()).or_default())
        })
    }

    pub(in crate::limiter) fn add(&self, count: u64, labels: &[KeyValue]) {
        self.of(labels).fetch_add(count, Ordering::Relaxed);
    }

    /// Adds 1 to the series with this label; if there are [`SERIES_MAX`] others, to the series of `other`.
    pub(super) fn add_bounded(&self, mut label: KeyValue) {
        let series = self.0.read();
        if series.len() >= SERIES_MAX && !series.contains_key(std::slice::from_ref(&label)) {
            label.value = OTHER.into();
        }
        drop(series);
        self.add(1, &[label]);
    }

    /// Forgets the series whose domain and rule are not among these. An absent domain is an empty one.
    pub(in crate::limiter) fn retain(&self, in_force: &HashSet<[String; 2]>) {
        self.0.write().retain(|labels, _| {
            in_force.contains(&["domain", "rule"].map(|name| {
                let label = labels.iter().find(|label| label.key.as_str() == name);
                label.map(|label| label.value.to_string()).unwrap_or_default()
            }))
        });
    }
}
