//! Why a request gets no decision, and the one table from there to gRPC and HTTP.
//!
//! | refusal | gRPC | HTTP |
//! | --- | --- | --- |
//! | a field outside of its bound, or missing | INVALID_ARGUMENT | 400 |
//! | bytes that are no message | INTERNAL | 400 |
//! | a message over `--max-message-bytes` | OUT_OF_RANGE | 413 |
//! | a compressed message | UNIMPLEMENTED | 415 |
//! | a client that left before its message was whole | CANCELLED | 400 |
//! | a message that took too long to arrive | DEADLINE_EXCEEDED | 408 |
//! | too much that arrives at a time | RESOURCE_EXHAUSTED | 503 |
//! | a request made by a web page | PERMISSION_DENIED | 403 |
//! | no answer from the store | UNAVAILABLE | 503 |
//!
//! Envoy treats every gRPC error alike: it counts `ratelimit.error`, and lets the request pass or, with
//! `failure_mode_deny`, answers 500.

use http::StatusCode;
use tonic::{Code, Status, metadata::MetadataValue};

use crate::store::StoreError;

/// Why a request gets no decision. What it displays is for its client.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// A field is outside of its bound, or missing. Names both.
    #[error("{0}")]
    Invalid(String),
    /// The bytes are no message.
    #[error("{0}")]
    Malformed(String),
    /// The message is too long.
    #[error("message: {bytes} bytes exceeds {bytes_max}")]
    #[expect(missing_docs, reason = "the names say it")]
    TooLong { bytes: usize, bytes_max: usize },
    /// The message is compressed.
    #[error("compressed requests are not supported")]
    Compressed,
    /// The client left before its message was whole.
    #[error("the request was not finished")]
    Unfinished,
    /// The message took too long to arrive.
    #[error("the request did not arrive")]
    TooSlow,
    /// Too much arrives at the same time. Names the bound.
    #[error("{0}")]
    Busy(String),
    /// A web page made the request.
    #[error("a web page may not ask this")]
    WebPage,
    /// The store gave no answer, and a limit wants an error then. What Redis said may name hosts, so that is
    /// for the log alone.
    #[error("store unavailable{}", detail(.0))]
    NoAnswer(#[from] StoreError),
}

fn detail(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable(_) => String::new(),
        StoreError::TimedOut
        | StoreError::NoConnection
        | StoreError::ClockUnsteady
        | StoreError::Corrupt(_) => format!(": {error}"),
    }
}

impl Refusal {
    /// The status of gRPC, and that of HTTP.
    pub const fn codes(&self) -> (Code, StatusCode) {
        match self {
            Self::Invalid(_) => (Code::InvalidArgument, StatusCode::BAD_REQUEST),
            Self::Malformed(_) => (Code::Internal, StatusCode::BAD_REQUEST),
            Self::TooLong { .. } => (Code::OutOfRange, StatusCode::PAYLOAD_TOO_LARGE),
            Self::Compressed => (Code::Unimplemented, StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::Unfinished => (Code::Cancelled, StatusCode::BAD_REQUEST),
            Self::TooSlow => (Code::DeadlineExceeded, StatusCode::REQUEST_TIMEOUT),
            Self::Busy(_) => (Code::ResourceExhausted, StatusCode::SERVICE_UNAVAILABLE),
            Self::WebPage => (Code::PermissionDenied, StatusCode::FORBIDDEN),
            Self::NoAnswer(_) => (Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// The answer of gRPC.
    pub fn status(&self) -> Status {
        let mut status = Status::new(self.codes().0, self.to_string());
        if matches!(self, Self::Compressed) {
            let identity = MetadataValue::from_static("identity");
            status.metadata_mut().insert("grpc-accept-encoding", identity);
        }
        status
    }
}
