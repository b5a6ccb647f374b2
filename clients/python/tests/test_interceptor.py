"""What the callers of a gRPC server get."""

import asyncio
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tollkeeper.interceptor import AsyncRateLimitInterceptor, RateLimitInterceptor
from tollkeeper.testing import Fake

METHODS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]


def by_caller(details: Any) -> dict[str, str] | None:
    metadata = dict(details.invocation_metadata)
    caller = metadata.get("caller")
    return {"": "mistake"} if caller == "mistake" else {"caller": caller} if caller else None


def handlers(behaviors: dict[str, Any]) -> Any:
    made = {name: getattr(grpc, f"{name}_rpc_method_handler")(behavior) for name, behavior in behaviors.items()}
    return grpc.method_handlers_generic_handler("test.Echo", made)


def call(channel: Any, method: str, caller: str) -> tuple[str, Any]:
    """The name of the status, and the answer or the trailing metadata."""
    rpc = getattr(channel, method)(f"/test.Echo/{method}")
    request = iter([b"a", b"b"]) if method.startswith("stream") else b"a"
    metadata = [("caller", caller)] if caller else []
    try:
        answer = rpc(request, metadata=metadata, timeout=10)
        return "OK", b"".join(answer) if method.endswith("stream") else answer
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code().name, dict(failed.trailing_metadata())


def through_threads(fake: Fake, calls: list[tuple[str, str]], **settings: Any) -> list[tuple[str, Any]]:
    def unary(request: Any, _context: Any) -> bytes:
        return request if isinstance(request, bytes) else b"".join(request)

    def stream(request: Any, _context: Any) -> Any:
        yield from [request] if isinstance(request, bytes) else request

    interceptor = RateLimitInterceptor(fake.client(**settings), by_caller)
    server = grpc.server(ThreadPoolExecutor(4), interceptors=[interceptor])
    server.add_generic_rpc_handlers([handlers({it: stream if it.endswith("stream") else unary for it in METHODS})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = [call(channel, *it) for it in calls]
    server.stop(None).wait()
    return found


def through_asyncio(fake: Fake, calls: list[tuple[str, str]], **settings: Any) -> list[tuple[str, Any]]:
    async def bytes_of(request: Any) -> bytes:
        return request if isinstance(request, bytes) else b"".join([it async for it in request])

    async def unary(request: Any, _context: Any) -> bytes:
        return await bytes_of(request)

    async def stream(request: Any, _context: Any) -> Any:
        yield await bytes_of(request)

    async def described(details: Any) -> dict[str, str] | None:
        return by_caller(details)

    def call_all(port: int) -> list[tuple[str, Any]]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            return [call(channel, *it) for it in calls]

    async def run() -> list[tuple[str, Any]]:
        interceptor = AsyncRateLimitInterceptor(fake.async_client(**settings), described)
        server = grpc.aio.server(interceptors=[interceptor])
        server.add_generic_rpc_handlers([handlers({it: stream if it.endswith("stream") else unary for it in METHODS})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        found = await asyncio.to_thread(call_all, port)
        await server.stop(None)
        return found

    return asyncio.run(run())


class Interceptors(unittest.TestCase):
    def test_calls_of_every_kind_pass_within_their_limit_and_are_denied_beyond(self) -> None:
        for through in (through_threads, through_asyncio):
            for method in METHODS:
                fake = Fake()
                fake.limit({"caller": "alice"}, 1)
                first, second, other, free = through(fake, [(method, it) for it in ("alice", "alice", "bob", "")])
                echoed = ("OK", b"ab" if method.startswith("stream") else b"a")
                self.assertEqual([first, other, free], [echoed] * 3, (through, method))
                self.assertEqual(second[0], "RESOURCE_EXHAUSTED")
                self.assertEqual((second[1]["retry-after"], second[1]["ratelimit-limit"]), ("60", "1"))
                self.assertEqual(len(fake.calls), 3)

    def test_a_call_that_on_failure_denies_is_unavailable(self) -> None:
        for through in (through_threads, through_asyncio):
            fake = Fake()
            fake.fail()
            with self.assertLogs("tollkeeper", "WARNING"):
                [(code, _)] = through(fake, [("unary_unary", "alice")], on_failure="deny")
            self.assertEqual(code, "UNAVAILABLE")

    def test_a_call_that_the_service_refuses_as_too_large_is_denied(self) -> None:
        for through in (through_threads, through_asyncio):
            fake = Fake()
            fake.fail("OUT_OF_RANGE")
            with self.assertNoLogs("tollkeeper"):
                [(code, _)] = through(fake, [("unary_unary", "alice")])
            self.assertEqual(code, "RESOURCE_EXHAUSTED")

    def test_a_mistake_is_logged_once_a_minute_and_not_shown(self) -> None:
        for through in (through_threads, through_asyncio):
            with self.assertLogs("tollkeeper", "ERROR") as logs:
                found = through(Fake(), [("unary_unary", "mistake")] * 2)
            self.assertEqual([code for code, _ in found], ["INTERNAL"] * 2)
            self.assertEqual(len(logs.output), 1)
            self.assertIn("key", logs.output[0])
