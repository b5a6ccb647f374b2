"""What a client writes by `logging`: failed calls and commits, unknown domains, mistakes, and functions that raise."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from typing import Any, TypeVar

from tollkeeper.decision import ServiceError, printable

T = TypeVar("T")

logger = logging.getLogger("tollkeeper")
SECONDS_BETWEEN_LINES = 60

# What is said of one event in a domain, and of more.
Words = tuple[str, str]
FAILED_CALLS: Words = (
    'call of the domain "{}" had no answer and was decided by on_failure',
    'calls of the domain "{}" had no answer and were decided by on_failure',
)
FAILED_COMMITS: Words = (
    'commit of the domain "{}" failed, and its estimate may count in place of what was used',
    'commits of the domain "{}" failed, and their estimates may count in place of what was used',
)
UNKNOWN_DOMAIN: Words = (
    'call of the domain "{}" met no limit, because the service has no such domain',
    'calls of the domain "{}" met no limit, because the service has no such domain',
)


class Log:
    """One line at once about each kind of event, then at most one a minute."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        # Of each kind with a line in the last minute, the oldest first: when the next line is due, the number of events
        # that no line shows yet, and what writes it.
        self._lines: OrderedDict[str, tuple[float, int, Callable[[int], None]]] = OrderedDict()

    def count(self, words: Words, domain: str, number: int, last: ServiceError | None = None) -> None:
        """Counts events of the domain. Their line, which ends by the last error, is written now or later."""
        reason = f"; the last: {last}" if last else ""

        def write(number: int) -> None:
            what = printable(words[number > 1].format(domain))
            _write(logging.WARNING, "tollkeeper: %d %s%s (%s)", number, what, reason, printable(self._target))

        self._add(words[0].format(domain), number, write)

    def mistake(self, what: str) -> None:
        """Writes the exception that is being handled."""
        self._add(what, 0, lambda _: _write(logging.ERROR, "tollkeeper: %s", what, exc_info=True))

    def contained(self, name: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """The result of a function of the user; None if it raises, since it must not reach the caller."""
        try:
            return function(*arguments)
        except Exception:
            self.mistake(f"{name} has raised")
            return None

    def remind(self, *, closes: bool = False) -> None:
        """Writes the numbers whose minute is over; all if the client closes."""
        if not self._lines:
            return
        with self._lock:
            now = time.monotonic()
            over = list(takewhile(lambda it: closes or it[1][0] <= now, self._lines.items()))
            for kind, (_, number, write) in over:
                del self._lines[kind]
                if number or closes:
                    self._lines[kind] = now + SECONDS_BETWEEN_LINES, 0, write
        for _, (_, number, write) in over:
            if number:
                write(number)

    def _add(self, kind: str, number: int, write: Callable[[int], None]) -> None:
        """Writes at once, or counts the events if there was a line in the last minute."""
        self.remind()
        with self._lock:
            is_first = kind not in self._lines
            due, before, _ = self._lines.get(kind, (time.monotonic() + SECONDS_BETWEEN_LINES, 0, write))
            self._lines[kind] = due, before + (0 if is_first else number), write
        if is_first:
            write(number)


def _write(level: int, text: str, *arguments: object, exc_info: bool = False) -> None:
    """Writes a line, or loses it: a filter or a handler that raises must not reach the caller."""
    with suppress(Exception):
        logger.log(level, text, *arguments, exc_info=exc_info)
