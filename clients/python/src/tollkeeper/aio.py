"""The client for asyncio."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

import grpc

from tollkeeper import exchange
from tollkeeper._generated.tollkeeper_pb2 import CommitRequest, CommitResponse, DecideRequest, DecideResponse
from tollkeeper.call import Call, Descriptors
from tollkeeper.channel import Options
from tollkeeper.decision import Committed, Decision, ServiceError
from tollkeeper.hold import AsyncHold

_Response = TypeVar("_Response", DecideResponse, CommitResponse)


class AsyncClient(exchange.Exchange[Coroutine[Any, Any, Decision]]):
    """`Client` for asyncio. It may be made at import, and belongs to the event loop of its first request."""

    def _connect(self, target: str, credentials: grpc.ChannelCredentials | None, options: Options) -> None:
        def open_channel() -> grpc.aio.Channel:
            if credentials is None:
                return grpc.aio.insecure_channel(target, options)
            return grpc.aio.secure_channel(target, credentials, options)

        self._open = open_channel
        self._opened: grpc.aio.Channel | None = None
        self._commits: set[asyncio.Task[Committed]] = set()

    async def decide_call(self, call: Call) -> Decision:
        """Decides one call."""
        return (await self._decide_calls([call], batch=False))[0]

    async def decide_all(self, calls: Sequence[Call]) -> list[Decision]:
        """Decides up to 1,000 independent calls in one request, in their order."""
        return await self._decide_calls(calls, batch=True) if calls else []

    def hold(self, descriptors: Descriptors | Call, estimate: int | None = None) -> AsyncHold:
        """Holds an estimate, or the estimate of the rule or of a call, while an `async with` block works."""
        return AsyncHold(self, exchange.hold_call(descriptors, estimate))

    async def commit(
        self, hold: str, used: int | None = None, used_by_kind: Mapping[str, int] | None = None, end: str = ""
    ) -> Committed:
        """Commits `Decision.hold`, for work that ends elsewhere. Sent up to three times if there is no answer.

        It is sent even if the caller is cancelled meanwhile.
        """
        request = self._commit_request(hold, used, used_by_kind, end)
        task = asyncio.ensure_future(self._send_commit(request))
        # The event loop itself keeps no reference.
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Closes the connections when the commits under way have ended."""
        await asyncio.gather(*self._commits, return_exceptions=True)
        if self._opened:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def _channel(self) -> grpc.aio.Channel:
        """Opened by the first request, since it belongs to an event loop."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    async def _decide_calls(self, calls: Sequence[Call], *, batch: bool) -> list[Decision]:
        request = self._decide_request(calls, batch=batch)
        rpc = self._channel.unary_unary(exchange.DECIDE, DecideRequest.SerializeToString, DecideResponse.FromString)
        return self._decisions(calls, await self._send("decide", rpc, request))

    async def _send_commit(self, request: CommitRequest) -> Committed:
        rpc = self._channel.unary_unary(exchange.COMMIT, CommitRequest.SerializeToString, CommitResponse.FromString)
        answer = await self._send("commit", rpc, request)
        for pause in exchange.COMMIT_PAUSES:
            if not exchange.worth_repeating(answer):
                break
            await asyncio.sleep(pause)
            answer = await self._send("commit", rpc, request)
        return exchange.committed(answer)

    async def _send(
        self, method: str, rpc: Callable[..., Awaitable[_Response]], request: object
    ) -> _Response | ServiceError:
        start = time.perf_counter()
        answer: _Response | ServiceError
        try:
            # A commit may wait for a connection, since it may be sent late.
            answer = await rpc(request, timeout=self._timeout, wait_for_ready=method == "commit")
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            answer = exchange.service_error(error)
        self._report(method, start, answer)
        return answer
