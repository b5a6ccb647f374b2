//! Events as log records by OTLP. A thread of the SDK exports batches of them; what finds no room in its queue is lost.

use std::time::{Duration, SystemTime};

use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, Severity};
use opentelemetry_sdk::logs::SdkLogger;
use tollkeeper_engine::time::Timestamp;

/// Where events are emitted.
#[derive(Debug, Clone)]
pub struct LogRecords(pub(super) SdkLogger);

impl LogRecords {
    /// Queues the record of an event that happened at `time`, and never waits.
    pub fn emit(
        &self,
        event: &'static str,
        text: &'static str,
        time: Timestamp,
        attributes: impl IntoIterator<Item = (&'static str, AnyValue)>,
    ) {
        let mut record = self.0.create_log_record();
        record.set_event_name(event);
        record.set_severity_number(Severity::Info);
        record.set_severity_text(Severity::Info.name());
        record.set_body(text.into());
        record.set_timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(time.as_millis()));
        record.add_attributes(attributes);
        self.0.emit(record);
    }
}
