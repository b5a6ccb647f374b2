"""Middleware that decides the requests of a web application, for ASGI and WSGI.

A function of the request returns its descriptors, or None if the request is not limited. A denied request is answered
with 429, or with 503 if `on_failure` denied it; an allowed one passes. The response gets the headers of the decision.
A mistake, such as an empty key, is logged and answered with 500.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, AnyStr
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


MISTAKE = "a request could not be limited, and is answered by 500"


def denial_of(decision: Decision) -> HTTPStatus:
    """The status of a denied request: 503 if nobody has answered, otherwise 429."""
    return HTTPStatus.SERVICE_UNAVAILABLE if decision.failed else HTTPStatus.TOO_MANY_REQUESTS


def _plain(status: HTTPStatus) -> tuple[bytes, dict[str, str]]:
    body = f"{status.phrase}\n".encode()
    return body, {"Content-Type": "text/plain", "Content-Length": str(len(body))}


def _with(headers: Iterable[tuple[AnyStr, AnyStr]], own: list[tuple[AnyStr, AnyStr]]) -> list[tuple[AnyStr, AnyStr]]:
    """The headers, with our own in place of those with the same names."""
    names = {name.lower() for name, _ in own}
    return [header for header in headers if header[0].lower() not in names] + own


@dataclass
class ASGIMiddleware:
    """For ASGI applications. Only HTTP requests are limited; WebSockets pass."""

    app: ASGIApplication
    client: AsyncClient
    descriptors: Callable[[Scope], Descriptors | Awaitable[Descriptors | None] | None]
    denied: Callable[[Decision], ASGIApplication] = lambda decision: _answer_by_asgi(denial_of(decision))
    """Makes the response to a denied request, such as a Response of Starlette; by default plain text."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self.client.connect()
        descriptors = self.descriptors(scope) if scope["type"] == "http" else None
        if inspect.isawaitable(descriptors):
            descriptors = await descriptors
        if descriptors is None:
            await self.app(scope, receive, send)
            return
        try:
            decision = await self.client.decide(descriptors)
        except Exception:
            self.client._log.mistake(MISTAKE)
            await _answer_by_asgi(HTTPStatus.INTERNAL_SERVER_ERROR)(scope, receive, send)
            return
        headers = _encoded(decision.headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with(message.get("headers", ()), headers)}
            await send(message)

        app = self.app if decision.allowed else self.denied(decision)
        await app(scope, receive, send_with_headers)


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def _answer_by_asgi(status: HTTPStatus) -> ASGIApplication:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        body, headers = _plain(status)
        await send({"type": "http.response.start", "status": status.value, "headers": _encoded(headers)})
        await send({"type": "http.response.body", "body": body})

    return app


@dataclass
class WSGIMiddleware:
    """For WSGI applications."""

    app: WSGIApplication
    client: Client
    descriptors: Callable[[WSGIEnvironment], Descriptors | None]
    denied: Callable[[Decision], WSGIApplication] = lambda decision: _answer_by_wsgi(denial_of(decision))
    """Makes the response to a denied request, such as a Response of Flask; by default plain text."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        descriptors = self.descriptors(environ)
        if descriptors is None:
            return self.app(environ, start_response)
        try:
            decision = self.client.decide(descriptors)
        except Exception:
            self.client._log.mistake(MISTAKE)
            return _answer(_answer_by_wsgi(HTTPStatus.INTERNAL_SERVER_ERROR), environ, start_response)

        def start_with_headers(status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
            return start_response(status, _with(headers, list(decision.headers.items())), *error)

        if decision.allowed:
            return self.app(environ, start_with_headers)
        return _answer(self.denied(decision), environ, start_with_headers)


def _answer(app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """The body of the response; none to HEAD, since some servers would send it before the next response."""
    if environ.get("REQUEST_METHOD") != "HEAD":
        return app(environ, start_response)

    def start_without_body(*start: Any) -> Callable[[bytes], object]:
        start_response(*start)
        return lambda _part: None

    parts = app(environ, start_without_body)
    try:
        for _ in parts:
            pass
    finally:
        getattr(parts, "close", lambda: None)()
    return []


def _answer_by_wsgi(status: HTTPStatus) -> WSGIApplication:
    def app(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body, headers = _plain(status)
        start_response(f"{status.value} {status.phrase}", list(headers.items()))
        return [body]

    return app
