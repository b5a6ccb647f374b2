"""What becomes of holds when the network, the caller or the work fails."""

import asyncio
import unittest
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conformance import needs_service, service
from relay import Relay
from test_conformance import awaited, entered

from tollkeeper import AsyncClient, Call, Client
from tollkeeper.testing import Fake

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
    def take(self) -> tuple[dict[str, str], str]:
        descriptor = tokens()
        with Client(service(), "conformance", timeout=LONG) as client:
            return descriptor, client.decide(descriptor, 400).hold

    def test_a_commit_shows_what_it_has_charged(self) -> None:
        descriptor, hold = self.take()
        with Client(service(), "conformance", timeout=LONG, commit_timeout=4 * LONG) as client:
            [charge] = client.commit(hold, used=42).charges
        self.assertEqual((charge.outcome, charge.held, charge.used), ("applied", 400, 42))
        self.assertEqual(used(descriptor), 42)

    def test_a_commit_that_the_service_refuses_is_sent_once(self) -> None:
        outcomes: list[str] = []
        with Client(
            service(), "conformance", commit_timeout=4 * LONG, on_call=lambda *reported: outcomes.append(reported[2])
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


class Renewals(unittest.TestCase):
    def test_a_renewal_that_was_a_mistake_counts_its_usage_once(self) -> None:
        fake = Fake()
        with fake.client().hold({"user": "alice"}, estimate=10) as hold:
            with self.assertRaises(ValueError):
                hold.renew(used=3, hits_by_kind={"input": -1})
            hold.renew(used=3)
        self.assertEqual([it.used for it in fake.commits], [3, None])


class Closing(unittest.TestCase):
    def test_close_awaits_the_commits_of_holds_whose_tasks_were_cancelled_right_before(self) -> None:
        for before, to_leave in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 3), (0, 50)):
            with self.subTest(before=before, to_leave=to_leave):
                self.assertEqual(asyncio.run(self.cancel_and_close(before, to_leave)), [1] * 3)

    async def cancel_and_close(self, before: int, to_leave: int) -> list[int | None]:
        """What is committed of holds if so many turns of the event loop pass before `close`, and in each of them."""
        fake, are_open = Fake(), asyncio.Barrier(4)
        client = fake.async_client(timeout=LONG, commit_timeout=LONG)

        async def work() -> None:
            async with client.hold({"user": "alice"}, estimate=10) as hold:
                hold.used = 1
                await are_open.wait()
                try:
                    await asyncio.Event().wait()
                finally:
                    await pass_turns(to_leave)

        tasks = [asyncio.create_task(work()) for _ in range(3)]
        await are_open.wait()
        for task in tasks:
            task.cancel()
        await pass_turns(before)
        await client.close()
        return [it.used for it in fake.commits]

    def test_close_does_not_wait_for_the_hold_that_it_is_called_in(self) -> None:
        asyncio.run(asyncio.wait_for(self.close_within_a_hold(), LONG))

    async def close_within_a_hold(self) -> None:
        async with Fake().async_client(timeout=LONG, commit_timeout=86_400) as client, client.hold({"user": "alice"}):
            await client.close()


class Limits(unittest.TestCase):
    def test_what_is_held_is_given_back_if_a_descriptor_met_no_limit(self) -> None:
        makers: list[Any] = [Fake.client, Fake.async_client]
        for make in makers:
            fake = Fake()
            fake.limit({"user": "alice"}, 10)
            asyncio.run(self.hold_and_renew(make(fake, require_limit=True)))
            self.assertEqual([(it.hold, it.used) for it in fake.commits], [("hold 1", 0), ("hold 2", 3), ("hold 3", 0)])
            self.assertEqual(fake.client().read({"user": "alice"}).remaining, 7)

    async def hold_and_renew(self, client: Any) -> None:
        half = Call([{"user": "alice"}, {"typo": "alice"}], 4)
        text = r"descriptors\[1\]: no limit applies to typo in the domain fake \(require_limit\)"
        with self.assertRaisesRegex(ValueError, text):
            async with entered(client.hold(half)):
                pass
        hold = client.hold({"user": "alice"}, estimate=4)
        with self.assertRaisesRegex(ValueError, text):
            async with entered(hold):
                # As if the rules had changed.
                hold._call = half
                await awaited(hold.renew(used=3))


async def pass_turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@needs_service
class Use(unittest.TestCase):
    def test_a_service_is_reached_over_a_slow_network(self) -> None:
        relay = Relay(service(), delay=0.5)
        self.addCleanup(relay.close)
        relay.open()
        with Client(relay.address, "conformance", timeout=LONG) as client:
            self.assertIsNone(client.decide({"ten": uuid.uuid4().hex}).error)

    def test_a_renewal_commits_what_was_used_and_holds_anew(self) -> None:
        descriptor = tokens()
        with Client(service(), "conformance", timeout=LONG, commit_timeout=4 * LONG) as client:
            with client.hold(descriptor, estimate=400) as hold:
                self.assertEqual(hold.renew(used=100, estimate=200).remaining, 700)
                self.assertIsNone(hold.used)
                hold.used = 42
            self.assertEqual(used(descriptor), 142)

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

    def test_a_client_for_asyncio_works_in_one_event_loop_after_another(self) -> None:
        client = AsyncClient(service(), "conformance", timeout=LONG, on_failure="deny")
        descriptor = {"ten": uuid.uuid4().hex}
        for _ in range(3):
            self.assertTrue(asyncio.run(client.decide(descriptor)).allowed)

    def test_a_hold_has_no_decision_before_its_block(self) -> None:
        hold = Client(service(), "conformance").hold(tokens())
        self.assertIsNone(hold.used)
        with self.assertRaisesRegex(RuntimeError, "hold: not decided yet; enter it by"):
            bool(hold)

    def test_a_mistake_in_what_was_used_is_raised_where_it_is_made_and_the_hold_is_committed(self) -> None:
        descriptor = tokens()
        client = Client(service(), "conformance", timeout=LONG, commit_timeout=4 * LONG)
        wrong: list[tuple[str, Any, str]] = [
            ("used", 41.5, "used: must be an int, not float"),
            ("used_by_kind", {"input": 1.0}, r"used_by_kind\[input\]: must be an int, not float"),
            ("used_by_kind", {1: 1}, "used_by_kind: kind: must be str, not int"),
            ("end", 503, "end: must be str, not int"),
            ("end", "\ud800", r"end: must be valid Unicode, not '\\ud800'"),
        ]
        for name, value, text in wrong:
            with self.assertRaisesRegex((TypeError, ValueError), text), client.hold(descriptor, estimate=10) as hold:
                hold.used = 1
                setattr(hold, name, value)
        self.assertEqual(used(descriptor), len(wrong))

    def test_numbers_of_a_hold_are_checked_where_they_are_set(self) -> None:
        hold = Client(service(), "conformance").hold(tokens())
        with self.assertRaisesRegex(ValueError, "used: must be from 0 to 9007199254740991, not -1"):
            hold.used = -1
        with self.assertRaisesRegex(ValueError, r"used_by_kind\[input\]: must be from 0 to 9007199254740991"):
            hold.used_by_kind = {"input": 2**53}
