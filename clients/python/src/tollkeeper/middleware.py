"""Middleware that decides the requests of a web application, for ASGI and WSGI.

A function of the request returns its descriptors, or None if the request is not limited. A denied request is answered
with 429, or with 503 if `on_failure` denied it; an allowed one passes. The response gets the headers of the decision.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tollkeeper.aio import AsyncClient
from tollkeeper.call import Descriptors
from tollkeeper.client import Client
from tollkeeper.decision import Decision

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Denial:
    """The response to a denied request."""

    def __init__(self, decision: Decision) -> None:
        self.status = HTTPStatus.SERVICE_UNAVAILABLE if decision.failed else HTTPStatus.TOO_MANY_REQUESTS
        self.body = f"{self.status.phrase}\n".encode()
        self.headers = {"Content-Type": "text/plain", "Content-Length": str(len(self.body))} | _headers(decision)


def _headers(decision: Decision) -> dict[str, str]:
    return {} if decision.failed else decision.headers


class ASGIMiddleware:
    """For ASGI applications. Only HTTP requests are limited; WebSockets pass."""

    def __init__(
        self, app: ASGIApplication, client: AsyncClient, descriptors: Callable[[Scope], Descriptors | None]
    ) -> None:
        self._app = app
        self._client = client
        self._descriptors = descriptors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        descriptors = self._descriptors(scope) if scope["type"] == "http" else None
        if descriptors is None:
            await self._app(scope, receive, send)
            return
        decision = await self._client.decide(descriptors)
        if not decision.allowed:
            denial = _Denial(decision)
            await send({"type": "http.response.start", "status": denial.status, "headers": _encode(denial.headers)})
            await send({"type": "http.response.body", "body": denial.body})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_encode(_headers(decision))]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _encode(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


class WSGIMiddleware:
    """For WSGI applications."""

    def __init__(
        self, app: "WSGIApplication", client: Client, descriptors: "Callable[[WSGIEnvironment], Descriptors | None]"
    ) -> None:
        self._app = app
        self._client = client
        self._descriptors = descriptors

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        descriptors = self._descriptors(environ)
        if descriptors is None:
            return self._app(environ, start_response)
        decision = self._client.decide(descriptors)
        if not decision.allowed:
            denial = _Denial(decision)
            start_response(f"{denial.status.value} {denial.status.phrase}", list(denial.headers.items()))
            return [denial.body]

        def start_with_headers(status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
            return start_response(status, [*headers, *_headers(decision).items()], *error)

        return self._app(environ, start_with_headers)
