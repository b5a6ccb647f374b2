//! Metrics of the files beside the rules that are read again: certificates, and who may ask what.

use opentelemetry::{
    KeyValue,
    metrics::{Gauge, Meter},
};

/// Metrics of certificates, and of files about clients.
#[derive(Debug, Clone)]
pub struct FileMetrics {
    in_use: Gauge<u64>,
    expires_in: Gauge<i64>,
}

impl FileMetrics {
    /// Instruments of `meter`.
    pub fn new(meter: &Meter) -> Self {
        Self {
            in_use: meter
                .u64_gauge("ratelimit.tls.files.in_use")
                .with_description(
                    "1 if the newest content of these files is in use, 0 if an older one stays",
                )
                .build(),
            expires_in: meter
                .i64_gauge("ratelimit.tls.certificate.expires_in")
                .with_unit("s")
                .with_description("Time until the service's certificate expires; negative after it")
                .build(),
        }
    }

    /// Records whether the newest content of some files is in use.
    pub(crate) fn in_use(&self, files: &'static str, in_use: bool) {
        self.in_use.record(u64::from(in_use), &[KeyValue::new("files", files)]);
    }

    /// Records the seconds until the certificate expires.
    pub(crate) fn expires_in(&self, seconds: i64) {
        self.expires_in.record(seconds, &[]);
    }
}
