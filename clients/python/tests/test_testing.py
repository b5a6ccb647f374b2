"""The fake for unit tests, with both clients."""

import asyncio
import unittest

from tollkeeper import Call, Mode
from tollkeeper.testing import Commit, Fake

ALICE = {"user": "alice"}


class Fakes(unittest.TestCase):
    def test_a_call_passes_without_a_limit_and_is_listed(self) -> None:
        fake = Fake()
        decision = fake.client().decide(ALICE, hits=2)
        self.assertEqual((decision.allowed, decision.failed, decision.limit), (True, False, None))
        self.assertTrue(asyncio.run(fake.async_client().check({"a": b"\xff"})).allowed)
        self.assertEqual(fake.calls, [Call([ALICE], 2), Call([{"a": "\ufffd"}], None, Mode.CHECK)])

    def test_a_limit_admits_its_hits(self) -> None:
        fake = Fake()
        client = fake.client()
        fake.limit(ALICE, 2)
        self.assertEqual([client.decide(ALICE).allowed for _ in range(3)], [True, True, False])
        self.assertEqual(client.decide({"user": "bob"}).limit, None)
        denied = client.decide([ALICE, {"user": "bob"}])
        self.assertEqual((denied.allowed, denied.limit, denied.remaining, denied.retry_after), (False, 2, 0, 60))
        self.assertFalse(client.check(ALICE).allowed)
        self.assertEqual([it(ALICE, 0).allowed for it in (client.decide, client.debit, client.part)], [False] * 3)
        self.assertEqual(client.refund(ALICE).remaining, 1)
        self.assertEqual(client.part(ALICE, 5).hits, 1)
        self.assertFalse(client.part(ALICE, 5).allowed)
        self.assertFalse(client.debit(ALICE, 5).allowed)
        self.assertEqual(client.read(ALICE).statuses[0].used, 7)

    def test_a_descriptor_may_be_denied(self) -> None:
        fake = Fake()
        fake.deny([ALICE, {"user": "bob"}])
        self.assertFalse(fake.client().decide({"user": "bob"}).allowed)

    def test_without_an_answer_on_failure_decides(self) -> None:
        fake = Fake()
        fake.limit(ALICE, 1)
        fake.fail("DEADLINE_EXCEEDED")
        client = fake.client(on_failure="deny")
        with self.assertLogs("tollkeeper", "WARNING"):
            decision = client.decide(ALICE)
        self.assertEqual((decision.allowed, decision.error and decision.error.code), (False, "DEADLINE_EXCEEDED"))
        fake.fail(None)
        self.assertTrue(client.decide(ALICE).allowed)

    def test_a_hold_shows_what_was_committed_and_that_counts(self) -> None:
        fake = Fake()
        fake.limit(ALICE, 1000)
        client = fake.client()
        with client.hold(ALICE, estimate=400) as hold:
            self.assertEqual(hold.renew(used=300, estimate=100).remaining, 600)
            hold.renew(used=0)
            hold.used, hold.end = 42, "200"
        self.assertEqual(fake.calls, [Call([ALICE], 400), Call([ALICE], 100), Call([ALICE], 400)])
        self.assertEqual(client.read(ALICE).statuses[0].used, 342)
        self.assertEqual([(it.hold, it.used) for it in fake.commits], [("hold 1", 300), ("hold 2", 0), ("hold 3", 42)])
        self.assertEqual(fake.commits[2], Commit("hold 3", 42, {}, "200"))

    def test_a_hold_of_asyncio_is_released(self) -> None:
        fake = Fake()

        async def work() -> None:
            async with fake.async_client() as client, client.hold(ALICE) as hold:
                await hold.release()

        asyncio.run(work())
        self.assertEqual(fake.commits, [Commit("hold 1", 0, {}, "")])
