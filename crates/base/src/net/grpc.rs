//! gRPC on HTTP/2, as far as the service and its clients share it: how a message is framed, the name of
//! the one method, and the names of the codes. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

pub mod channel;
pub mod timeout;

use tonic::{Code, Status};

use super::tls::root_cause;
use crate::text::{named::named, printable::printable};

pub const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub const METHOD: &str = METHOD_PATH.split_at(1).1;

pub const SERVICE: &str = METHOD.split_at(METHOD.len() - "/ShouldRateLimit".len()).0;

/// The full name of the service of our own API.
pub const V1_SERVICE: &str = "tollkeeper.v1.Tollkeeper";

/// The full name of Envoy's rate limit quota service.
pub const QUOTA_SERVICE: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";

named! {
    /// A method that the service answers without generated code.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ServedMethod {
        ShouldRateLimit = METHOD,
        Decide = "tollkeeper.v1.Tollkeeper/Decide",
        DecideStream = "tollkeeper.v1.Tollkeeper/DecideStream",
        Commit = "tollkeeper.v1.Tollkeeper/Commit",
        Renew = "tollkeeper.v1.Tollkeeper/Renew",
        StreamRateLimitQuotas = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas",
    }
}

impl ServedMethod {
    pub fn of(path: &str) -> Option<Self> {
        Self::named(path.strip_prefix('/')?)
    }
}

/// A method of a server, for messages about it.
#[derive(Debug)]
pub struct GrpcMethod {
    /// What a server without it lacks, such as `health service`.
    pub service: &'static str,
    pub name: &'static str,
}

pub const SHOULD_RATE_LIMIT: GrpcMethod =
    GrpcMethod { service: "rate-limit service", name: METHOD };

pub const CONTENT_TYPE: &str = "application/grpc";

/// Bytes before each message: whether it is compressed (1), and its length (4).
pub const PREFIX_BYTES: usize = 5;

/// The prefix of an uncompressed message of `length` bytes, which is below 4 GiB.
pub fn prefix(length: usize) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
}

/// Whether a status is the server's fault, by the conventions for gRPC servers.
pub fn is_server_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// The name of a status as the conventions write it.
pub fn status_name(code: Code) -> &'static str {
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

/// The sentence for a failed call of a method: the root cause if the connection failed, else the answer's code and message.
pub fn in_words(status: &Status, method: &GrpcMethod) -> String {
    if let Some(source) = std::error::Error::source(status) {
        return root_cause(source);
    }
    let code = status_name(status.code());
    let cause = match status.code() {
        Code::Unimplemented => {
            format!("the server has no {} ({code} for {})", method.service, method.name)
        }
        _ => code.to_owned(),
    };
    match printable(status.message().as_bytes()).as_str() {
        "" => cause,
        message => format!("{cause}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_parts_of_the_path() {
        assert_eq!(METHOD_PATH, format!("/{METHOD}"));
        assert_eq!(METHOD, format!("{SERVICE}/ShouldRateLimit"));
        for method in ServedMethod::ALL {
            assert_eq!(ServedMethod::of(&format!("/{}", method.name())), Some(method));
            let service = method.name().split('/').next();
            assert!([SERVICE, V1_SERVICE, QUOTA_SERVICE].map(Some).contains(&service));
        }
    }

    #[test]
    fn a_status_without_a_message_ends_with_its_code() {
        let words = |code, message| in_words(&Status::new(code, message), &SHOULD_RATE_LIMIT);
        assert_eq!(words(Code::Internal, ""), "INTERNAL");
        assert_eq!(words(Code::Internal, "a\nb"), "INTERNAL: a\\x0ab");
        let lacks = format!("the server has no rate-limit service (UNIMPLEMENTED for {METHOD})");
        assert_eq!(words(Code::Unimplemented, ""), lacks);
        let unknown = "unknown service";
        assert_eq!(words(Code::Unimplemented, unknown), format!("{lacks}: {unknown}"));
    }

    #[test]
    fn the_prefix_holds_the_length_in_network_order() {
        assert_eq!(prefix(0), [0; 5]);
        assert_eq!(prefix(0x0102_0304), [0, 1, 2, 3, 4]);
    }
}
