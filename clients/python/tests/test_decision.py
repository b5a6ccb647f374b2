"""What a decision shows of the service's answer."""

import unittest
import uuid
from collections import OrderedDict
from typing import Any
from unittest import mock

from conformance import needs_service, service

from tollkeeper import Client, Decision, Limited
from tollkeeper._generated.tollkeeper_pb2 import Verdict
from tollkeeper.decision import decode
from tollkeeper.testing import Fake


class Seen(OrderedDict[Any, Any]):
    """Counts the items that were looked at."""

    number = 0

    def items(self) -> Any:
        for item in super().items():
            self.number += 1
            yield item


class Decisions(unittest.TestCase):
    def test_a_call_that_is_denied_by_no_limit_may_come_again_after_a_second(self) -> None:
        self.assertEqual(decode(Verdict(code=Verdict.OVER_LIMIT)), Decision(allowed=False, retry_after=1.0))

    def test_functions_that_raise_are_logged_once_a_minute(self) -> None:
        fake = Fake()
        fake.fail()
        client = fake.client(on_failure=lambda *_: 1 / 0 > 1, on_call=lambda *_: 1 / 0)
        with self.assertLogs("tollkeeper", "ERROR") as logs:
            for _ in range(3):
                client.decide({"user": "alice"})
        self.assertEqual(len(logs.output), 2, logs.output)

    def test_the_number_of_an_outage_is_logged_when_its_minute_is_over(self) -> None:
        fake = Fake()
        client = fake.client()
        with self.assertLogs("tollkeeper") as logs, mock.patch("time.monotonic", return_value=0.0) as now:
            fake.fail()
            for _ in range(4):
                client.decide({"user": "secret"})
            fake.fail(None)
            for now.return_value in (0.0, 59.0, 60.0, 61.0):
                client.decide({"user": "secret"})
        self.assertEqual([line.split()[1] for line in logs.output], ["1", "3"], logs.output)
        self.assertNotIn("secret", " ".join(logs.output))

    def test_a_call_looks_at_no_more_domains_than_those_whose_minute_is_over(self) -> None:
        fake = Fake()
        fake.fail()
        client = fake.client()
        with self.assertLogs("tollkeeper") as logs, mock.patch("time.monotonic") as now:
            for now.return_value in range(50):
                for name in ("first", "second") * 2:
                    client.using(domain=f"{name} {now.return_value}").decide({"user": "alice"})
            fake.fail(None)
            for now.return_value, looks, written in ((59.0, 1, 0), (61.0, 5, 4), (61.0, 1, 0)):
                lines = client._log._lines = Seen(client._log._lines)
                del logs.output[:]
                client.decide({"user": "alice"})
                self.assertEqual((lines.number, len(logs.output)), (looks, written))

    def test_a_denied_decision_is_false(self) -> None:
        self.assertTrue(Decision(allowed=True))
        self.assertFalse(Decision(allowed=False))

    def test_times_in_headers_are_rounded_up(self) -> None:
        decision = Decision(allowed=False, limit=0, reset=0.2, retry_after=1.2)
        headers = {"RateLimit-Limit": "0", "RateLimit-Remaining": "0", "RateLimit-Reset": "1", "Retry-After": "2"}
        self.assertEqual(decision.headers, headers)

    @needs_service
    def test_of_two_limits_that_are_exceeded_the_last_one_is_shown(self) -> None:
        caller = uuid.uuid4().hex
        with Client(service(), "conformance", timeout=10) as client:
            decision = client.decide([{"three": caller}, {"ten": caller}], hits=11)
        self.assertEqual((decision.limit, decision.rule), (10, "ten"))

    @needs_service
    def test_a_limit_of_the_caller_is_in_place_of_the_one_of_the_rules(self) -> None:
        with Client(service(), "conformance", timeout=10) as client:
            decision = client.decide(Limited({"three": uuid.uuid4().hex}, 7, "year"))
        self.assertEqual((decision.limit, decision.remaining, decision.rule), (7, 6, "override"))

    @needs_service
    def test_a_status_shows_the_limit_as_its_rule_has_it(self) -> None:
        with Client(service(), "conformance", timeout=10) as client:
            status = client.read({"double": uuid.uuid4().hex}).statuses[1]
        self.assertEqual((status.name, status.unit, status.unit_multiplier), ("long", "year", 2))
