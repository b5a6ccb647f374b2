"""Both clients do what the table of cases says."""

import asyncio
import inspect
import unittest
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from conformance import cases, client_of, needs_service

from tollkeeper import AsyncClient, Call, Client, Committed, Decision, Limited, Mode


class Steps(unittest.TestCase):
    """Runs the steps of cases and of rows."""

    def derived(self, client: Any, _settings: dict[str, Any]) -> Any:
        return client

    async def run_steps(self, client: Any, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            used = self.derived(client, step["with"]) if "with" in step else client
            if "raises" not in step:
                await self.run_step(used, step)
                continue
            with self.assertRaises(ValueError) as raised:
                await self.run_step(used, step)
            for part in step["raises"]:
                self.assertIn(part, str(raised.exception))

    async def run_step(self, client: Any, step: dict[str, Any]) -> None:
        if step["method"] == "hold":
            await self.run_hold(client, step)
        elif step["method"] == "decide_all":
            calls = [
                Call(descriptors(it), it.get("hits", 1), Mode(it.get("mode", "take")), id=it.get("id", ""))
                for it in step["calls"]
            ]
            decisions = await awaited(client.decide_all(calls))
            self.assertEqual(len(decisions), len(step["expect"]))
            for decision, expected in zip(decisions, step["expect"], strict=True):
                self.check(decision, expected)
        else:
            hits = {"hits": step["hits"]} if "hits" in step else {}
            decision = await self.result(client, step, getattr(client, step["method"]), descriptors(step), **hits)
            self.check(decision, step["expect"])

    async def result(self, client: Any, step: dict[str, Any], method: Any, *arguments: Any, **options: Any) -> Any:
        return await awaited(method(*arguments, **options))

    async def run_hold(self, client: Any, step: dict[str, Any]) -> None:
        estimate = {"estimate": step["estimate"]} if "estimate" in step else {}
        call = Call(descriptors(step), None, hits_by_kind=step["hits_by_kind"]) if "hits_by_kind" in step else None
        hold = client.hold(call or descriptors(step), **estimate)
        try:
            async with entered(hold):
                self.check(hold.decision, step["expect"])
                await self.run_steps(client, step.get("while_open", []))
                if renewal := step.get("renew"):
                    numbers = {name: renewal[name] for name in ("used", "estimate")}
                    decision = await self.result(client, renewal, hold.renew, **numbers)
                    self.check(decision, renewal.get("expect", {}))
                for name in ("used", "used_by_kind", "end"):
                    if name in step:
                        setattr(hold, name, step[name])
                if step.get("release"):
                    self.check_commit(await awaited(hold.release()), {"error": None})
                for _ in range(step.get("commits", 1) - 1):
                    self.check_commit(await awaited(hold.commit()), step.get("expect_commit", {"error": None}))
                await self.run_steps(client, step.get("after", []))
                if step.get("fails"):
                    raise WorkFailedError
        except WorkFailedError:
            self.assertTrue(step.get("fails"))
        else:
            self.assertFalse(step.get("fails"))

    def check(self, decision: Decision, expected: dict[str, Any]) -> None:
        for name, value in expected.items():
            match name:
                case "reset":
                    self.assertEqual(decision.reset > 0, value, decision)
                case "retry_after" if value:
                    self.assertGreaterEqual(decision.retry_after or 0, 1, decision)
                case "retry_after":
                    self.assertIsNone(decision.retry_after, decision)
                case "error":
                    self.assertIsNotNone(decision.error, decision)
                    self.assertIn(value, str(decision.error))
                case "statuses":
                    self.assertEqual(len(decision.statuses), len(value), decision)
                    for status, wanted in zip(decision.statuses, value, strict=True):
                        shown = {field: getattr(status, field) for field in wanted}
                        self.assertEqual(shown, wanted, decision)
                case _:
                    self.assertEqual(getattr(decision, name), value, (name, decision))

    def check_commit(self, committed: Committed, expected: dict[str, Any]) -> None:
        if expected["error"] is None:
            self.assertIsNone(committed.error)
        else:
            self.assertIsNotNone(committed.error)
            self.assertIn(expected["error"], str(committed.error))


@needs_service
class Conformance(Steps):
    def test_the_client_for_threads_does_what_the_cases_say(self) -> None:
        asyncio.run(self.run_cases(Client))

    def test_the_client_for_asyncio_does_what_the_cases_say(self) -> None:
        asyncio.run(self.run_cases(AsyncClient))

    async def run_cases(self, kind: Any) -> None:
        for case in cases():
            with self.subTest(case["name"]):
                client = client_of(case, kind)
                try:
                    await self.run_steps(client, case["steps"])
                finally:
                    await awaited(client.close())


class WorkFailedError(Exception):
    """The work of a hold ends by this."""


def descriptors(step: dict[str, Any]) -> Any:
    """A row may leave them out, and its service has no counters that must be new."""
    paths = [[(key, text(value)) for key, value in it] for it in step.get("descriptors", [[["user", "{run}"]]])]
    limit = step.get("limit")
    return [Limited(it, limit["requests_per_unit"], limit["unit"]) for it in paths] if limit else paths


def text(value: Any) -> str | bytes:
    if not isinstance(value, dict):
        return str(value)
    return value["text"] * value["times"] if "text" in value else bytes.fromhex(value["hex"])


async def awaited(result: Any) -> Any:
    """The result of either client."""
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def entered(hold: Any) -> AsyncIterator[None]:
    """The block of either hold."""
    if hasattr(hold, "__aenter__"):
        async with hold:
            yield
    else:
        with hold:
            yield
