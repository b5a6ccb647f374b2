"""What a client writes by `logging`: decisions without an answer, and functions of the user that raise."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tollkeeper.decision import ServiceError

T = TypeVar("T")

logger = logging.getLogger("tollkeeper")
SECONDS_BETWEEN_LINES = 60


class FailureLog:
    """One line for each domain at once, then at most one a minute with the number since."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        # The number of calls, and when the next line is due.
        self._domains: dict[str, tuple[int, float]] = {}

    def add(self, domain: str, calls: int, last: ServiceError) -> None:
        with self._lock:
            before, due = self._domains.get(domain, (0, float("-inf")))
            calls += before
            now = time.monotonic()
            if now < due:
                self._domains[domain] = calls, due
                return
            self._domains[domain] = 0, now + SECONDS_BETWEEN_LINES
        noun, verb = ("call", "was") if calls == 1 else ("calls", "were")
        logger.warning(
            'tollkeeper: %d %s of the domain "%s" had no answer and %s decided by on_failure; the last: %s (%s)',
            *(calls, noun, domain, verb, last, self._target),
        )


def contained(name: str, function: Callable[..., T], *arguments: Any) -> T | None:
    """The result of a function of the user; None if it raises, since it must not reach the caller."""
    try:
        return function(*arguments)
    except Exception:
        logger.exception("tollkeeper: %s has raised", name)
        return None
