"""What a client writes by `logging`: failed calls and commits, unknown domains, mistakes, and functions that raise."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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


@dataclass
class _Kind:
    """A kind of event with a line in the last minute."""

    due: float
    """When its next line is due."""
    write: Callable[[int], None]
    number: int = 0
    """Number of events that no line shows yet."""


class Log:
    """One line at once about each kind of event, then at most one a minute.

    A signal handler may use it while its own thread does: between two statements no event is lost or counted twice.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.RLock()
        # The oldest first.
        self._lines: OrderedDict[str, _Kind] = OrderedDict()
        self._first: list[tuple[int, Callable[[int], None]]] = []

    def count(self, words: Words, domain: str, number: int, last: ServiceError | None = None) -> None:
        """Counts events of the domain. `remind` writes their line, which ends by the last error."""
        reason = f"; the last: {last}" if last else ""

        def write(number: int) -> None:
            what = printable(words[number > 1].format(domain))
            _write(logging.WARNING, "tollkeeper: %d %s%s (%s)", number, what, reason, printable(self._target))

        with self._lock:
            if self._add(words[0].format(domain), number, write):
                self._first.append((number, write))

    def mistake(self, what: str) -> None:
        """Writes the exception that is being handled."""
        self.remind()
        if self._add(what, 0, lambda _: None):
            _write(logging.ERROR, "tollkeeper: %s", what, exc_info=True)

    def contained(self, name: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """The result of a function of the user; None if it raises, since it must not reach the caller."""
        try:
            return function(*arguments)
        except Exception:
            self.mistake(f"{name} has raised")
            return None

    def remind(self, *, closes: bool = False) -> None:
        """Writes the first events of a minute, and the numbers whose minute is over; all if the client closes."""
        if not self._lines:
            return
        with self._lock:
            due, self._first = self._first, []
            now = time.monotonic()
            for _ in range(len(self._lines)):
                name, kind = self._oldest()
                if not kind or (now < kind.due and not closes):
                    break
                self._lines.pop(name, None)
                number, kind.number = kind.number, 0
                if number or closes:
                    kind.due = now + SECONDS_BETWEEN_LINES
                    self._lines.setdefault(name, kind)
                due.append((number, kind.write))
        for number, write in due:
            if number:
                write(number)

    def _oldest(self) -> tuple[str, _Kind | None]:
        # A handler may run between the calls of `next(iter(…))`, and change what is iterated over.
        for name, kind in self._lines.items():
            return name, kind
        return "", None

    def _add(self, name: str, number: int, write: Callable[[int], None]) -> bool:
        """Whether the events have a line of their own. They are counted if there was a line in the last minute."""
        with self._lock:
            added = _Kind(time.monotonic() + SECONDS_BETWEEN_LINES, write)
            kind = self._lines.setdefault(name, added)
            if kind is not added:
                kind.number, kind.write = kind.number + number, write
        return kind is added


def _write(level: int, text: str, *arguments: object, exc_info: bool = False) -> None:
    """Writes a line, or loses it: a filter or a handler that raises must not reach the caller."""
    with suppress(Exception):
        logger.log(level, text, *arguments, exc_info=exc_info)
