//! Metrics of the files beside the rules that are read again: certificates, and who may ask what.

use opentelemetry::{
    KeyValue,
    metrics::{Gauge, Meter},
};

use crate::telemetry::{InstrumentRow, InstrumentUnit};

const FILES_IN_USE: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.tls.files.in_use",
    &["files"],
    "1 if the newest content of the files is in use, 0 while an older one is kept: `certificates`, `client_domains`, `admin_token`; `rules_certificates` (all files of `--rules-tls-…`); `otlp_traces_certificates`, `otlp_metrics_certificates` (all TLS files for a collector); for Redis `store_certificates` (all files of `--store-tls-…`), `store_password`, `store_sentinel_password`",
);
const CERTIFICATE_EXPIRES_IN: InstrumentRow = InstrumentRow::gauge(
    "ratelimit.tls.certificate.expires_in",
    &["files"],
    "seconds until the certificate in use expires, negative after it: the service's own (`certificates`), or the one \
     that it shows to Redis (`store_certificates`, from `--store-tls-cert`), to the control plane (`rules_certificates`, \
     from `--rules-tls-cert`), or to a collector (`otlp_traces_certificates`, `otlp_metrics_certificates`)",
)
.in_unit(InstrumentUnit::Seconds);

pub(super) const INSTRUMENTS: &[&InstrumentRow] = &[&FILES_IN_USE, &CERTIFICATE_EXPIRES_IN];

/// Metrics of certificates, and of files about clients.
#[derive(Debug, Clone)]
pub(super) struct FileMetrics {
    in_use: Gauge<u64>,
    expires_in: Gauge<i64>,
}

impl FileMetrics {
    /// Instruments of `meter`.
    pub(super) fn new(meter: &Meter) -> Self {
        Self {
            in_use: FILES_IN_USE.new_gauge(meter),
            expires_in: CERTIFICATE_EXPIRES_IN.new_signed_gauge(meter),
        }
    }

    /// Records whether the newest content of some files is in use.
    pub(super) fn in_use(&self, files: &'static str, in_use: bool) {
        self.in_use.record(u64::from(in_use), &[KeyValue::new("files", files)]);
    }

    /// Records the seconds until the certificate of these files expires.
    pub(super) fn expires_in(&self, files: &'static str, seconds: i64) {
        self.expires_in.record(seconds, &[KeyValue::new("files", files)]);
    }
}
