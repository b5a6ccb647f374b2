"""What is remembered of denials, and how much."""

import unittest
from unittest.mock import patch

from tollkeeper import Decision
from tollkeeper.denials import DENIALS_MAX, Denials
from tollkeeper.testing import Fake

DENIED = Decision(allowed=False, limit=1, reset=2.5, retry_after=30.0)


class Remembered(unittest.TestCase):
    def test_one_denial_more_than_the_most_makes_all_be_forgotten(self) -> None:
        denials = Denials()
        for number in range(DENIALS_MAX):
            denials.add(b"%d" % number, DENIED)
        self.assertIsNotNone(denials.find(b"0", 60))
        denials.add(b"0", DENIED)
        self.assertIsNotNone(denials.find(b"1", 60))
        denials.add(b"one more", DENIED)
        self.assertEqual([denials.find(it, 60) for it in (b"0", b"9999", b"one more")], [None] * 3)

    def test_the_denial_of_a_long_request_is_not_remembered(self) -> None:
        denials = Denials()
        for length in (1_024, 1_025):
            denials.add(b"x" * length, DENIED)
        self.assertIsNotNone(denials.find(b"x" * 1_024, 60))
        self.assertIsNone(denials.find(b"x" * 1_025, 60))

    def test_the_times_of_a_denial_pass_until_it_is_forgotten(self) -> None:
        denials = Denials()
        with patch("time.monotonic") as now:
            now.return_value = 100.0
            denials.add(b"a", DENIED)
            for passed, shown in ((1, (1.5, 29)), (20, (0, 10)), (29.5, (0, 1)), (30, None)):
                now.return_value = 100.0 + passed
                found = denials.find(b"a", 60)
                self.assertEqual(None if found is None else (found.reset, found.retry_after), shown)

    def test_a_closed_client_gives_no_denial_again(self) -> None:
        fake = Fake()
        fake.deny({"user": "alice"})
        client = fake.client(remember_denials=60, on_failure="allow")
        self.assertEqual([client.decide({"user": "alice"}).allowed for _ in range(2)], [False, False])
        self.assertEqual(len(fake.calls), 1)
        client.close()
        with self.assertLogs("tollkeeper", "WARNING"):
            self.assertTrue(client.decide({"user": "alice"}).failed)
