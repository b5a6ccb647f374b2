"""How a client connects."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import grpc

OPTIONS: list[tuple[str, str | int]] = [
    # Uses every address of the name, so that all replicas of a headless Service get calls.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # A DNS record could bring retries, and a decision that is repeated is charged twice.
    ("grpc.service_config_disable_resolution", 1),
    # Notices a peer that disappeared without closing the connection, also between calls.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A connection that is idle stays: the next decision has no time to connect.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    # By default it may be two minutes until the service is found again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name, the time for one attempt to connect, with the handshake of TLS; by default 20 s.
    ("grpc.min_reconnect_backoff_ms", 2_000),
]
"""The options of a client's channel, for a channel of your own."""


@dataclass(frozen=True, slots=True)
class TLS:
    """PEM files, which are read when the client is made."""

    ca: str | PathLike[str] | None = None
    """Certificates to trust; the system's if None."""
    cert: str | PathLike[str] | None = None
    """The client's certificate, for a service with `--tls-client-ca`."""
    key: str | PathLike[str] | None = None
    server_name: str | None = None
    """Name in the service's certificate, if it is not the one of the target."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key must both be set, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        files = (None if path is None else Path(path).read_bytes() for path in (self.ca, self.key, self.cert))
        return grpc.ssl_channel_credentials(*files)


def opener(target: str, tls: TLS | None) -> Callable[[Any], Any]:
    """A function that makes a channel of `grpc`, or of `grpc.aio`."""
    if tls is None:
        return lambda library: library.insecure_channel(target, OPTIONS)
    credentials = tls.credentials()
    name = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []
    return lambda library: library.secure_channel(target, credentials, [*OPTIONS, *name])
