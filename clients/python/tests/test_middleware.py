"""What the clients of a web application get."""

import asyncio
import inspect
import os
import unittest
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

from conformance import needs_service, service
from fastapi import APIRouter, Depends, FastAPI, Header
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from tollkeeper import ASGIMiddleware, AsyncClient, Client, WSGIMiddleware
from tollkeeper.fastapi import rate_limit, rate_limited
from tollkeeper.testing import Fake

Response = tuple[int, dict[str, str], bytes]


def limited(path: str) -> dict[str, str] | None:
    return {"three": path} if path.startswith("/limited") else None


def hello(_environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-App", "1")])
    return [b"hello"]


def through_wsgi(client: Client, paths: list[str]) -> list[Response]:
    # Checks that both sides of the middleware keep to the rules of WSGI.
    middleware: Any = WSGIMiddleware(validator(hello), client, lambda environ: limited(environ["PATH_INFO"]))
    return [wsgi_response(middleware, path) for path in paths]


def wsgi_response(middleware: Any, path: str) -> Response:
    environ: dict[str, Any] = {"SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
    setup_testing_defaults(environ)
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], _error: Any = None) -> Any:
        started.append((int(status.split(maxsplit=1)[0]), {name.lower(): value for name, value in headers}))
        return lambda _: None

    parts: Any = validator(middleware)(environ, start_response)
    body = b"".join(parts)
    parts.close()
    return (*started[0], body)


