"""The client for threads."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import grpc

from tollkeeper.call import Call, Descriptors
from tollkeeper.channel import TLS, options
from tollkeeper.decision import Committed, Decision
from tollkeeper.exchange import METHODS, PATH, Attempt, Exchange, Steps, hold_call, service_error
from tollkeeper.hold import Hold

T = TypeVar("T")


class Client(Exchange[Decision, list[Decision], Committed]):
    """Decides calls by a service. Make one in each process, after a fork: its threads share its connections.

    A decision is made within the timeout, whatever the service does. If there is no answer, `on_failure` decides.
    """

    def _connect(self, target: str | grpc.Channel, tls: TLS | None) -> None:
        self._connection = _Connection(target, tls)

    def hold(self, descriptors: Descriptors | Call, estimate: int | None = None) -> Hold:
        """Holds an estimate, or the estimate of the rule or of a call, while a `with` block works."""
        return Hold(self, hold_call(descriptors, estimate))

    def close(self) -> None:
        """Closes the connections when the commits under way have ended. Later calls get no answer."""
        if self._owns_connection:
            self._connection.close(self._policy.commit_timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _run(self, steps: Steps[T], *, holds: bool = False) -> T:
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(step, Attempt):
                answer = self._connection.send(step)
            else:
                time.sleep(step)

    def _run_commit(self, steps: Steps[T]) -> T:
        with self._connection.commit():
            return self._run(steps)


class _Connection:
    """A channel, and the commits that it is kept open for."""

    def __init__(self, target: str | grpc.Channel, tls: TLS | None) -> None:
        self._own: grpc.Channel | None = None
        if isinstance(target, str):
            credentials = tls.credentials() if tls else None
            target = self._own = (
                grpc.secure_channel(target, credentials, options(tls))
                if credentials
                else grpc.insecure_channel(target, options(tls))
            )
            # The public way to connect, a subscription, has a thread that fails if the channel is closed soon.
            if connectivity := getattr(self._own, "_channel", None):
                connectivity.check_connectivity_state(True)
        self._rpcs = {name: target.unary_unary(PATH + name, *codec) for name, codec in METHODS.items()}
        self._commits = 0
        self._commit_ends = threading.Condition()
        self.is_closed = False

    def send(self, attempt: Attempt) -> Any:
        """The answer, or a ServiceError."""
        try:
            return self._rpcs[attempt.method](attempt.request, timeout=attempt.timeout, wait_for_ready=attempt.waits)
        except (grpc.RpcError, ValueError) as error:
            return service_error(error)

    @contextmanager
    def commit(self) -> Iterator[None]:
        with self._commit_ends:
            self._commits += 1
        try:
            yield
        finally:
            with self._commit_ends:
                self._commits -= 1
                self._commit_ends.notify_all()

    def close(self, timeout: float) -> None:
        with self._commit_ends:
            self.is_closed = True
            self._commit_ends.wait_for(lambda: not self._commits, timeout)
        if self._own:
            self._own.close()
