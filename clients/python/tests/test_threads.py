"""What threads, signal handlers and functions of the application may do while a client works."""

import asyncio
import logging
import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import grpc
from test_answers import Service

from tollkeeper import AsyncClient, Client
from tollkeeper import log as logs

LONG = 10.0


class OfAnotherThread:
    """An event loop, or a future of it. Its thread changes what the loops share whenever somebody looks."""

    def __init__(self, change: Callable[[Any], object]) -> None:
        self._change = change

    def is_closed(self) -> bool:
        self._change(self)
        return True

    def get_loop(self) -> None:
        self._change(self)


class Loops(unittest.TestCase):
    def test_event_loops_of_several_threads_may_begin_and_end_at_once(self) -> None:
        asyncio.run(self.begin())

    async def begin(self) -> None:
        connection = AsyncClient("127.0.0.1:1", "example")._connection
        own = asyncio.get_running_loop()
        channel = connection._opened.pop(own)
        connection._opened |= {OfAnotherThread(connection._opened.pop): channel for _ in range(3)}
        connection.open()
        self.assertEqual(list(connection._opened), [own])
        for shared in (connection.commits, connection.calls, connection.holds):
            shared |= {OfAnotherThread(shared.remove) for _ in range(3)}
        await connection.close(1)
        await channel.close()

    def test_a_client_that_was_closed_does_not_connect_again(self) -> None:
        asyncio.run(self.connect_after_close())

    async def connect_after_close(self) -> None:
        client = AsyncClient("127.0.0.1:1", "example")
        self.assertEqual(len(client._connection._opened), 1)
        await client.close()
        client.connect()
        self.assertEqual(client._connection._opened, {})

    def test_a_commit_that_repeats_for_longer_than_close_waits_ends_with_the_client(self) -> None:
        asyncio.run(self.repeat_and_close())

    async def repeat_and_close(self) -> None:
        service = Service(Commit=(grpc.StatusCode.UNAVAILABLE, "down"))
        with service.listen() as address:
            client = AsyncClient(address, "example", commit_timeout=0.01)
            task = asyncio.create_task(client.using(commit_timeout=LONG).commit("token"))
            await asyncio.to_thread(service.arrived.acquire)
            await client.close()
            error = (await task).error
        self.assertEqual(error and error.code, "CANCELLED")
        self.assertEqual(client._connection._opened, {})


class Hooks(unittest.TestCase):
    def test_a_log_handler_and_the_functions_of_a_client_may_close_it(self) -> None:
        failed = grpc.StatusCode.PERMISSION_DENIED, "no"
        with Service(Decide=failed, Commit=failed).listen() as address:
            for method, argument in (("decide", {"user": "alice"}), ("commit", "token")):
                with self.subTest(method):
                    self.check(address, method, argument)

    def check(self, address: str, method: str, argument: Any) -> None:
        closed: list[object] = []

        def close(*of: object) -> bool:
            client.close()
            closed.append(of[0])
            return False

        client = Client(address, "example", timeout=LONG, commit_timeout=86_400, on_failure=close, on_call=close)
        logs.logger.addFilter(close)
        self.addCleanup(logs.logger.removeFilter, close)
        # What waits in vain ends the test and not the run.
        thread = threading.Thread(target=getattr(client, method), args=[argument], daemon=True)
        thread.start()
        thread.join(LONG)
        logs.logger.removeFilter(close)
        self.assertFalse(thread.is_alive())
        self.assertIsInstance(closed[0], logging.LogRecord)
        self.assertIn(method, closed)


class Signals(unittest.TestCase):
    def test_a_signal_handler_may_close_the_client_between_any_two_lines_of_its_log(self) -> None:
        counted: list[int] = []

        def run() -> None:
            line, was_interrupted = 0, True
            while was_interrupted:
                line += 1
                number, was_interrupted = interrupt(line)
                counted.append(number)

        # A deadlock ends the test and not the run.
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(LONG)
        self.assertFalse(thread.is_alive(), f"{len(counted)} lines")
        self.assertGreater(len(counted), 50)
        self.assertEqual(set(counted[:-1]), {8})


def interrupt(at_line: int) -> tuple[int, bool]:
    """Counts 7 events, and one more before a line of log.py: the number written, and whether there was such a line."""
    log = logs.Log("target")
    line = 0

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal line
        if frame.f_code.co_filename != logs.__file__:
            return None
        line += event == "line"
        if line == at_line:
            sys.settrace(None)
            log.count(logs.FAILED_CALLS, "example", 1)
            log.remind(closes=True)
        return trace

    with mock.patch.object(logs, "_write") as write:
        sys.settrace(trace)
        for number in (1, 2, 4):
            log.count(logs.FAILED_CALLS, "example", number)
            log.remind()
        log.remind(closes=True)
        sys.settrace(None)
    return sum(call.args[2] for call in write.call_args_list), line >= at_line
