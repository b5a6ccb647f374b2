//! gRPC on HTTP/2, as far as the service and its clients share it: how a message is framed, the name of
//! the one method, and those of the codes. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

pub(crate) mod channel;

use tonic::{Code, Status};

use crate::{printable::printable, tls::root_cause};

/// The path of a call.
pub(crate) const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The full name of the method.
pub(crate) const METHOD: &str = METHOD_PATH.split_at(1).1;

/// The full name of the service.
pub(crate) const SERVICE: &str = METHOD.split_at(METHOD.len() - "/ShouldRateLimit".len()).0;

/// The content type of calls and answers.
pub(crate) const CONTENT_TYPE: &str = "application/grpc";

/// Bytes before each message: whether it is compressed (1), and its length (4).
pub(crate) const PREFIX_BYTES: usize = 5;

/// The prefix of an uncompressed message of `length` bytes, which is below 4 GiB.
pub(crate) fn prefix(length: usize) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
}

/// The name of a status as the conventions write it.
pub(crate) fn status_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// A failed call in words: the root cause if the connection failed, else the answer's code and message.
pub(crate) fn in_words(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => root_cause(source),
        None => {
            let message = printable(status.message().as_bytes());
            format!("{}: {message}", status_name(status.code()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_parts_of_the_path() {
        assert_eq!(METHOD_PATH, format!("/{METHOD}"));
        assert_eq!(METHOD, format!("{SERVICE}/ShouldRateLimit"));
    }

    #[test]
    fn the_prefix_holds_the_length_in_network_order() {
        assert_eq!(prefix(0), [0; 5]);
        assert_eq!(prefix(0x0102_0304), [0, 1, 2, 3, 4]);
    }
}
