//! Why an export failed, in words: the SDK repeats the cause over gRPC, and hides it over HTTP.

use std::{mem, sync::Arc, time::Duration};

use opentelemetry_sdk::error::OTelSdkError;
use parking_lot::Mutex;

use crate::net::peer::{FirstBytes, PeerError};

/// What one exporter's connections have shown.
#[derive(Debug, Clone, Default)]
pub(super) struct ExportFailure(Arc<Mutex<Clue>>);

#[derive(Debug, Default)]
enum Clue {
    #[default]
    None,
    /// The cause of the last failure.
    Cause(String),
    /// What the server of the last connection speaks, which should be HTTP/2.
    FirstBytes(FirstBytes),
}

impl ExportFailure {
    /// Forgets what earlier connections have shown.
    pub(super) fn forget(&self) {
        self.replace(Clue::None);
    }

    /// Records the cause of a failure.
    pub(super) fn record(&self, cause: String) {
        self.replace(Clue::Cause(cause));
    }

    /// Records why an exchange by HTTP/1 has failed.
    pub(super) fn record_peer(&self, error: &PeerError) {
        self.record(in_words(error));
    }

    /// Records a new connection for gRPC.
    pub(super) fn connected(&self, first_bytes: FirstBytes) {
        self.replace(Clue::FirstBytes(first_bytes));
    }

    /// The cause of an export that failed after the time `took`, where each has `timeout`.
    pub(super) fn cause(&self, error: &OTelSdkError, took: Duration, timeout: Duration) -> String {
        match self.replace(Clue::None) {
            Clue::Cause(cause) => return cause,
            _ if took >= timeout => return PeerError::Silent(timeout).to_string(),
            Clue::FirstBytes(first_bytes) => {
                if let Some(Err(error)) = first_bytes.http2_so_far() {
                    return in_words(&error);
                }
            }
            Clue::None => {}
        }
        // The SDK begins with a name for the signal.
        let text = error.to_string();
        let cause = text.split_once(" export failed with ").map(|(_, cause)| cause.to_owned());
        cause.unwrap_or(text)
    }

    fn replace(&self, clue: Clue) -> Clue {
        mem::replace(&mut self.0.lock(), clue)
    }
}

/// The error, and what to try.
fn in_words(error: &PeerError) -> String {
    match error {
        PeerError::SpeaksTls => format!("{error}; use https:// in the endpoint"),
        PeerError::DemandsCertificate => {
            format!("{error}; set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_what_was_recorded_then_the_time_then_what_the_sdk_says() {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let failure = ExportFailure::default();
        let cause = |took| {
            let text = "TonicTracesClient export failed with gRPC code: Unimplemented";
            failure.cause(&OTelSdkError::InternalFailure(text.to_owned()), took, TIMEOUT)
        };
        failure.record("no route".to_owned());
        assert_eq!(cause(TIMEOUT), "no route");
        assert_eq!(cause(TIMEOUT), "no answer within 1s", "a cause explains one failure");
        failure.record("no route".to_owned());
        failure.forget();
        assert_eq!(cause(Duration::ZERO), "gRPC code: Unimplemented");
    }
}
