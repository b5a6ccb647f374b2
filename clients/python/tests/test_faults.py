"""Both clients do what the table of faults says."""

import asyncio
import inspect
import json
import logging
import os
import time
import unittest
from typing import Any

from conformance import FOLDER
from test_conformance import Steps, awaited, descriptors

from tollkeeper import TLS, AsyncClient, Client

ROWS = json.loads((FOLDER / "faults.json").read_text())["rows"]


@unittest.skipUnless("TOLLKEEPER_FAULTS" in os.environ, "TOLLKEEPER_FAULTS is the line of faults.py")
class Faults(unittest.TestCase):
    def test_the_client_for_threads_does_what_the_rows_say(self) -> None:
        asyncio.run(self.run_rows(Client))

    def test_the_client_for_asyncio_does_what_the_rows_say(self) -> None:
        asyncio.run(self.run_rows(AsyncClient))

    async def run_rows(self, kind: Any) -> None:
        addresses = json.loads(os.environ["TOLLKEEPER_FAULTS"])
        for row in ROWS:
            # A thread cannot leave while it waits.
            if kind is Client and "leave_meanwhile" in json.dumps(row):
                continue
            with self.subTest(row["name"]):
                await Row(row, addresses[row["name"]]).run_with(kind)


class Row(Steps):
    """One row with one kind of client."""

    def __init__(self, row: dict[str, Any], address: str) -> None:
        super().__init__()
        self.row, self.address = row, address
        self.settings: dict[str, Any] = row.get("client", {})
        self.heard: list[tuple[str, str]] = []

    async def run_with(self, kind: Any) -> None:
        await self.ask("begin")
        with LogLines() as lines:
            client = self.client(kind)
            start = time.perf_counter()
            try:
                await self.run_steps(client, self.row["steps"])
                elapsed_ms = (time.perf_counter() - start) * 1000
            finally:
                await awaited(client.close())
        self.assertGreaterEqual(elapsed_ms, self.row.get("at_least_ms", 0))
        self.assertLessEqual(elapsed_ms, self.row.get("at_most_ms", float("inf")))
        if "on_call" in self.row:
            self.assertEqual([method for method, _ in self.heard], [method for method, _ in self.row["on_call"]])
            for (_, code), (_, codes) in zip(self.heard, self.row["on_call"], strict=True):
                self.assertIn(code, codes.split("|"), self.heard)
        for text in self.row.get("log", []):
            self.assertIn(text.replace("{address}", self.address), "\n".join(lines))
        self.assertEqual(len(lines), self.row.get("logs", len(lines)), lines)

    def client(self, kind: Any) -> Any:
        tls = TLS(os.environ["TOLLKEEPER_CA"], server_name="localhost") if "service" in self.settings else None
        policy = arguments({"domain": "conformance", "timeout_ms": 10_000, "commit_timeout_ms": 10_000} | self.settings)
        return kind(self.address, **policy, tls=tls, on_call=self.hear)

    def derived(self, client: Any, settings: dict[str, Any]) -> Any:
        return client.using(**arguments(settings))

    def hear(self, method: str, _seconds: float, code: str) -> None:
        self.heard.append((method, code))
        if self.settings.get("on_call") == "throws":
            raise WrongError

    async def run_step(self, client: Any, step: dict[str, Any]) -> None:
        match step["method"]:
            case "connected" | "pinged" as command:
                await self.ask(command)
            case "wait":
                await asyncio.sleep(step["ms"] / 1000)
            case "close":
                await awaited(client.close())
            case "commit":
                committed = await self.result(client, step, client.commit, "token", step["used"])
                self.check_commit(committed, step["expect"])
            case "hold" if "leave_meanwhile" in step:
                await self.result(client, step, client.hold(descriptors(step)).__aenter__)
            case _:
                await super().run_step(client, step)

    async def result(self, client: Any, step: dict[str, Any], method: Any, *arguments: Any, **options: Any) -> Any:
        requests = step.get("close_meanwhile") or step.get("leave_meanwhile")
        if not requests:
            return await super().result(client, step, method, *arguments, **options)
        if inspect.iscoroutinefunction(client.close):
            under_way = asyncio.create_task(method(*arguments, **options))
        else:
            under_way = asyncio.create_task(asyncio.to_thread(method, *arguments, **options))
        await self.ask(f"sent {requests}")
        if "leave_meanwhile" in step:
            under_way.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await under_way
            return None
        await awaited(client.close())
        return await under_way

    async def ask(self, command: str) -> None:
        """Waits until the row's service has what the command says."""
        reader, writer = await asyncio.open_connection(*self.address.split(":"))
        writer.write(f"{command}\n".encode())
        self.assertEqual(await reader.readline(), b"ok\n")
        writer.close()


def arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a client for the settings of a row."""
    found = {name.removesuffix("_ms"): ms / 1000 for name, ms in settings.items() if name.endswith("_ms")}
    found |= {name: settings[name] for name in ("domain", "require_limit", "on_failure") if name in settings}
    if found.get("on_failure") == "throws":
        found["on_failure"] = throw
    return found


class WrongError(Exception):
    """What the functions of a row raise."""


def throw(*_arguments: Any) -> bool:
    raise WrongError


class LogLines(logging.Handler):
    """The lines that the client logs."""

    def __enter__(self) -> list[str]:
        self.lines: list[str] = []
        logging.getLogger("tollkeeper").addHandler(self)
        return self.lines

    def __exit__(self, *raised: object) -> None:
        logging.getLogger("tollkeeper").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
