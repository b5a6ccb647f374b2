//! Why a request gets no decision, and the one table that maps each reason to gRPC and HTTP codes.
//!
//! | refusal | gRPC | HTTP |
//! | --- | --- | --- |
//! | a field outside of its bound, or missing | INVALID_ARGUMENT | 400 |
//! | bytes that are not such a message | INTERNAL | 400 |
//! | a message over `--max-message-bytes` | OUT_OF_RANGE | 413 |
//! | a compressed message or body | UNIMPLEMENTED | 415 |
//! | a client that left before its message was complete | CANCELLED | 400 |
//! | a message that took too long to arrive | DEADLINE_EXCEEDED | 408 |
//! | too many requests, or too much data that is unfinished or not read | RESOURCE_EXHAUSTED | 503 |
//! | an unknown path, or a method that a path does not have | UNIMPLEMENTED | 404, 405 |
//! | a request made by a web page, or about a domain of others | PERMISSION_DENIED | 403 |
//! | no answer from the store, or none yet to the first of two calls with one id | UNAVAILABLE | 503 |
//! | a bug: the call panicked | INTERNAL | 500 |
//!
//! Envoy treats every gRPC error alike: it counts `ratelimit.error`, and lets the request pass or, with
//! `failure_mode_deny`, answers 500.

use http::StatusCode;
use tonic::{Code, Status, metadata::MetadataValue};

use crate::{
    authorization::ForbiddenDomain, edge::arriving::BudgetSpent, limiter::Undecided,
    store::StoreError,
};

/// Why a request gets no decision. Its text is meant for the client.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// A field is outside of its bound, or missing. The text names both.
    #[error("{0}")]
    Invalid(String),
    #[error("descriptors: must have at least 1 item")]
    Empty,
    /// The bytes are not such a message.
    #[error("{0}")]
    Malformed(String),
    #[error("message: {bytes} bytes exceeds {bytes_max}")]
    TooLong { bytes: usize, bytes_max: usize },
    /// The message has more than this number of bytes; how many is not known before its end.
    #[error("message: over {0} bytes")]
    TooLongAt(usize),
    #[error("compressed requests are not supported")]
    Compressed,
    #[error("Content-Encoding: must be identity or absent")]
    Encoded,
    /// The client left before its message was complete.
    #[error("the client left before its message was complete")]
    Unfinished,
    #[error("the message took over 10 s to arrive")]
    TooSlow,
    /// Too much data is unfinished or not read.
    #[error(transparent)]
    Busy(#[from] BudgetSpent),
    #[error("too many concurrent requests")]
    TooMany,
    #[error(transparent)]
    Forbidden(#[from] ForbiddenDomain),
    #[error("requests from web pages are not allowed")]
    WebPage,
    /// It may be a web page's request.
    #[error("GET needs the header `X-Forwarded-Method`, which web pages cannot send; or use POST")]
    Unmarked,
    #[error("the path is unknown")]
    UnknownPath,
    /// The path has only these methods.
    #[error("use {0}")]
    OtherMethod(&'static str),
    /// The store gave no answer, and a rule's failure mode is `error`. Redis's own text may name hosts, so it
    /// only goes to the log.
    #[error("store unavailable{}", detail(.0))]
    NoAnswer(#[from] StoreError),
    /// A call with the same id has begun, and may be charged.
    #[error("the first call with this id is not decided yet, or its verdict was lost")]
    Unanswered,
    /// The call panicked, which is a bug.
    #[error("internal error")]
    Panicked,
}

impl From<Undecided> for Refusal {
    fn from(undecided: Undecided) -> Self {
        match undecided {
            Undecided::NoAnswer(error) => Self::NoAnswer(error),
            Undecided::TooMany => Self::TooMany,
            bounded => Self::Invalid(bounded.to_string()),
        }
    }
}

fn detail(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable(_)
        | StoreError::TakesNoWrites(_)
        | StoreError::NotPermitted(_)
        | StoreError::Unreachable { .. } => String::new(),
        StoreError::TimedOut
        | StoreError::NoConnection
        | StoreError::CallFailed
        | StoreError::ClockUnsteady
        | StoreError::WrongType
        | StoreError::Corrupt(_) => format!(": {error}"),
    }
}

impl Refusal {
    pub const fn codes(&self) -> (Code, StatusCode) {
        match self {
            Self::Invalid(_) | Self::Empty => (Code::InvalidArgument, StatusCode::BAD_REQUEST),
            Self::Malformed(_) => (Code::Internal, StatusCode::BAD_REQUEST),
            Self::TooLong { .. } | Self::TooLongAt(_) => {
                (Code::OutOfRange, StatusCode::PAYLOAD_TOO_LARGE)
            }
            Self::Compressed | Self::Encoded => {
                (Code::Unimplemented, StatusCode::UNSUPPORTED_MEDIA_TYPE)
            }
            Self::Unfinished => (Code::Cancelled, StatusCode::BAD_REQUEST),
            Self::TooSlow => (Code::DeadlineExceeded, StatusCode::REQUEST_TIMEOUT),
            Self::Busy(_) | Self::TooMany => {
                (Code::ResourceExhausted, StatusCode::SERVICE_UNAVAILABLE)
            }
            Self::WebPage | Self::Unmarked | Self::Forbidden(_) => {
                (Code::PermissionDenied, StatusCode::FORBIDDEN)
            }
            Self::UnknownPath => (Code::Unimplemented, StatusCode::NOT_FOUND),
            Self::OtherMethod(_) => (Code::Unimplemented, StatusCode::METHOD_NOT_ALLOWED),
            Self::NoAnswer(_) | Self::Unanswered => {
                (Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE)
            }
            Self::Panicked => (Code::Internal, StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    pub fn status(&self) -> Status {
        let mut status = Status::new(self.codes().0, self.to_string());
        if matches!(self, Self::Compressed) {
            let identity = MetadataValue::from_static("identity");
            status.metadata_mut().insert("grpc-accept-encoding", identity);
        }
        status
    }
}
