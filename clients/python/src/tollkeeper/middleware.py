"""Middleware that decides the requests of a web application, for ASGI and WSGI.

A function of the request returns its descriptors, or None if the request is not limited. A denied request is answered
with 429, or with 503 if `on_failure` denied it; an allowed one passes. The response gets the headers of the decision.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from tollkeeper.aio import AsyncClient
from tollkeeper.call import Descriptors
from tollkeeper.client import Client
from tollkeeper.decision import Decision

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


def denial_of(decision: Decision) -> HTTPStatus:
    """The status of a denied request: 503 if nobody has answered, otherwise 429."""
    return HTTPStatus.SERVICE_UNAVAILABLE if decision.failed else HTTPStatus.TOO_MANY_REQUESTS


def _plain(status: HTTPStatus) -> tuple[bytes, dict[str, str]]:
    body = f"{status.phrase}\n".encode()
    return body, {"Content-Type": "text/plain", "Content-Length": str(len(body))}


class ASGIMiddleware:
    """For ASGI applications. Only HTTP requests are limited; WebSockets pass."""

    def __init__(
        self,
        app: ASGIApplication,
        client: AsyncClient,
        descriptors: Callable[[Scope], Descriptors | Awaitable[Descriptors | None] | None],
        denied: Callable[[Decision], ASGIApplication] | None = None,
    ) -> None:
        """`denied` makes the response to a denied request, such as a Response of Starlette; by default plain text."""
        self._app = app
        self._client = client
        self._descriptors = descriptors
        self._denied = denied or _denied_by_asgi

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._client.connect()
        descriptors = self._descriptors(scope) if scope["type"] == "http" else None
        if inspect.isawaitable(descriptors):
            descriptors = await descriptors
        if descriptors is None:
            await self._app(scope, receive, send)
            return
        decision = await self._client.decide(descriptors)
        headers = [(name.lower().encode(), value.encode()) for name, value in decision.headers.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        app = self._app if decision.allowed else self._denied(decision)
        await app(scope, receive, send_with_headers)


def _denied_by_asgi(decision: Decision) -> ASGIApplication:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        status = denial_of(decision)
        body, headers = _plain(status)
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status.value, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    return app


class WSGIMiddleware:
    """For WSGI applications."""

    def __init__(
        self,
        app: WSGIApplication,
        client: Client,
        descriptors: Callable[[WSGIEnvironment], Descriptors | None],
        denied: Callable[[Decision], WSGIApplication] | None = None,
    ) -> None:
        """`denied` makes the response to a denied request, such as a Response of Flask; by default plain text."""
        self._app = app
        self._client = client
        self._descriptors = descriptors
        self._denied = denied or _denied_by_wsgi

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        descriptors = self._descriptors(environ)
        if descriptors is None:
            return self._app(environ, start_response)
        decision = self._client.decide(descriptors)

        def start_with_headers(status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
            return start_response(status, [*headers, *decision.headers.items()], *error)

        app = self._app if decision.allowed else self._denied(decision)
        return app(environ, start_with_headers)


def _denied_by_wsgi(decision: Decision) -> WSGIApplication:
    def app(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status = denial_of(decision)
        body, headers = _plain(status)
        start_response(f"{status.value} {status.phrase}", list(headers.items()))
        return [body]

    return app
