//! A client of a rate-limit service, with the messages of the crate `envoy-types`.

use std::time::Duration;

use envoy_types::pb::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint, Error},
};

/// The decision when the service does not answer: `true` fails open, `false` closed.
const ALLOWED_ON_FAILURE: bool = true;

/// Calls a rate-limit service. Clones share one connection.
#[derive(Clone, Debug)]
pub struct Limiter {
    service: RateLimitServiceClient<Channel>,
    deadline: Duration,
}

/// Whether the request may pass.
#[derive(Debug, Default)]
pub struct Decision {
    pub allowed: bool,
    /// Limit, remaining hits and reset of the descriptor; the limit is 0 if no rule limits it.
    pub limit: u32,
    pub remaining: u32,
    pub reset: Duration,
    /// For the response to your own client; the service's `--headers` selects them.
    pub headers: Vec<(String, String)>,
    /// Why the service did not decide.
    pub failure: Option<Status>,
}

impl Limiter {
    /// Connects to an address such as `http://localhost:8081` when the first request comes, and again whenever the
    /// connection is lost. With TLS: `Endpoint::tls_config` and `https://`.
    pub fn new(address: String, deadline: Duration) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(address)?
            .connect_timeout(deadline)
            // Notices a peer that disappeared without closing the connection.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(2));
        Ok(Self { service: RateLimitServiceClient::new(endpoint.connect_lazy()), deadline })
    }

    /// Charges one hit to the descriptor, whose entries are in the rules' order. Returns within the deadline, whatever
    /// the service does.
    pub async fn allow(&self, domain: &str, descriptor: &[(&str, &str)]) -> Decision {
        let entries = descriptor.iter().map(|(key, value)| entry(key, value)).collect();
        let descriptor = RateLimitDescriptor { entries, ..Default::default() };
        let mut request = Request::new(RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: vec![descriptor],
            hits_addend: 0,
        });
        // Sends the deadline to the service (grpc-timeout). The timeout below also covers connecting.
        request.set_timeout(self.deadline);
        let mut service = self.service.clone();
        let call = service.should_rate_limit(request);
        match tokio::time::timeout(self.deadline, call).await {
            Ok(Ok(response)) => Decision::of(response.into_inner()),
            Ok(Err(status)) => Decision::failed(status),
            Err(_) => Decision::failed(Status::deadline_exceeded("no connection in time")),
        }
    }
}

fn entry(key: &str, value: &str) -> Entry {
    Entry { key: key.to_owned(), value: value.to_owned() }
}

impl Decision {
    fn of(response: RateLimitResponse) -> Self {
        let allowed = response.overall_code() != Code::OverLimit;
        let headers = response.response_headers_to_add.into_iter();
        let headers = headers.map(|header| (header.key, header.value)).collect();
        // One status for each descriptor, in their order.
        let status = response.statuses.into_iter().next().unwrap_or_default();
        let reset_seconds = status.duration_until_reset.map_or(0, |reset| reset.seconds);
        Self {
            allowed,
            limit: status.current_limit.map_or(0, |limit| limit.requests_per_unit),
            remaining: status.limit_remaining,
            reset: Duration::from_secs(reset_seconds.try_into().unwrap_or(0)),
            headers,
            failure: None,
        }
    }

    fn failed(status: Status) -> Self {
        Self { allowed: ALLOWED_ON_FAILURE, failure: Some(status), ..Self::default() }
    }
}
