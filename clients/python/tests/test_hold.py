"""What becomes of holds when the network, the caller or the work fails."""

import asyncio
import os
import unittest
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conformance import needs_service, service
from relay import Relay

from tollkeeper import AsyncClient, Client

LONG = 10.0


def tokens() -> dict[str, str]:
    return {"tokens": uuid.uuid4().hex}


def used(descriptor: dict[str, str]) -> int | None:
    with Client(service(), "conformance", timeout=LONG) as client:
        decision = client.read(descriptor)
    if decision.error:
        raise decision.error
    return decision.statuses[0].used


@needs_service
class Commits(unittest.TestCase):
    def setUp(self) -> None:
        self.relay = Relay(service())
        self.addCleanup(self.relay.close)
        self.outcomes: list[str] = []

    def take(self) -> tuple[dict[str, str], str]:
        descriptor = tokens()
        with Client(service(), "conformance", timeout=LONG) as client:
            return descriptor, client.decide(descriptor, 400).hold

    def opens_after_the_first(self, method: str, seconds: float, outcome: str) -> None:
        self.assertEqual(method, "commit")
        self.assertGreater(seconds, 0)
        self.outcomes.append(outcome)
        if len(self.outcomes) == 1:
            self.relay.open()

    def test_a_commit_without_an_answer_is_sent_again(self) -> None:
        descriptor, hold = self.take()
        with self.client(Client) as client:
            [charge] = client.commit(hold, used=42).charges
        self.assertEqual((charge.outcome, charge.held, charge.used), ("applied", 400, 42))
        self.assertEqual((self.outcomes[0], self.outcomes[-1]), ("DEADLINE_EXCEEDED", "ok"))
        self.assertEqual(used(descriptor), 42)

    def test_a_commit_of_asyncio_without_an_answer_is_sent_again(self) -> None:
        descriptor, hold = self.take()

        async def commit() -> None:
            async with self.client(AsyncClient) as client:
                self.assertEqual((await client.commit(hold, used=42)).charges[0].outcome, "applied")

        asyncio.run(commit())
        self.assertEqual((self.outcomes[0], self.outcomes[-1]), ("DEADLINE_EXCEEDED", "ok"))
        self.assertEqual(used(descriptor), 42)

    def client(self, kind: Any) -> Any:
        return kind(self.relay.address, "conformance", timeout=2, on_call=self.opens_after_the_first)

    def test_a_commit_that_nobody_answers_is_reported_and_raises_nothing(self) -> None:
        outcomes = []
        with Client(
            os.environ["TOLLKEEPER_GONE_ADDR"],
            "conformance",
            on_call=lambda method, _, outcome: outcomes.append((method, outcome)),
        ) as client:
            committed = client.commit("a hold", used=1)
        self.assertIsNotNone(committed.error)
        self.assertEqual([method for method, _ in outcomes], ["commit"] * 3)
        self.assertNotIn("ok", [outcome for _, outcome in outcomes])

    def test_a_commit_that_the_service_refuses_is_sent_once(self) -> None:
        outcomes: list[str] = []
        with Client(
            service(), "conformance", timeout=LONG, on_call=lambda *reported: outcomes.append(reported[2])
        ) as client:
            committed = client.commit("not a hold", used=1)
            client.commit("too large", end=" " * 5_000_000)
        self.assertEqual(committed.error and committed.error.code, "INVALID_ARGUMENT")
        self.assertEqual(outcomes, ["INVALID_ARGUMENT", "OUT_OF_RANGE"])

    def test_a_hold_that_ends_after_its_client_was_closed_raises_nothing(self) -> None:
        client = Client(service(), "conformance", timeout=LONG)
        with client.hold(tokens()) as hold:
            self.assertTrue(hold.decision.hold)
            client.close()
        asyncio.run(self.close_within_a_hold())

    async def close_within_a_hold(self) -> None:
        client = AsyncClient(service(), "conformance", timeout=LONG)
        async with client.hold(tokens()) as hold:
            self.assertTrue(hold.decision.hold)
            await client.close()


@needs_service
class Cancellation(unittest.TestCase):
    def test_a_hold_is_committed_if_its_task_is_cancelled_at_every_await(self) -> None:
        descriptor = tokens()
        asyncio.run(self.cancel(descriptor))
        self.assertEqual(used(descriptor), 42)

    async def cancel(self, descriptor: dict[str, str]) -> None:
        is_open = asyncio.Event()
        client = AsyncClient(service(), "conformance", timeout=LONG)

        async def work() -> None:
            async with client.hold(descriptor, estimate=400) as hold:
                hold.used = 42
                is_open.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await is_open.wait()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        await client.close()


@needs_service
class Use(unittest.TestCase):
    def test_a_service_is_reached_over_a_slow_network(self) -> None:
        relay = Relay(service(), delay=0.5)
        self.addCleanup(relay.close)
        relay.open()
        with Client(relay.address, "conformance", timeout=LONG) as client:
            self.assertIsNone(client.decide({"ten": uuid.uuid4().hex}).error)

    def test_an_estimate_may_be_stated_by_kind(self) -> None:
        estimate = {"hold.estimate.input": "10", "hold.estimate.output": "5"}
        client = Client(service(), "conformance", timeout=LONG)
        with client, client.hold({"kinds": uuid.uuid4().hex} | estimate) as hold:
            self.assertEqual(hold.decision.remaining, 1000 - 10 * 2 - 5 * 10)

    def test_threads_share_a_client_and_a_limit(self) -> None:
        descriptor = {"ten": uuid.uuid4().hex}
        with Client(service(), "conformance", timeout=LONG) as client, ThreadPoolExecutor(8) as pool:
            decisions = list(pool.map(client.decide, [descriptor] * 40))
        self.assertEqual(sum(map(bool, decisions)), 10)

    def test_a_client_for_asyncio_may_be_made_before_its_event_loop(self) -> None:
        client = AsyncClient(service(), "conformance", timeout=LONG)

        async def decide() -> bool:
            async with client:
                return (await client.decide({"ten": uuid.uuid4().hex})).failed

        self.assertFalse(asyncio.run(decide()))

    def test_numbers_of_a_hold_are_checked_where_they_are_set(self) -> None:
        hold = Client(service(), "conformance").hold(tokens())
        with self.assertRaisesRegex(ValueError, "used: must be from 0 to 9007199254740991, not -1"):
            hold.used = -1
        with self.assertRaisesRegex(ValueError, r"used_by_kind\[input\]: must be from 0 to 9007199254740991"):
            hold.used_by_kind = {"input": 2**53}
