//! The definition of an instrument: one for OTLP and Prometheus alike, and a row of docs/observability.md.

use std::sync::Arc;

use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Counter, Gauge, Histogram, Meter, UpDownCounter},
};
use parking_lot::Mutex;

pub type Observe<'a> = &'a dyn Fn(f64, &[KeyValue]);

/// Bucket boundaries of durations, in seconds. The boundaries of OpenTelemetry's conventions begin at 5 ms; a decision takes
/// tenths of a millisecond, its budget is 15 ms by default, and Envoy waits 20 ms.
const SECONDS: &[f64] = &[
    0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.05,
    0.1, 0.25, 1.0,
];

const CALLS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// An instrument: its name, kind, unit, attributes and meaning.
#[derive(Debug)]
pub struct InstrumentRow {
    pub name: &'static str,
    pub kind: InstrumentKind,
    pub unit: InstrumentUnit,
    pub attributes: &'static [&'static str],
    pub description: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstrumentKind {
    Counter,
    Gauge,
    /// How often values were in each bucket.
    Histogram,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstrumentUnit {
    Number,
    Seconds,
    Bytes,
}

impl InstrumentUnit {
    /// The unit in UCUM, as OpenTelemetry writes it.
    const fn ucum(self) -> &'static str {
        match self {
            Self::Number => "",
            Self::Seconds => "s",
            Self::Bytes => "By",
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::Number => "",
            Self::Seconds => "_seconds",
            Self::Bytes => "_bytes",
        }
    }
}

impl InstrumentRow {
    /// The name on `/metrics`.
    pub fn prometheus_name(&self) -> String {
        let total = match self.kind {
            InstrumentKind::Counter => "_total",
            InstrumentKind::Gauge | InstrumentKind::Histogram => "",
        };
        format!("{}{}{total}", self.name.replace('.', "_"), self.unit.suffix())
    }

    /// Observes a counter of a plain number whenever metrics are read.
    pub fn observe_counts(
        &self,
        meter: &Meter,
        counts: impl Fn(&dyn AsyncInstrument<u64>) + Send + Sync + 'static,
    ) {
        let counter = meter.u64_observable_counter(self.name).with_description(self.description);
        counter.with_callback(counts).build();
    }

