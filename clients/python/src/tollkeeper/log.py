"""What a client writes by `logging`: failed calls and commits, unknown domains, mistakes, and functions that raise."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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
        # When the next line is due.
        self._due: dict[str, float] = {}
        # The number of events that no line shows yet, and what writes it.
        self._unsaid: dict[str, tuple[int, Callable[[int], None]]] = {}

    def count(self, words: Words, domain: str, number: int, last: ServiceError | None = None) -> None:
        """Counts events of the domain. Their line, which ends by the last error, is written now or later."""
        kind = words[0].format(domain)
        reason = f"; the last: {last}" if last else ""

        def write(number: int) -> None:
            what = printable(words[number > 1].format(domain))
            _write(logging.WARNING, "tollkeeper: %d %s%s (%s)", number, what, reason, printable(self._target))

        with self._lock:
            before, _ = self._unsaid.get(kind, (0, None))
            self._unsaid[kind] = before + number, write
        self.remind()

    def mistake(self, what: str) -> None:
        """Writes the exception that is being handled."""
        with self._lock:
            is_due = self._is_due(what)
        if is_due:
            _write(logging.ERROR, "tollkeeper: %s", what, exc_info=True)

    def contained(self, name: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """The result of a function of the user; None if it raises, since it must not reach the caller."""
        try:
            return function(*arguments)
        except Exception:
            self.mistake(f"{name} has raised")
            return None

    def remind(self, *, closes: bool = False) -> None:
        """Writes the numbers whose minute is over; all if the client closes."""
        if not self._unsaid:
            return
        with self._lock:
            due = [kind for kind in self._unsaid if closes or self._is_due(kind)]
            lines = [self._unsaid.pop(kind) for kind in due]
        for number, write in lines:
            write(number)

    def _is_due(self, kind: str) -> bool:
        """Whether a line may be written. The next one is then due after a minute."""
        now = time.monotonic()
        is_due = now >= self._due.get(kind, now)
        if is_due:
            self._due[kind] = now + SECONDS_BETWEEN_LINES
        return is_due


def _write(level: int, text: str, *arguments: object, exc_info: bool = False) -> None:
    """Writes a line, or loses it: a filter or a handler that raises must not reach the caller."""
    with suppress(Exception):
        logger.log(level, text, *arguments, exc_info=exc_info)
