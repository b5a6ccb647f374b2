"""What a client writes by `logging`: calls and commits that failed, mistakes, and functions of the user that raise."""

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


class Log:
    """One line at once about each kind of event, then at most one a minute."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        # When the next line is due.
        self._due: dict[str, float] = {}
        # The number of events that no line shows yet, and what writes it.
        self._unsaid: dict[str, tuple[int, Callable[[int], None]]] = {}

    def failures(self, domain: str, calls: int, last: ServiceError) -> None:
        one = f'call of the domain "{domain}" had no answer and was decided by on_failure'
        many = f'calls of the domain "{domain}" had no answer and were decided by on_failure'
        self._errors(calls, one, many, last)

    def failed_commit(self, domain: str, error: ServiceError) -> None:
        one = f'commit of the domain "{domain}" failed, and its estimate may count in place of what was used'
        many = f'commits of the domain "{domain}" failed, and their estimates may count in place of what was used'
        self._errors(1, one, many, error)

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

    def _errors(self, number: int, one: str, many: str, last: ServiceError) -> None:
        def write(number: int) -> None:
            what = one if number == 1 else many
            text = "tollkeeper: %d %s; the last: %s (%s)"
            _write(logging.WARNING, text, number, printable(what), last, printable(self._target))

        with self._lock:
            before, _ = self._unsaid.get(one, (0, None))
            self._unsaid[one] = before + number, write
        self.remind()

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