    /// Observes a counter or a gauge whenever metrics are read.
    pub fn observe(&self, meter: &Meter, values: impl Fn(Observe<'_>) + Send + Sync + 'static) {
        let unit = self.unit.ucum();
        let values =
            move |to: &dyn AsyncInstrument<f64>| values(&|value, of| to.observe(value, of));
        // The callback is registered when the instrument is built.
        match self.kind {
            InstrumentKind::Counter => {
                let counter = meter.f64_observable_counter(self.name).with_unit(unit);
                counter.with_description(self.description).with_callback(values).build();
            }
            InstrumentKind::Gauge | InstrumentKind::Histogram => {
                let gauge = meter.f64_observable_gauge(self.name).with_unit(unit);
                gauge.with_description(self.description).with_callback(values).build();
            }
        }
    }
}

/// Defines the instruments of a file, each once: the row, and unless it is observed, what records it and the field of a
/// struct that holds it, where the rest of the crate records without attributes. `INSTRUMENTS` lists the rows.
#[macro_export]
macro_rules! instruments {
    ($(#[$doc:meta])* $vis:vis struct $all:ident {
        $($field:ident: $recorder:ty => $row:ident = $kind:ident($($of_row:tt)*) $(in $unit:ident)?;)*
    } $($observed:tt)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        $vis struct $all {
            $(pub(crate) $field: $recorder,)*
        }

        impl $all {
            $vis fn of_meter(meter: &opentelemetry::metrics::Meter) -> Self {
                Self { $($field: $crate::telemetry::Recorder::of_row(&$row, meter),)* }
            }
        }

        $crate::telemetry::instruments! {
            $($row = $kind($($of_row)*) $(in $unit)?;)* $($observed)*
        }
    };
    ($($row:ident = $kind:ident($name:literal, [$($attribute:literal),*], $meaning:literal) $(in $unit:ident)?;)*) => {
        $(#[allow(unreachable_pub, reason = "some files list their rows, others keep them")]
        pub const $row: $crate::telemetry::InstrumentRow = $crate::telemetry::InstrumentRow {
            name: $name,
            kind: $crate::telemetry::InstrumentKind::$kind,
            unit: $crate::telemetry::instruments!(@ $($unit)?),
            attributes: &[$($attribute),*],
            description: $meaning,
        };)*

        #[allow(unreachable_pub, reason = "see the rows")]
        pub const INSTRUMENTS: &[&$crate::telemetry::InstrumentRow] = &[$(&$row),*];
    };
    (@) => { $crate::telemetry::InstrumentUnit::Number };
    (@ $unit:ident) => { $crate::telemetry::InstrumentUnit::$unit };
}
pub use instruments;

/// What values of an instrument are recorded with.
pub trait Recorder {
    fn of_row(row: &InstrumentRow, meter: &Meter) -> Self;
}

/// Without attributes it begins at 0, so that rates begin with the first event.
impl Recorder for Counter<u64> {
    fn of_row(row: &InstrumentRow, meter: &Meter) -> Self {
        let counter = meter.u64_counter(row.name).with_description(row.description);
        let counter = counter.with_unit(row.unit.ucum()).build();
        if row.attributes.is_empty() {
            counter.add(0, &[]);
        }
        counter
    }
}

macro_rules! recorders {
    ($($recorder:ty = $builder:ident;)*) => {$(
        impl Recorder for $recorder {
            fn of_row(row: &InstrumentRow, meter: &Meter) -> Self {
                let builder = meter.$builder(row.name).with_description(row.description);
                builder.with_unit(row.unit.ucum()).build()
            }
        }
    )*};
}

recorders! {
    Counter<f64> = f64_counter;
    UpDownCounter<i64> = i64_up_down_counter;
    Gauge<u64> = u64_gauge;
    Gauge<i64> = i64_gauge;
    Gauge<f64> = f64_gauge;
}

impl Recorder for Histogram<f64> {
    fn of_row(row: &InstrumentRow, meter: &Meter) -> Self {
        let boundaries = match row.unit {
            InstrumentUnit::Seconds => SECONDS,
            InstrumentUnit::Number | InstrumentUnit::Bytes => CALLS,
        };
        let histogram = meter.f64_histogram(row.name).with_description(row.description);
        histogram.with_unit(row.unit.ucum()).with_boundaries(boundaries.to_vec()).build()
    }
}

/// A number of things, bytes or seconds as a value. Exact: all are below 2^53.
pub fn float(value: u64) -> f64 {
    value as f64
}

/// An instrument, and how its values are taken from a reading.
pub type Observed<'row, T> = (&'row InstrumentRow, fn(&T, Observe<'_>));

/// Observes several instruments by one reading whenever metrics are read: the first one reads, since the SDK asks
/// instruments in the order in which they were built, and the others observe the same reading.
pub fn observe_together<T: Send + 'static>(
    meter: &Meter,
    read: impl Fn() -> T + Send + Sync + 'static,
    instruments: &[Observed<'_, T>],
) {
    let (read, last) = (Arc::new(read), Arc::new(Mutex::new(None)));
    for (index, (row, values)) in instruments.iter().enumerate() {
        let (read, last, values) = (Arc::clone(&read), Arc::clone(&last), *values);
        row.observe(meter, move |observe| {
            let mut last = last.lock();
            if index == 0 {
                *last = Some(read());
            }
            if let Some(reading) = &*last {
                values(reading, observe);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::SdkMeterProvider;
    use prometheus::{Registry, TextEncoder};

    use super::*;

    instruments! {
        FIRST = Gauge("first", [], "the number of readings");
        SECOND = Gauge("second", [], "the same");
    }

    #[test]
    fn instruments_that_are_observed_together_need_one_reading_per_scrape() {
        assert_eq!(INSTRUMENTS.iter().map(|row| row.name).collect::<Vec<_>>(), ["first", "second"]);
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone());
        let meters = SdkMeterProvider::builder().with_reader(exporter.build().unwrap()).build();
        let readings = AtomicU32::new(0);
        observe_together(
            &meters.meter("test"),
            move || readings.fetch_add(1, Ordering::Relaxed) + 1,
            &[
                (&FIRST, |number, observe| observe(f64::from(*number), &[])),
                (&SECOND, |number, observe| observe(f64::from(*number), &[])),
            ],
        );
        for reading in 1..=2 {
            let scraped = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            let values = scraped.lines().filter(|line| line.starts_with(['f', 's']));
            let values: Vec<&str> =
                values.map(|line| line.rsplit_once(' ').expect("a value").1).collect();
            assert_eq!(values, [reading.to_string(), reading.to_string()], "{scraped}");
        }
    }
}
