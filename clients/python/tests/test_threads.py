"""What threads, signal handlers and functions of the application may do while a client works."""

import asyncio
import unittest
from collections.abc import Callable
from typing import Any

from tollkeeper import AsyncClient


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
        for shared in (connection.commits, connection.calls):
            shared |= {OfAnotherThread(shared.remove) for _ in range(3)}
        await connection.close(1)
        await channel.close()
