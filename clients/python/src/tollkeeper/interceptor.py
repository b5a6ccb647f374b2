"""Interceptors that decide the calls of a gRPC server, for threads and for asyncio.

A function of the method and the metadata of a call returns its descriptors, or None if the call is not limited. A
denied call ends with RESOURCE_EXHAUSTED, or with UNAVAILABLE if `on_failure` denied it, and has the headers of the
decision as trailing metadata. A mistake, such as an empty key, is logged and ends the call with INTERNAL.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from tollkeeper.aio import AsyncClient
from tollkeeper.call import Call, Descriptors
from tollkeeper.client import Client
from tollkeeper.exchange import Exchange

# Code, text and trailing metadata.
_End = tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]


async def _end(client: Exchange[Any, Any, Any], descriptors: Callable[[Any], Any], details: object) -> _End | None:
    """How the call ends, if it may not begin."""
    try:
        found = descriptors(details)
        if inspect.isawaitable(found):
            found = await found
        if found is None or (decision := await client._decide_one(Call(found))).allowed:
            return None
    except Exception:
        client._log.mistake("a call could not be limited, and ends with INTERNAL")
        return grpc.StatusCode.INTERNAL, "internal error", ()
    headers = tuple((name.lower(), value) for name, value in decision.headers.items())
    if decision.failed:
        return grpc.StatusCode.UNAVAILABLE, "rate limits are unavailable", headers
    return grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests", headers


def _of_kind(handler: Any, behavior: Any) -> Any:
    """A handler whose requests and response are those of another one."""
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(behavior(getattr(handler, kind)), handler.request_deserializer, handler.response_serializer)


class RateLimitInterceptor(grpc.ServerInterceptor):
    """For `grpc.server(…, interceptors=[RateLimitInterceptor(client, descriptors)])`."""

    def __init__(self, client: Client, descriptors: Callable[[grpc.HandlerCallDetails], Descriptors | None]) -> None:
        """`descriptors` gets the `method` and the `invocation_metadata` of a call."""
        self._client = client
        self._descriptors = descriptors

    def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Wraps the handler: this method itself must not wait, since its thread serves all connections."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None

        def limited(inner: Any) -> Any:
            def behavior(request: Any, context: Any) -> Any:
                if end := self._client._run(_end(self._client, self._descriptors, handler_call_details)):
                    code, text, metadata = end
                    context.set_trailing_metadata(metadata)
                    context.abort(code, text)
                return inner(request, context)

            return behavior

        return _of_kind(handler, limited)


class AsyncRateLimitInterceptor(grpc.aio.ServerInterceptor):
    """For `grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(client, descriptors)])`."""

    def __init__(
        self,
        client: AsyncClient,
        descriptors: Callable[[grpc.HandlerCallDetails], Descriptors | Awaitable[Descriptors | None] | None],
    ) -> None:
        """`descriptors` gets the `method` and the `invocation_metadata` of a call, and may be asynchronous."""
        self._client = client
        self._descriptors = descriptors

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Decides, and takes the place of the handler of a denied call."""
        handler = await continuation(handler_call_details)
        end = handler and await _end(self._client, self._descriptors, handler_call_details)
        if not end:
            return handler

        async def deny(_request: Any, context: Any) -> None:
            await context.abort(*end)

        return _of_kind(handler, lambda _inner: deny)
