"""The client for threads."""

import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar, cast

import grpc

from tollkeeper.call import Call, Descriptors
from tollkeeper.channel import TLS, opener
from tollkeeper.decision import Committed, Decision
from tollkeeper.exchange import METHODS, PATH, Exchange, service_error
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
        return Hold(self, descriptors, estimate)

    def close(self) -> None:
        """Closes the connections when the commits under way have ended. Later calls get no answer."""
        if self._owns_connection:
            self._connection.close(self._policy.commit_timeout)
            self._log.remind(closes=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its connection blocks the thread, so that nothing awaits an event loop."""
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        raise RuntimeError("a client for threads cannot wait for an event loop")


class _Connection:
    """A channel, and the commits that it is kept open for."""

    def __init__(self, target: str | grpc.Channel, tls: TLS | None) -> None:
        self._own: grpc.Channel | None = None
        if isinstance(target, str):
            target = self._own = cast(grpc.Channel, opener(target, tls)(grpc))
            # The public way to connect, a subscription, has a thread that fails if the channel is closed soon.
            if connectivity := getattr(self._own, "_channel", None):
                connectivity.check_connectivity_state(True)
        self._rpcs = {name: target.unary_unary(PATH + name, *codec) for name, codec in METHODS.items()}
        self._under_way = Counter[str]()
        self._ends = threading.Condition()
        self.is_closed = self.has_ended = False

    async def send(self, method: str, request: Any, timeout: float) -> Any:
        """The answer, or a ServiceError. A commit waits for a connection, since it may be sent late."""
        try:
            return self._rpcs[method](request, timeout=timeout, wait_for_ready=method == "Commit")
        except (grpc.RpcError, ValueError) as error:
            return service_error(error)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    @contextmanager
    def under_way(self, what: str = "call") -> Iterator[None]:
        """What `close` waits for: commits until they end, and calls, which it ends, until they are counted."""
        with self._ends:
            self._under_way[what] += 1
        try:
            yield
        finally:
            with self._ends:
                self._under_way[what] -= 1
                self._ends.notify_all()

    def close(self, timeout: float) -> None:
        with self._ends:
            self.is_closed = True
            self._ends.wait_for(lambda: not self._under_way["commit"], timeout)
            self.has_ended = True
        if self._own:
            self._own.close()
        with self._ends:
            self._ends.wait_for(lambda: not self._under_way["call"], timeout)
