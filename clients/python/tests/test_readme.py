"""The samples of README.md run as they are, but for the address and the domain."""

import asyncio
import os
import re
import unittest
import uuid
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import mypy.api
from conformance import PACKAGE, needs_service, service
from fastapi.testclient import TestClient

from tollkeeper import Client, Decision

SAMPLES = re.findall(r"^```python\n(.*?)^```", (PACKAGE / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def run(title: str, replaced: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs the sample that has this text, and returns its names."""
    [sample] = [it for it in SAMPLES if title in it]
    for old, new in (
        {"localhost:8081": service(), '"example"': '"conformance"', "0.02": "10"} | (replaced or {})
    ).items():
        sample = sample.replace(old, new)
    # The default is too short for the first request of a busy test machine.
    sample = sample.replace('"conformance")', '"conformance", timeout=10)')
    names: dict[str, Any] = {}
    with redirect_stdout(StringIO()):
        exec(sample, names)
    return names


class Samples(unittest.TestCase):
    def test_the_samples_have_types(self) -> None:
        with TemporaryDirectory() as folder:
            for number, sample in enumerate(SAMPLES):
                Path(folder, f"sample{number}.py").write_text(sample)
            output, _, code = mypy.api.run(["--strict", "--config-file=", f"--cache-dir={folder}/cache", folder])
        self.assertEqual(code, 0, output)


@needs_service
class Readme(unittest.TestCase):
    def test_three_logins_pass_and_the_fourth_is_denied(self) -> None:
        names, user = run("def login"), uuid.uuid4().hex
        self.assertEqual([names["login"](user) for _ in range(4)], [200, 200, 200, 429])

    def test_a_function_decides_without_an_answer(self) -> None:
        names = run("def only_logins_fail_closed", {"localhost:8081": os.environ["TOLLKEEPER_GONE_ADDR"]})
        self.assertFalse(names["client"].decide({"path": "/login"}).allowed)
        self.assertTrue(names["client"].decide({"path": "/"}).allowed)

    def test_a_hold_is_committed_on_the_way_out(self) -> None:
        names, user = run("def answer(client"), uuid.uuid4().hex

        async def used() -> int | None:
            async with names["AsyncClient"](service(), "conformance", timeout=10) as client:
                self.assertEqual(await names["answer"](client, user), "an answer of a model")
                decision: Decision = await client.read({"user": user})
                return decision.statuses[0].used

        self.assertEqual(asyncio.run(used()), 5)

    def test_a_client_shows_its_certificate(self) -> None:
        paths = {f'"{name}"': repr(os.environ[f"TOLLKEEPER_{kind}"]) for name, kind in FILES.items()}
        address = {"localhost:8081": os.environ["TOLLKEEPER_TLS_ADDR"], "tls=tls": "timeout=10, tls=tls"}
        self.assertFalse(run("TLS(", paths | address)["client"].decide({"user": "tls"}).failed)

    def test_the_middleware_denies_the_fourth_login_of_an_address(self) -> None:
        app = TestClient(run("ASGIMiddleware")["app"], client=(uuid.uuid4().hex, 1))
        self.assertEqual([app.get("/login").status_code for _ in range(4)], [404, 404, 404, 429])
        self.assertNotIn("ratelimit-limit", app.get("/").headers)

    def test_a_route_of_fastapi_is_limited_for_users_that_it_knows(self) -> None:
        with TestClient(run("rate_limit")["app"]) as app:
            answer = app.get("/reports/1", headers={"Authorization": "Bearer key-of-alice"})
            self.assertEqual((answer.status_code, answer.headers["ratelimit-limit"]), (200, "1000"))
            self.assertEqual(app.get("/reports/1").status_code, 401)

    def test_a_stream_of_fastapi_holds_before_its_status_and_commits_what_it_has_used(self) -> None:
        user = uuid.uuid4().hex
        names = run("rate_limit", {'"alice"': f'"{user}"'})
        get: dict[str, Any] = {"url": "/answers", "headers": {"Authorization": "Bearer key-of-alice"}}
        with Client(service(), "conformance", timeout=10) as client, TestClient(names["app"]) as app:
            self.assertEqual(app.get(**get).text, "an answer")
            self.assertEqual(client.read({"user": user}).statuses[0].used, 2)
            client.debit({"user": user}, 998)
            self.assertEqual(app.get(**get).status_code, 429)

    def test_the_interceptor_denies_the_fourth_call_of_a_user(self) -> None:
        replaced = {"alice": uuid.uuid4().hex, '{"user"': '{"three"'}
        names = run("RateLimitInterceptor", replaced)
        [authorization] = names["users"]

        def echo(request: bytes, _context: Any) -> bytes:
            return request

        server = names["server"]
        handlers: Any = {"echo": grpc.unary_unary_rpc_method_handler(echo)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            rpc: Any = channel.unary_unary("/test.Echo/echo")
            calls = [rpc.with_call(b"a", metadata=[("authorization", authorization)]) for _ in range(3)]
            self.assertEqual([answer for answer, _ in calls], [b"a"] * 3)
            with self.assertRaisesRegex(grpc.RpcError, "RESOURCE_EXHAUSTED"):
                rpc(b"a", metadata=[("authorization", authorization)])
        server.stop(None).wait()

    def test_the_fake_greets_bob_once(self) -> None:
        run("Fake()")["test_bob_is_greeted_once"]()


FILES = {"ca.pem": "CA", "client.pem": "CERT", "client.key": "KEY"}
