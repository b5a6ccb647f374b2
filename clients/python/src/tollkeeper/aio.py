"""The client for asyncio."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

import grpc

from tollkeeper.call import Call, Descriptors
from tollkeeper.channel import TLS, opener
from tollkeeper.decision import Committed, Decision
from tollkeeper.exchange import METHODS, PATH, Exchange, closed, encode_commit, hold_of, service_error
from tollkeeper.hold import AsyncHold

T = TypeVar("T")
# How long `close` waits for the next of the open holds to be left. Its own task may be within one.
NEXT_LEFT_WITHIN = 0.1


class AsyncClient(
    Exchange[Coroutine[Any, Any, Decision], Coroutine[Any, Any, list[Decision]], Coroutine[Any, Any, Committed]]
):
    """`Client` for asyncio. It may be made at import, and has a connection in each event loop that uses it.

    It connects when it is made in a running event loop, otherwise by `connect` or by its first request.
    """

    def _connect(self, target: str | grpc.aio.Channel, tls: TLS | None) -> None:
        self._connection = _Connection(target, tls)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self.connect()

    def connect(self) -> None:
        """Begins to connect in the running event loop, so that its first decision need not; not once it is closed."""
        if not self._is_closed:
            self._connection.open()

    def hold(self, descriptors: Descriptors | Call, estimate: int | None = None) -> AsyncHold:
        """Holds an estimate, or the estimate of the rule or of a call, while an `async with` block works."""
        return AsyncHold(self, descriptors, estimate)

    async def close(self) -> None:
        """Closes the connections when the commits under way have ended. Later calls get no answer.

        Open holds, such as of tasks that were just cancelled, are committed before, until none is left for 100 ms.
        """
        if self._owns_connection:
            await self._connection.close(self._policy.commit_timeout)
            self._log.remind(closes=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return work

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._keep(work))

    async def _send_hold(self, method: str, request: Any, timeout: float) -> Any:
        sent = asyncio.create_task(self._connection.send(method, request, timeout))
        try:
            return await asyncio.shield(sent)
        except asyncio.CancelledError:
            self._keep(self._give_back(sent))
            raise

    async def _give_back(self, sent: asyncio.Task[Any]) -> None:
        if hold := hold_of(await sent):
            await self._commit(encode_commit(hold, used=0))

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins what `close` waits for."""
        task = asyncio.create_task(work)
        # The event loop itself keeps no reference.
        self._connection.commits.add(task)
        task.add_done_callback(self._connection.commits.discard)
        return task


class _Connection:
    """A channel for each event loop, and the commits that they are kept open for.

    Loops may run in several threads: what they share is iterated over as a copy.
    """

    def __init__(self, target: str | grpc.aio.Channel, tls: TLS | None) -> None:
        self._make = opener(target, tls) if isinstance(target, str) else None
        self._given: Any = target
        self._opened: dict[asyncio.AbstractEventLoop, grpc.aio.Channel] = {}
        self.commits: set[asyncio.Task[Any]] = set()
        self.calls: set[asyncio.Future[None]] = set()
        self.holds: set[asyncio.Future[None]] = set()
        self.is_closed = self.has_ended = False

    def open(self) -> grpc.aio.Channel:
        """The channel of the running event loop."""
        if not self._make:
            return self._given
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            for ended in [it for it in list(self._opened) if it.is_closed()]:
                self._opened.pop(ended, None)
            self._opened[loop] = self._make(grpc.aio)
            self._opened[loop].get_state(try_to_connect=True)
        return self._opened[loop]

    async def send(self, method: str, request: Any, timeout: float) -> Any:
        """The answer, or a ServiceError. A commit waits for a connection, since it may be sent late."""
        rpc = self.open().unary_unary(PATH + method, *METHODS[method])
        try:
            return await rpc(request, timeout=timeout, wait_for_ready=method == "Commit")
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            return service_error(error)
        except asyncio.CancelledError:
            # gRPC cancels the calls of a channel that is closed, as if their tasks were cancelled.
            task = asyncio.current_task()
            if self.is_closed and not (task and task.cancelling()):
                return closed()
            raise

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @contextmanager
    def under_way(self, what: str = "call") -> Iterator[None]:
        """What `close` waits for: holds while some are left, and calls, which it ends, until they are counted."""
        end = asyncio.get_running_loop().create_future()
        ends = self.holds if what == "hold" else self.calls
        ends.add(end)
        try:
            yield
        finally:
            ends.discard(end)
            end.set_result(None)

    async def close(self, timeout: float) -> None:
        self.is_closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                # Tasks that were cancelled just before have yet to leave their holds.
                while await _wait(self.commits) or await _wait(self.holds, NEXT_LEFT_WITHIN, asyncio.FIRST_COMPLETED):
                    pass
        self.has_ended = True
        if channel := self._opened.pop(asyncio.get_running_loop(), None):
            await channel.close()
        await _wait(self.calls, timeout)


async def _wait(
    ends: Iterable[asyncio.Future[Any]], timeout: float | None = None, until: str = asyncio.ALL_COMPLETED
) -> bool:
    """Waits for those of the running loop: whether any has ended. Other loops wait for their own, or have ended."""
    loop = asyncio.get_running_loop()
    own = [it for it in list(ends) if it.get_loop() is loop]
    return bool(own and (await asyncio.wait(own, timeout=timeout, return_when=until))[0])
