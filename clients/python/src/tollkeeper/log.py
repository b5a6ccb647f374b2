"""What a client writes by `logging`: decisions without an answer, commits that failed, mistakes, and functions of the user that raise."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tollkeeper.decision import ServiceError

T = TypeVar("T")

logger = logging.getLogger("tollkeeper")
SECONDS_BETWEEN_LINES = 60


class Log:
    """One line at once about each kind of event, then at most one a minute."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        # The number of events, and when the next line is due.
        self._kinds: dict[str, tuple[int, float]] = {}

    def failures(self, domain: str, calls: int, last: ServiceError) -> None:
        one = f'call of the domain "{domain}" had no answer and was decided by on_failure'
        many = f'calls of the domain "{domain}" had no answer and were decided by on_failure'
        self._errors(calls, one, many, last)

    def failed_commit(self, domain: str, error: ServiceError) -> None:
        one = f'commit of the domain "{domain}" failed, and its estimate may count in place of what was used'
        many = f'commits of the domain "{domain}" failed, and their estimates may count in place of what was used'
        self._errors(1, one, many, error)

    def _errors(self, number: int, one: str, many: str, last: ServiceError) -> None:
        if number := self._due(one, number):
            what = one if number == 1 else many
            logger.warning("tollkeeper: %d %s; the last: %s (%s)", number, what, last, self._target)

    def mistake(self, what: str) -> None:
        """Writes the exception that is being handled."""
        if self._due(what, 1):
            logger.exception("tollkeeper: %s", what)

    def contained(self, name: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """The result of a function of the user; None if it raises, since it must not reach the caller."""
        try:
            return function(*arguments)
        except Exception:
            self.mistake(f"{name} has raised")
            return None

    def _due(self, kind: str, count: int) -> int:
        """The number of events since the last line; 0 while no line is due."""
        with self._lock:
            before, due = self._kinds.get(kind, (0, float("-inf")))
            count += before
            now = time.monotonic()
            if now < due:
                self._kinds[kind] = count, due
                return 0
            self._kinds[kind] = 0, now + SECONDS_BETWEEN_LINES
        return count
