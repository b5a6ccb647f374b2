"""The client for threads."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

import grpc

from tollkeeper import exchange
from tollkeeper._generated.tollkeeper_pb2 import CommitRequest, CommitResponse, DecideRequest, DecideResponse
from tollkeeper.call import Call, Descriptors
from tollkeeper.channel import Options
from tollkeeper.decision import Committed, Decision, ServiceError
from tollkeeper.hold import Hold

_Response = TypeVar("_Response", DecideResponse, CommitResponse)


class Client(exchange.Exchange[Decision]):
    """Decides calls by a service. Make one in each process, after a fork: its threads share its connections.

    A decision is made within the timeout, whatever the service does. If there is no answer, `on_failure` decides.
    """

    def _connect(self, target: str, credentials: grpc.ChannelCredentials | None, options: Options) -> None:
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(target, credentials, options)
        self._decide = self._channel.unary_unary(
            exchange.DECIDE, DecideRequest.SerializeToString, DecideResponse.FromString
        )
        self._commit = self._channel.unary_unary(
            exchange.COMMIT, CommitRequest.SerializeToString, CommitResponse.FromString
        )

    def decide_call(self, call: Call) -> Decision:
        """Decides one call."""
        return self._decide_calls([call], batch=False)[0]

    def decide_all(self, calls: Sequence[Call]) -> list[Decision]:
        """Decides up to 1,000 independent calls in one request, in their order."""
        return self._decide_calls(calls, batch=True) if calls else []

    def hold(self, descriptors: Descriptors | Call, estimate: int | None = None) -> Hold:
        """Holds an estimate, or the estimate of the rule or of a call, while a `with` block works."""
        return Hold(self, exchange.hold_call(descriptors, estimate))

    def commit(
        self, hold: str, used: int | None = None, used_by_kind: Mapping[str, int] | None = None, end: str = ""
    ) -> Committed:
        """Commits `Decision.hold`, for work that ends elsewhere. Sent up to three times if there is no answer."""
        request = self._commit_request(hold, used, used_by_kind, end)
        answer = self._send("commit", self._commit, request)
        for pause in exchange.COMMIT_PAUSES:
            if not exchange.worth_repeating(answer):
                break
            time.sleep(pause)
            answer = self._send("commit", self._commit, request)
        return exchange.committed(answer)

    def close(self) -> None:
        """Closes the connections."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _decide_calls(self, calls: Sequence[Call], *, batch: bool) -> list[Decision]:
        request = self._decide_request(calls, batch=batch)
        return self._decisions(calls, self._send("decide", self._decide, request))

    def _send(self, method: str, rpc: Callable[..., _Response], request: object) -> _Response | ServiceError:
        start = time.perf_counter()
        answer: _Response | ServiceError
        try:
            # A commit may wait for a connection, since it may be sent late.
            answer = rpc(request, timeout=self._timeout, wait_for_ready=method == "commit")
        except (grpc.RpcError, ValueError) as error:
            answer = exchange.service_error(error)
        self._report(method, start, answer)
        return answer
