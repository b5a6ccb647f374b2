//! The instruments of the program as a whole. Names follow OpenTelemetry's semantic conventions 1.45 if they have one;
//! they have none for limiters.

mod process;

use opentelemetry::{
    KeyValue,
    metrics::{Gauge, Meter},
};

pub(super) use self::process::observe as observe_process;
pub use self::process::{INSTRUMENTS as PROCESS, START_TIME};
use super::instrument::{Recorder as _, instruments};
use crate::VERSION;

instruments! {
    BUILD_INFO = Gauge("ratelimit.build_info", ["version"], "always 1; version of the program");
}

/// Records the version, as a gauge that is always 1.
pub(super) fn build_info(meter: &Meter) {
    Gauge::<u64>::of_row(&BUILD_INFO, meter).record(1, &[KeyValue::new("version", VERSION)]);
}
