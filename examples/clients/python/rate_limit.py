"""A client of a rate-limit service. Its protos are in proto/, from which grpc_tools generates the modules."""

from dataclasses import dataclass, field

import grpc
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from envoy.service.ratelimit.v3.rls_pb2_grpc import RateLimitServiceStub

# The decision when the service does not answer: True fails open, False closed.
ALLOWED_ON_FAILURE = True

OPTIONS = [
    # Uses every address of the name, so that all replicas of a headless Service get calls.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # Notices a peer that disappeared without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    # By default it may be two minutes until the service is found again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the time that one attempt to connect has.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


@dataclass
class Decision:
    """Whether the request may pass."""

    allowed: bool
    # Limit, remaining hits and reset of the descriptor; the limit is 0 if no rule limits it.
    limit: int = 0
    remaining: int = 0
    reset_seconds: float = 0
    # For the response to your own client; the service's --headers selects them.
    headers: dict[str, str] = field(default_factory=dict)
    # Why the service did not decide.
    failure: grpc.StatusCode | None = None


class Limiter:
    """Calls a rate-limit service. Make one in each process, after a fork: its threads share its connections."""

    def __init__(self, address: str, deadline_seconds: float = 0.05):
        # With TLS: grpc.secure_channel(address, grpc.ssl_channel_credentials(…), OPTIONS).
        self.channel = grpc.insecure_channel(address, OPTIONS)
        self.service = RateLimitServiceStub(self.channel)
        self.deadline_seconds = deadline_seconds

    def allow(self, domain: str, descriptor: dict[str, str]) -> Decision:
        """Charges one hit to the descriptor, and returns within the deadline, whatever the service does."""
        # The rules' order of keys is the dict's. Envoy's own protos have text where these have bytes.
        entries = [
            RateLimitDescriptor.Entry(key=key.encode(), value=value.encode())
            for key, value in descriptor.items()
        ]
        request = RateLimitRequest(domain=domain, descriptors=[RateLimitDescriptor(entries=entries)])
        try:
            response = self.service.ShouldRateLimit(request, timeout=self.deadline_seconds)
        except grpc.RpcError as error:
            return Decision(ALLOWED_ON_FAILURE, failure=error.code())
        # One status for each descriptor, in their order.
        status = next(iter(response.statuses), RateLimitResponse.DescriptorStatus())
        return Decision(
            allowed=response.overall_code != RateLimitResponse.OVER_LIMIT,
            limit=status.current_limit.requests_per_unit,
            remaining=status.limit_remaining,
            reset_seconds=status.duration_until_reset.ToTimedelta().total_seconds(),
            headers={header.key: header.value for header in response.response_headers_to_add},
        )

    def close(self):
        """Closes the connections."""
        self.channel.close()