def through_asgi(client: AsyncClient, paths: list[str]) -> list[Response]:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/plain"), (b"x-app", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hel", "more_body": True})
        await send({"type": "http.response.body", "body": b"lo"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def responses() -> list[Response]:
        middleware = ASGIMiddleware(app, client, lambda scope: limited(scope["path"]))
        found: list[Response] = []
        for path in paths:
            sent: list[Any] = []

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            await middleware({"type": "http", "path": path}, receive, send)
            start, *bodies = sent
            headers = {name.decode(): value.decode() for name, value in start["headers"]}
            found.append((start["status"], headers, b"".join(it["body"] for it in bodies)))
        await client.close()
        return found

    return asyncio.run(responses())


def responses(paths: list[str], address: str, **settings: Any) -> list[list[Response]]:
    """Through WSGI, and through ASGI, for which paths are other ones."""
    with Client(address, "conformance", **settings) as client:
        answers = through_wsgi(client, paths)
    return [answers, through_asgi(AsyncClient(address, "conformance", **settings), [f"{path}/asgi" for path in paths])]


@needs_service
class Middleware(unittest.TestCase):
    def test_a_response_has_the_headers_of_its_decision_and_the_fourth_request_is_denied(self) -> None:
        for answers in responses([f"/limited/{uuid.uuid4().hex}"] * 4, service(), timeout=10):
            self.assertEqual([status for status, _, _ in answers], [200, 200, 200, 429])
            self.assertEqual([headers["ratelimit-remaining"] for _, headers, _ in answers], ["2", "1", "0", "0"])
            for status, headers, body in answers:
                self.assertEqual(headers["ratelimit-limit"], "3")
                self.assertGreater(int(headers["ratelimit-reset"]), 0)
                self.assertEqual("retry-after" in headers, status == 429)
                self.assertEqual("x-app" in headers, status == 200)
                self.assertEqual(body, b"hello" if status == 200 else b"Too Many Requests\n")

    def test_a_request_without_descriptors_passes_unchanged(self) -> None:
        for [(status, headers, body)] in responses(["/free"], os.environ["TOLLKEEPER_GONE_ADDR"], on_failure="deny"):
            self.assertEqual((status, set(headers), body), (200, {"content-type", "x-app"}, b"hello"))

    def test_a_request_that_on_failure_allows_passes_without_headers(self) -> None:
        for [(status, headers, body)] in responses(["/limited"], os.environ["TOLLKEEPER_GONE_ADDR"]):
            self.assertEqual((status, set(headers), body), (200, {"content-type", "x-app"}, b"hello"))

    def test_a_request_that_on_failure_denies_gets_503(self) -> None:
        for [(status, headers, body)] in responses(["/limited"], os.environ["TOLLKEEPER_GONE_ADDR"], on_failure="deny"):
            self.assertEqual((status, body), (503, b"Service Unavailable\n"))
            self.assertEqual(set(headers), {"content-type", "content-length"})

    def test_what_is_no_http_request_passes(self) -> None:
        seen = []

        async def app(scope: Any, _receive: Any, _send: Any) -> None:
            seen.append(scope["type"])

        client = Fake().async_client(on_failure="deny")
        middleware: Any = ASGIMiddleware(app, client, lambda scope: limited("/limited"))
        for kind in ("lifespan", "websocket"):
            asyncio.run(middleware({"type": kind}, None, None))
        self.assertEqual(seen, ["lifespan", "websocket"])


class Applications(unittest.TestCase):
    def test_the_application_makes_the_response_to_a_denied_request(self) -> None:
        fake = Fake()
        fake.deny({"user": "alice"})

        async def by_user(_scope: Any) -> dict[str, str]:
            return {"user": "alice"}

        app = FastAPI()
        app.add_middleware(
            ASGIMiddleware,
            client=fake.async_client(),
            descriptors=by_user,
            denied=lambda decision: JSONResponse({"rule": decision.rule}, status_code=429),
        )
        answer = TestClient(app).get("/")
        self.assertEqual((answer.status_code, answer.json()), (429, {"rule": "fake"}))
        self.assertEqual((answer.headers["retry-after"], answer.headers["ratelimit-limit"]), ("60", "0"))

    def test_wsgi_answers_a_denied_request_as_the_application_says(self) -> None:
        def denied(_decision: Any) -> Any:
            def app(_environ: Any, start_response: Any) -> list[bytes]:
                start_response("429 Slow Down", [("Content-Type", "text/plain")])
                return [b"slow down"]

            return app

        fake = Fake()
        fake.deny({"user": "alice"})
        started: list[Any] = []
        middleware: Any = WSGIMiddleware(denied(None), fake.client(), lambda _: {"user": "alice"}, denied)
        self.assertEqual(middleware({}, lambda *start: started.append(start)), [b"slow down"])
        self.assertEqual((started[0][0], dict(started[0][1])["Retry-After"]), ("429 Slow Down", "60"))

    def test_a_mistake_of_the_caller_gets_500_and_one_line_a_minute_explains_it(self) -> None:
        app = FastAPI()
        app.add_middleware(ASGIMiddleware, client=Fake().async_client(), descriptors=lambda _: {"": "secret"})
        with self.assertLogs("tollkeeper", "ERROR") as logs:
            answers = [TestClient(app).get("/") for _ in range(2)]
        self.assertEqual([(it.status_code, it.text) for it in answers], [(500, "Internal Server Error\n")] * 2)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("answered by 500", logs.output[0])
        self.assertIn("descriptors[0].entries[0].key: must not be empty", logs.output[0])

        middleware: Any = WSGIMiddleware(hello, Fake().client(), lambda _: {"": "secret"})
        with self.assertLogs("tollkeeper", "ERROR") as logs:
            found = [wsgi_response(middleware, "/") for _ in range(2)]
        self.assertEqual([(status, body) for status, _, body in found], [(500, b"Internal Server Error\n")] * 2)
        self.assertEqual(len(logs.output), 1)

    def test_wsgi_answers_head_without_a_body(self) -> None:
        def denied(_decision: Any) -> Any:
            def app(_environ: Any, start_response: Any) -> Iterator[bytes]:
                write = start_response("429 Slow Down", [("Content-Type", "text/plain")])
                write(b"slow ")
                yield b"down"

            return app

        written: list[bytes] = []
        fake = Fake()
        fake.deny({"user": "alice"})
        started: list[str] = []

        def start(status: str, _headers: Any, _error: Any = None) -> Any:
            started.append(status)
            return written.append

        def descriptors(environ: Any) -> dict[str, str]:
            return {environ["key"]: "alice"}

        default = WSGIMiddleware(hello, fake.client(), descriptors)
        own = WSGIMiddleware(hello, fake.client(), descriptors, denied)
        with self.assertLogs("tollkeeper"):
            for middleware, key in ((default, "user"), (own, "user"), (default, "")):
                self.assertEqual(list(middleware({"REQUEST_METHOD": "HEAD", "key": key}, start)), [])
        self.assertEqual(started, ["429 Too Many Requests", "429 Slow Down", "500 Internal Server Error"])
        self.assertEqual(written, [])

    def test_a_header_of_the_handler_is_replaced(self) -> None:
        own = [("RateLimit-limit", "7"), ("X-App", "1")]
        fake = Fake()
        fake.limit({"user": "alice"}, 5)

        async def asgi(_scope: Any, _receive: Any, send: Any) -> None:
            encoded = [(name.encode(), value.encode()) for name, value in own]
            await send({"type": "http.response.start", "status": 200, "headers": encoded})
            await send({"type": "http.response.body"})

        def wsgi(_environ: Any, start_response: Any) -> list[bytes]:
            start_response("200 OK", own)
            return []

        app: Any = ASGIMiddleware(asgi, fake.async_client(), lambda _: {"user": "alice"})
        self.assertEqual(TestClient(app).get("/").headers.get_list("ratelimit-limit"), ["5"])
        started: list[Any] = []
        middleware: Any = WSGIMiddleware(wsgi, fake.client(), lambda _: {"user": "alice"})
        middleware({}, lambda *start: started.append(start))
        self.assertEqual([value for name, value in started[0][1] if name.lower() == "ratelimit-limit"], ["5"])
        self.assertIn(own[1], started[0][1])


class Routes(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = Fake()
        client = self.fake.async_client(on_failure="deny")

        def user(authorization: str = Header()) -> str:
            return authorization.removeprefix("Bearer ")

        def by_user(route: str) -> Callable[..., Awaitable[dict[str, str] | None]]:
            async def describe(user: str = Depends(user)) -> dict[str, str] | None:
                if user == "mistake":
                    return {"": user}
                return {"route": route, "user": user} if user != "admin" else None

            return describe

        router = APIRouter()

        @router.get("/items/{item}", dependencies=[Depends(rate_limit(client, by_user("items")))])
        async def item(item: str) -> str:
            return item

        @router.get("/decorated/{item}")
        @rate_limited(client, by_user("decorated"))
        async def decorated(item: str) -> str:
            return item

        @router.get("/blocking/{item}")
        @rate_limited(client, by_user("blocking"))
        def blocking(item: str, size: int = 1) -> str:
            return item * size

        @router.get("/twice")
        @rate_limited(client, by_user("first"))
        @rate_limited(client, by_user("second"))
        async def twice() -> None: ...

        strict = client.using(require_limit=True)

        @router.get("/misspelt", dependencies=[Depends(rate_limit(strict, by_user("itmes")))])
        async def misspelt() -> None: ...

        app = FastAPI()
        app.include_router(router)
        app.include_router(router, prefix="/api")
        app.mount("/mounted", app)
        self.app = TestClient(app)

    def get(self, path: str, user: str = "alice") -> Any:
        return self.app.get(path, headers={"Authorization": f"Bearer {user}"})

    def test_a_route_is_limited_by_its_name_and_the_user_in_each_router(self) -> None:
        self.fake.limit({"route": "items", "user": "alice"}, 2)
        answers = [self.get(path) for path in ("/items/1", "/api/items/2", "/mounted/api/items/3")]
        self.assertEqual([it.status_code for it in answers], [200, 200, 429])
        self.assertEqual([it.headers["ratelimit-remaining"] for it in answers], ["1", "0", "0"])
        self.assertEqual(
            (answers[2].json(), answers[2].headers["retry-after"]), ({"detail": "Too Many Requests"}, "60")
        )
        self.assertEqual(self.get("/items/1", "bob").status_code, 200)

    def test_the_annotations_of_a_decorated_handler_may_be_text(self) -> None:
        async def handler(route: "APIRouter") -> "str | None":
            return None

        decorated = rate_limited(self.fake.async_client(), dict)(handler)
        signature = inspect.signature(decorated)
        annotations = signature.parameters["route"].annotation, signature.return_annotation
        self.assertEqual(annotations, (APIRouter, str | None))

    def test_a_decorated_handler_is_limited_like_its_route(self) -> None:
        for name in ("decorated", "blocking"):
            self.fake.limit({"route": name, "user": "alice"}, 1)
            first, second = (self.get(f"/{name}/{number}") for number in (1, 2))
            self.assertEqual((first.json(), first.headers["ratelimit-remaining"]), ("1", "0"))
            self.assertEqual((second.status_code, second.json()), (429, {"detail": "Too Many Requests"}))
        self.assertEqual(self.get("/blocking/a?size=2", "admin").json(), "aa")
        parameters = self.app.get("/openapi.json").json()["paths"]["/blocking/{item}"]["get"]["parameters"]
        self.assertEqual([it["name"] for it in parameters], ["item", "size", "authorization"])

    def test_two_decorators_decide_one_after_the_other(self) -> None:
        self.fake.limit({"route": "first", "user": "alice"}, 2)
        self.fake.limit({"route": "second", "user": "alice"}, 1)
        answers = [self.get("/twice") for _ in range(2)]
        self.assertEqual([it.status_code for it in answers], [200, 429])

    def test_a_name_of_a_route_without_a_limit_gets_500_where_one_is_required(self) -> None:
        with self.assertLogs("tollkeeper", "ERROR") as logs:
            self.assertEqual(self.get("/misspelt").status_code, 500)
        self.assertIn("descriptors[0]: no limit applies to route|user", logs.output[0])

    def test_a_request_without_an_identity_is_not_decided(self) -> None:
        self.assertEqual(self.app.get("/items/1").status_code, 422)
        self.assertEqual(self.fake.calls, [])

    def test_a_request_without_descriptors_is_not_decided(self) -> None:
        self.assertEqual(self.get("/items/1", "admin").status_code, 200)
        self.assertEqual(self.fake.calls, [])

    def test_a_mistake_of_the_caller_gets_500_and_one_line_a_minute_explains_it(self) -> None:
        with self.assertLogs("tollkeeper", "ERROR") as logs:
            answers = [self.get("/items/1", "mistake") for _ in range(2)]
        self.assertEqual([it.status_code for it in answers], [500] * 2)
        self.assertEqual(answers[0].json(), {"detail": "Internal Server Error"})
        self.assertEqual(len(logs.output), 1)

    def test_a_request_that_on_failure_denies_gets_503(self) -> None:
        self.fake.fail()
        with self.assertLogs("tollkeeper", "WARNING"):
            answer = self.get("/items/1")
        self.assertEqual((answer.status_code, answer.json()), (503, {"detail": "Service Unavailable"}))

    def test_a_request_that_the_service_refuses_as_too_large_gets_429(self) -> None:
        self.fake.fail("OUT_OF_RANGE")
        with self.assertNoLogs("tollkeeper"):
            answer = self.get("/items/1")
        self.assertEqual((answer.status_code, answer.json()), (429, {"detail": "Too Many Requests"}))


@needs_service
class EventLoops(unittest.TestCase):
    def test_requests_of_a_test_client_are_decided_in_their_own_event_loops(self) -> None:
        app = FastAPI()
        client = AsyncClient(service(), "conformance", timeout=10, on_failure="deny")
        app.add_middleware(ASGIMiddleware, client=client, descriptors=lambda _: {"user": uuid.uuid4().hex})
        answers = [TestClient(app).get("/") for _ in range(3)]
        self.assertEqual([it.status_code for it in answers], [404] * 3)
