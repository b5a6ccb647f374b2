"""What is sent for what the caller writes, and which mistakes are found before."""

import asyncio
import unittest
from typing import Any, cast

import grpc

from tollkeeper import OPTIONS, AsyncClient, Call, Client, Decision, Limited, Mode
from tollkeeper.call import encode


def entries(descriptors: Any) -> list[list[tuple[bytes, bytes]]]:
    message = encode(Call(descriptors))
    return [[(entry.key, entry.value) for entry in it.entries] for it in message.descriptors]


class Calls(unittest.TestCase):
    def test_a_mapping_and_a_list_of_pairs_are_one_descriptor_each(self) -> None:
        path = [[(b"path", b"/login"), (b"user", b"alice")]]
        self.assertEqual(entries({"path": "/login", "user": "alice"}), path)
        self.assertEqual(entries([("path", "/login"), ("user", "alice")]), path)
        self.assertEqual(entries((("path", "/login"), ("user", b"alice"))), path)
        self.assertEqual(entries([{"path": "/login", "user": "alice"}]), path)

    def test_a_list_has_several_descriptors(self) -> None:
        both = [[(b"a", b"1")], [(b"b", b"2")]]
        self.assertEqual(entries([{"a": "1"}, {"b": "2"}]), both)
        self.assertEqual(entries([[("a", "1")], {"b": "2"}]), both)
        self.assertEqual(entries(((("a", "1"),), (("b", "2"),))), both)

    def test_pairs_may_repeat_a_key(self) -> None:
        self.assertEqual(entries([("a", "1"), ("a", "2")]), [[(b"a", b"1"), (b"a", b"2")]])

    def test_a_value_of_any_text_can_be_sent(self) -> None:
        self.assertEqual(entries({"user": "\ud800"}), [[(b"user", b"\xed\xa0\x80")]])

    def test_a_refund_has_negative_hits_on_each_descriptor(self) -> None:
        message = encode(Call([{"a": "1"}, {"b": "2"}], 5, Mode.REFUND))
        self.assertEqual(message.hits, 5)
        self.assertEqual([it.is_negative_hits for it in message.descriptors], [True, True])

    def test_a_check_and_a_read_have_no_hits(self) -> None:
        for mode in (Mode.CHECK, Mode.READ):
            self.assertFalse(encode(Call({"a": "1"}, 5, mode)).HasField("hits"))

    def test_a_value_that_is_not_text_is_named(self) -> None:
        with self.assertRaisesRegex(TypeError, r"descriptors\[0\]\.entries\[1\]\.value: must be str or bytes, not int"):
            entries({"path": "/", "user": 7})

    def test_a_limit_of_the_caller_is_checked(self) -> None:
        override = encode(Call(Limited({"plan": "gold"}, 5, "minute", 2))).descriptors[0].limit
        self.assertEqual((override.requests_per_unit, override.unit, override.unit_multiplier.value), (5, 2, 2))
        for limited, text in (
            (
                Limited({"a": "1"}, 5, "fortnight"),
                r"descriptors\[0\]\.limit\.unit: must be one of: second, minute, .*, week$",
            ),
            (
                Limited({"a": "1"}, 2**32, "day"),
                r"descriptors\[0\]\.limit\.requests: must be from 0 to 4294967295, not",
            ),
            (
                Limited({"a": "1"}, cast(int, "alice"), "day"),
                r"descriptors\[0\]\.limit\.requests: must be an int, not str$",
            ),
        ):
            with self.assertRaisesRegex((ValueError, TypeError), text):
                encode(Call(limited))

    def test_a_batch_has_at_most_1000_calls(self) -> None:
        with self.assertRaisesRegex(ValueError, "calls: must be at most 1000, not 1001"):
            Client("localhost:1", "example").decide_all([Call({"a": "1"})] * 1001)


class Traced(grpc.UnaryUnaryClientInterceptor, grpc.aio.UnaryUnaryClientInterceptor):
    """Notes the methods that it sends, as an interceptor that passes on the context of a trace would."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        method = client_call_details.method
        self.methods.append(method.decode() if isinstance(method, bytes) else method)
        return continuation(client_call_details, request)


class Channels(unittest.TestCase):
    def test_a_channel_of_the_caller_passes_requests_through_its_interceptors_and_stays_open(self) -> None:
        traced = Traced()
        with grpc.insecure_channel("127.0.0.1:1", OPTIONS) as channel:
            for _ in range(2):
                with Client(grpc.intercept_channel(channel, traced), "example", timeout=10) as client:
                    self.assertEqual(error_code(client.decide({"a": "1"})), "UNAVAILABLE")
        asyncio.run(self.decide_twice(traced))
        self.assertEqual(traced.methods, ["/tollkeeper.v1.Tollkeeper/Decide"] * 4)

    async def decide_twice(self, traced: Traced) -> None:
        async with grpc.aio.insecure_channel("127.0.0.1:1", OPTIONS, interceptors=[traced]) as channel:
            for _ in range(2):
                async with AsyncClient(channel, "example", timeout=10) as client:
                    self.assertEqual(error_code(await client.decide({"a": "1"})), "UNAVAILABLE")


def error_code(decision: Decision) -> str | None:
    return decision.error.code if decision.error else None


class Settings(unittest.TestCase):
    def test_mistakes_in_the_settings_of_a_client_are_named(self) -> None:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"domain": ""}, "domain: must not be empty"),
            ({"timeout": 0}, "timeout: must be more than 0 and at most 86400 seconds, not 0"),
            (
                {"commit_timeout": float("inf")},
                "commit_timeout: must be more than 0 and at most 86400 seconds, not inf",
            ),
            ({"timeout": "0.05"}, "timeout: must be more than 0 and at most 86400 seconds, not '0.05'"),
            ({"remember_denials": "1"}, "remember_denials: must be at least 0 seconds, not '1'"),
            ({"remember_denials": -1}, "remember_denials: must be at least 0 seconds, not -1"),
            ({"on_call": 5}, "on_call: must be a function or None, not 5"),
            ({"require_limit": "no"}, "require_limit: must be True or False, not 'no'"),
            ({"on_failure": "open"}, 'on_failure: must be "allow", "deny" or a function'),
        ]
        for settings, message in wrong:
            with self.subTest(message), self.assertRaises(ValueError) as raised:
                Client(**{"target": "localhost:1", "domain": "example"} | settings)
            self.assertEqual(str(raised.exception), message)
