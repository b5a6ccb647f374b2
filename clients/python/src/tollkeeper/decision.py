"""Decisions: what the service has answered, or what was decided without an answer."""

import math
import re
from dataclasses import dataclass
from typing import Any

import grpc

from tollkeeper._generated import status_pb2, tollkeeper_pb2
from tollkeeper._generated.tollkeeper_pb2 import CommittedCharge, Limit, Verdict

_CODES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
# Characters that begin another line, or change what a terminal shows.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
MESSAGE_MAX = 300


def printable(text: str) -> str:
    """The text as a part of one line of a log."""
    return _UNPRINTABLE.sub(" ", text)


class ServiceError(Exception):
    """Why there is no answer: a gRPC code such as `UNAVAILABLE`, and a message.

    As text it fits into a log: the message is cut, and without control characters.
    """

    def __init__(self, code: str, message: str) -> None:
        shown = message if len(message) <= MESSAGE_MAX else f"{message[:MESSAGE_MAX]}…"
        super().__init__(f"{code}: {printable(shown)}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one descriptor after the call; with a read, of one limit."""

    allowed: bool
    descriptor: int
    """Index of the descriptor in the call."""
    rule: str
    """Path of the rule, such as `plan=free|user`; empty if no rule matched."""
    limit: int | None
    """None if no limit applies; 0 admits nothing."""
    remaining: int
    reset: float
    """Seconds until the window ends, the hits fit, or no hit counts."""
    name: str
    """The `name` of the limit, if it has one."""
    unit: str
    """`minute`, and so on; `unknown` for calls in flight; empty without a limit; or the number of a unit that this
    version does not know."""
    unit_multiplier: int
    used: int | None
    """Number of hits that count; only with a read."""
    held: int | None
    """Number of hits that holds without a name hold; only with a read."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a call may pass; true if it may.

    Limit, remaining hits, reset and rule are from one status: of a denied call, the last one over its limit, otherwise
    the one with the fewest remaining hits.
    """

    allowed: bool
    failed: bool = False
    """The service gave no answer, for the reason in `error`, and `on_failure` decided."""
    limit: int | None = None
    """None if no limit applies; 0 admits nothing."""
    remaining: int = 0
    reset: float = 0.0
    """Seconds."""
    retry_after: float | None = None
    """Seconds until a denied call may fit, at least 1; None if allowed, or if the service gave no answer."""
    rule: str = ""
    statuses: tuple[Status, ...] = ()
    error: ServiceError | None = None
    """Why the call failed; or OUT_OF_RANGE or INVALID_ARGUMENT: the service has refused the call, so it is denied."""
    hold: str = ""
    """Names what was held, for a commit; empty if nothing was."""
    hits: int = 0
    """Number of hits that a call with mode PART has charged."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def headers(self) -> dict[str, str]:
        """RateLimit-Limit, -Remaining and -Reset, if there is a limit; Retry-After, if denied."""
        headers = {}
        if self.limit is not None:
            headers["RateLimit-Limit"] = str(self.limit)
            headers["RateLimit-Remaining"] = str(self.remaining)
            headers["RateLimit-Reset"] = str(math.ceil(self.reset))
        if self.retry_after is not None:
            headers["Retry-After"] = str(math.ceil(self.retry_after))
        return headers


@dataclass(frozen=True, slots=True)
class Charge:
    """One counter's part of a commit."""

    outcome: str
    """`applied`; `repeated`: it was committed before; `late`: the time of the hold had passed; `unknown`;
    or the number of one that this version does not know."""
    held: int
    used: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What has become of a commit."""

    charges: tuple[Charge, ...] = ()
    error: ServiceError | None = None


def decode(verdict: Verdict | ServiceError) -> Decision | ServiceError:
    """The service's decision, or why it has none."""
    if isinstance(verdict, ServiceError):
        return verdict
    if verdict.HasField("error"):
        return _error(verdict.error)
    if verdict.code not in (Verdict.OK, Verdict.OVER_LIMIT):
        return ServiceError("UNKNOWN", "the verdict is unknown")
    allowed = verdict.code == Verdict.OK
    statuses = tuple(map(_status, verdict.statuses))
    limited = [status for status in statuses if status.limit is not None]
    over = [status for status in limited if not status.allowed]
    fewest = min(limited, key=lambda status: status.remaining, default=None)
    shown = over[-1] if over and not allowed else fewest
    first = statuses[0].rule if statuses else ""
    return Decision(
        allowed=allowed,
        limit=shown.limit if shown else None,
        remaining=shown.remaining if shown else 0,
        reset=shown.reset if shown else 0.0,
        retry_after=None if allowed else max([1.0, *(status.reset for status in over)]),
        rule=shown.rule if shown else first,
        statuses=statuses,
        hold=verdict.hold,
        hits=verdict.hits,
    )


def decode_commit(result: tollkeeper_pb2.CommitResult | ServiceError) -> Committed:
    if isinstance(result, ServiceError):
        return Committed(error=result)
    charges = tuple(Charge(_name(CommittedCharge.Outcome, it.outcome), it.held, it.used) for it in result.charges)
    return Committed(charges, _error(result.error) if result.HasField("error") else None)


def _status(status: tollkeeper_pb2.Status) -> Status:
    limit = status.current_limit if status.HasField("current_limit") else None
    reset = status.duration_until_reset
    return Status(
        allowed=status.code != Verdict.OVER_LIMIT,
        descriptor=status.descriptor_index,
        rule=status.rule,
        limit=limit.requests_per_unit if limit else None,
        remaining=status.limit_remaining,
        reset=max(0.0, reset.seconds + reset.nanos / 1e9),
        name=limit.name if limit else "",
        unit=_name(Limit.Unit, limit.unit) if limit else "",
        unit_multiplier=limit.unit_multiplier if limit else 1,
        used=status.used if status.HasField("used") else None,
        held=status.held if status.HasField("held") else None,
    )


def _name(enum: Any, number: int) -> str:
    """The name of an enum's number; the number itself if a later version has added it."""
    return enum.Name(number).lower() if number in enum.values() else str(number)


def _error(status: status_pb2.Status) -> ServiceError:
    return ServiceError(_CODES.get(status.code, "UNKNOWN"), status.message)
