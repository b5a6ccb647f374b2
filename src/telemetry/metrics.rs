//! The instruments of the program as a whole. Names follow OpenTelemetry's semantic conventions 1.45 if they have one;
//! they have none for limiters.

mod process;

use opentelemetry::{KeyValue, metrics::Meter};

pub(super) use self::process::observe as observe_process;
pub(crate) use self::process::{INSTRUMENTS as PROCESS, START_TIME};
use super::instrument::InstrumentRow;
use crate::VERSION;

pub(crate) const BUILD_INFO: InstrumentRow =
    InstrumentRow::gauge("ratelimit.build_info", &["version"], "always 1; version of the program");

/// Records the version, as a gauge that is always 1.
pub(super) fn build_info(meter: &Meter) {
    BUILD_INFO.new_gauge(meter).record(1, &[KeyValue::new("version", VERSION)]);
}
