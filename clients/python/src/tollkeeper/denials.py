"""Denials that a client remembers, to give them again without a request."""

import time
from dataclasses import replace

from tollkeeper.decision import Decision

DENIALS_MAX = 10_000
# Callers may send long values. This bounds the memory that they take.
REQUEST_BYTES_MAX = 1_024


class Denials:
    """What the service has denied to the clients of one connection, by their requests, and when."""

    def __init__(self) -> None:
        self._denials: dict[bytes, tuple[float, Decision]] = {}

    def add(self, request: bytes, denial: Decision) -> None:
        if len(request) <= REQUEST_BYTES_MAX:
            self._denials[request] = time.monotonic(), denial
        if len(self._denials) > DENIALS_MAX:
            self._denials.clear()

    def find(self, request: bytes, seconds: float) -> Decision | None:
        """The denial of an equal request in the last seconds, if its `retry_after` is not over."""
        at, denial = self._denials.get(request, (0.0, None))
        passed = time.monotonic() - at
        if denial is None or denial.retry_after is None or passed >= min(seconds, denial.retry_after):
            return None
        statuses = tuple(replace(it, reset=max(0.0, it.reset - passed)) for it in denial.statuses)
        reset, retry_after = max(0.0, denial.reset - passed), max(1.0, denial.retry_after - passed)
        return replace(denial, statuses=statuses, reset=reset, retry_after=retry_after)
