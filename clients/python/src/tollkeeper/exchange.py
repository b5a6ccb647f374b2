"""What both clients share: what they send and when, and what they make of the answers, without the connection."""

import copy
import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack

import grpc

from tollkeeper._generated import tollkeeper_pb2 as pb
from tollkeeper.call import (
    CALLS_MAX,
    ENTRIES_BYTES_MAX,
    Call,
    Descriptor,
    Descriptors,
    Mode,
    check_hits,
    check_kinds,
    check_text,
    encode,
    keys,
    listed,
)
from tollkeeper.channel import TLS
from tollkeeper.decision import Committed, Decision, ServiceError, decode, decode_commit, printable
from tollkeeper.denials import Denials
from tollkeeper.log import FAILED_CALLS, FAILED_COMMITS, UNKNOWN_DOMAIN, Log

OnFailure = Literal["allow", "deny"] | Callable[[ServiceError, Sequence[Descriptor]], bool]
OnCall = Callable[[str, float, str], object]
# A decision, decisions, and what has become of a commit; or coroutines with them.
One = TypeVar("One")
Many = TypeVar("Many")
Done = TypeVar("Done")


def closed() -> ServiceError:
    return ServiceError("CANCELLED", "the client is closed")


def _reader(message: Any) -> Callable[[bytes], Any]:
    """Parses an answer. If this raised, the answer would be None with asyncio."""

    def read(answer: bytes) -> Any:
        try:
            return message.FromString(answer)
        except Exception:
            return ServiceError("INTERNAL", "the answer cannot be read")

    return read


PATH = "/tollkeeper.v1.Tollkeeper/"
METHODS: dict[str, tuple[Any, Any]] = {
    "Decide": (pb.DecideRequest.SerializeToString, _reader(pb.DecideResponse)),
    "Commit": (pb.CommitRequest.SerializeToString, _reader(pb.CommitResponse)),
    "Renew": (pb.RenewRequest.SerializeToString, _reader(pb.RenewResponse)),
}
# Codes of a commit that got no answer. A service that answers keeps the commit by itself while its store is down.
UNANSWERED = {"UNAVAILABLE", "UNKNOWN", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
# Codes by which the service refuses a call for its size or its form. Otherwise an end user who chooses the number of
# items or a value could pass any limit.
REFUSALS = {"OUT_OF_RANGE", "INVALID_ARGUMENT"}
COMMIT_PAUSE = 0.1
# A day: gRPC has no place for much longer ones.
SECONDS_MAX = 86_400


class Settings(TypedDict, total=False):
    """Settings of a client, which `using` may change."""

    timeout: float
    """Seconds for a decision, 0.05 by default."""
    commit_timeout: float
    """Seconds for a commit, 2 by default."""
    on_failure: OnFailure
    """`allow`, which is the default, `deny`, or a function of the error and the descriptors."""
    on_call: OnCall | None
    """Gets `decide`, `renew` or `commit`, the seconds, and `ok` or a gRPC code, after each of them."""
    require_limit: bool
    """Whether a call with a descriptor that met no limit is a ValueError, for tests."""
    remember_denials: float
    """Seconds in which a call that the service has denied is denied again without a request, 0 by default."""


class Changes(Settings, total=False):
    domain: str


@dataclasses.dataclass(frozen=True)
class Policy:
    domain: str
    timeout: float = 0.05
    commit_timeout: float = 2.0
    on_failure: OnFailure = "allow"
    on_call: OnCall | None = None
    require_limit: bool = False
    remember_denials: float = 0.0

    def __post_init__(self) -> None:
        if not self.domain:
            raise ValueError("domain: must not be empty")
        for name, seconds in (("timeout", self.timeout), ("commit_timeout", self.commit_timeout)):
            if not isinstance(seconds, int | float) or not 0 < seconds <= SECONDS_MAX:
                raise ValueError(f"{name}: must be more than 0 and at most {SECONDS_MAX} seconds, not {seconds!r}")
        if not isinstance(self.remember_denials, int | float) or not self.remember_denials >= 0:
            raise ValueError(f"remember_denials: must be at least 0 seconds, not {self.remember_denials!r}")
        if self.on_failure not in ("allow", "deny") and not callable(self.on_failure):
            raise ValueError('on_failure: must be "allow", "deny" or a function')
        if self.on_call is not None and not callable(self.on_call):
            raise ValueError(f"on_call: must be a function or None, not {self.on_call!r}")
        if not isinstance(self.require_limit, bool):
            raise ValueError(f"require_limit: must be True or False, not {self.require_limit!r}")


class Exchange(ABC, Generic[One, Many, Done]):
    """Makes requests, and decisions of their answers, in coroutines that both clients run."""

    _connection: Any

    def __init__(
        self,
        target: str | grpc.Channel | grpc.aio.Channel,
        domain: str,
        *,
        tls: TLS | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """`target` is HOST:PORT, or a channel of your own, which you close."""
        self._policy = Policy(domain, **settings)
        where = f"target {target}, {'with' if tls else 'without'} TLS" if isinstance(target, str) else "your channel"
        self._log = Log(where)
        self._denials = Denials()
        self._owns_connection = True
        self._connect(target, tls)

    @abstractmethod
    def _connect(self, target: Any, tls: TLS | None) -> None: ...

    @abstractmethod
    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of the work, or a coroutine with it."""

    async def _finish(self, work: Coroutine[Any, Any, Committed]) -> Committed:
        """The result of the work, which goes on if the caller leaves meanwhile."""
        return await work

    async def _send_hold(self, method: str, request: Any, timeout: float) -> Any:
        """The answer to a request that takes a hold, which is given back if the caller leaves meanwhile."""
        return await self._connection.send(method, request, timeout)

    def using(self, **changes: Unpack[Changes]) -> Self:
        """The same client with other settings, on the same connections. It is cheap enough for one call.

        Its `close` does nothing.
        """
        client = copy.copy(self)
        client._policy = dataclasses.replace(self._policy, **changes)
        client._owns_connection = False
        return client

    def decide(self, descriptors: Descriptors, hits: int = 1) -> One:
        """Charges the hits to every descriptor if all of them fit, or nothing."""
        return self.decide_call(Call(descriptors, hits))

    def check(self, descriptors: Descriptors) -> One:
        """Whether one hit would fit. Charges nothing."""
        return self.decide_call(Call(descriptors, mode=Mode.CHECK))

    def read(self, descriptors: Descriptors) -> One:
        """The counters of every limit, as `statuses`. Charges nothing and denies nothing."""
        return self.decide_call(Call(descriptors, mode=Mode.READ))

    def debit(self, descriptors: Descriptors, hits: int = 1) -> One:
        """Charges the hits in any case, since the work is done; allowed if they fit."""
        return self.decide_call(Call(descriptors, hits, Mode.DEBIT))

    def part(self, descriptors: Descriptors, hits: int = 1) -> One:
        """Charges as many of the hits as fit, which is `hits` of the decision; denied if none fits."""
        return self.decide_call(Call(descriptors, hits, Mode.PART))

    def refund(self, descriptors: Descriptors, hits: int = 1) -> One:
        """Gives hits back."""
        return self.decide_call(Call(descriptors, hits, Mode.REFUND))

    def decide_call(self, call: Call) -> One:
        """Decides one call."""
        return self._run(self._decide_one(call))

    def decide_all(self, calls: Sequence[Call]) -> Many:
        """Decides up to 1,000 independent calls in one request, in their order."""
        return self._run(self._decide_all(calls))

    def commit(
        self, hold: str, used: int | None = None, used_by_kind: Mapping[str, int] | None = None, end: str = ""
    ) -> Done:
        """Commits `Decision.hold`, for work that ends elsewhere. Repeated while there is no answer.

        It is sent even if a task that waits for it is cancelled.
        """
        return self._run(self._finish(self._commit(encode_commit(hold, used, used_by_kind, end))))

    @property
    def _is_closed(self) -> bool:
        return self._connection.is_closed

    async def _decide_one(self, call: Call) -> Decision:
        [decision] = await self._ask([call], [""])
        self._check_limits(call, decision)
        return decision

    async def _decide_all(self, calls: Sequence[Call]) -> list[Decision]:
        if not calls:
            return []
        if len(calls) > CALLS_MAX:
            raise ValueError(f"calls: must be at most {CALLS_MAX}, not {len(calls)}")
        paths = [f"calls[{index}]." for index in range(len(calls))]
        decisions = await self._ask(calls, paths)
        for one in zip(calls, decisions, paths, strict=True):
            self._check_limits(*one)
        return decisions

    async def _ask(self, calls: Sequence[Call], paths: Sequence[str], *, holds: bool = False) -> list[Decision]:
        """The decisions, also of calls that met no limit where one is required."""
        messages = [encode(call, path) for call, path in zip(calls, paths, strict=True)]
        request = pb.DecideRequest(domain=self._policy.domain, calls=messages)
        refusal = _too_large(messages) or (closed() if self._is_closed else None)
        key = b"" if refusal else self._denial_key(calls, request)
        denial = self._denials.find(key, self._policy.remember_denials)
        if denial is not None:
            self._log.remind()
            return [denial]
        start = time.perf_counter()
        send = self._send_hold if holds else self._connection.send
        with self._connection.under_way():
            answer = refusal or await send("Decide", request, self._policy.timeout)
            verdicts = self._decode(_items(answer, "verdicts", len(calls)))
        self._report("decide", start, verdicts)
        if key and isinstance(verdicts[0], Decision) and not verdicts[0].allowed:
            self._denials.add(key, verdicts[0])
        return [self._decision(*one) for one in zip(calls, verdicts, strict=True)]

    def _denial_key(self, calls: Sequence[Call], request: pb.DecideRequest) -> bytes:
        """What is equal for equal requests; empty if a denial of this one is not remembered."""
        is_remembered = len(calls) == 1 and calls[0].mode is Mode.TAKE and not calls[0].id
        return request.SerializeToString(deterministic=True) if self._policy.remember_denials and is_remembered else b""

    async def _commit(self, commit: pb.Commit) -> Committed:
        request = pb.CommitRequest(domain=self._policy.domain, commits=[commit])
        start = time.perf_counter()
        with self._connection.under_way("commit"):
            answer = await self._send_commit(request, start)
            committed = decode_commit(_items(answer, "results", 1)[0])
            if committed.error:
                self._log.count(FAILED_COMMITS, self._policy.domain, 1, committed.error)
        self._report("commit", start, [committed.error])
        return committed

    async def _send_commit(self, request: pb.CommitRequest, start: float) -> Any:
        """Repeats the request while it has no answer."""
        end = start + self._policy.commit_timeout
        pause = COMMIT_PAUSE
        while not self._connection.has_ended:
            timeout = min(self._policy.commit_timeout / 4, end - time.perf_counter())
            answer = await self._connection.send("Commit", request, timeout)
            is_unanswered = isinstance(answer, ServiceError) and answer.code in UNANSWERED
            if not is_unanswered or time.perf_counter() + pause >= end:
                return answer
            await self._connection.pause(pause)
            pause *= 2
        return closed()

    async def _renew(self, renewal: pb.Renewal, call: Call) -> tuple[Decision, bool]:
        """The decision on the call, as by `_ask`, and whether the commit has counted."""
        request = pb.RenewRequest(domain=self._policy.domain, renewals=[renewal])
        start = time.perf_counter()
        with self._connection.under_way():
            answer = closed() if self._is_closed else await self._send_hold("Renew", request, self._policy.timeout)
            result = _items(answer, "results", 1)[0]
            is_error = isinstance(result, ServiceError)
            committed = decode_commit(result if is_error else result.commit)
            [verdict] = self._decode([result if is_error else result.verdict])
        self._report("renew", start, [committed.error, verdict])
        is_committed = not is_error and result.HasField("commit") and committed.error is None
        return self._decision(call, verdict), is_committed

    def _decode(self, items: Sequence[pb.Verdict | ServiceError]) -> list[Decision | ServiceError]:
        """The verdicts. Counts what is wrong with them, while `close` still waits for them."""
        verdicts = [decode(it) for it in items]
        errors = [it for it in verdicts if isinstance(it, ServiceError) and it.code not in REFUSALS]
        unknown = sum(isinstance(it, pb.Verdict) and it.domain_unknown and not it.HasField("error") for it in items)
        if errors:
            self._log.count(FAILED_CALLS, self._policy.domain, len(errors), errors[-1])
        if unknown:
            self._log.count(UNKNOWN_DOMAIN, self._policy.domain, unknown)
        return verdicts

    def _decision(self, call: Call, verdict: Decision | ServiceError) -> Decision:
        if isinstance(verdict, Decision):
            return verdict
        if verdict.code in REFUSALS:
            return Decision(allowed=False, error=verdict)
        on_failure = self._policy.on_failure
        allowed = on_failure == "allow"
        if callable(on_failure):
            # A coroutine, which nobody awaits, is no answer.
            allowed = self._log.contained("on_failure", on_failure, verdict, listed(call.descriptors)) is True
        return Decision(allowed, failed=True, error=verdict)

    def _check_limits(self, call: Call, decision: Decision, path: str = "") -> None:
        descriptors = listed(call.descriptors)
        for status in decision.statuses if self._policy.require_limit else ():
            if status.limit is None and not status.rule and status.descriptor < len(descriptors):
                names = keys(descriptors[status.descriptor])
                raise ValueError(
                    f"{path}descriptors[{status.descriptor}]: no limit applies to {names} "
                    f"in the domain {printable(self._policy.domain)} (require_limit)"
                )

    def _report(self, method: str, start: float, results: Sequence[object]) -> None:
        """Writes what was counted, and calls `on_call`, either of which may close the client."""
        self._log.remind()
        if self._policy.on_call:
            codes = [it.code for it in results if isinstance(it, ServiceError)] or ["ok"]
            self._log.contained("on_call", self._policy.on_call, method, time.perf_counter() - start, codes[0])


def _too_large(calls: Sequence[pb.Call]) -> ServiceError | None:
    """Why the calls are denied without a request, if they are."""
    entries = (entry for call in calls for descriptor in call.descriptors for entry in descriptor.entries)
    size = sum(len(entry.key) + len(entry.value) for entry in entries)
    if size <= ENTRIES_BYTES_MAX:
        return None
    return ServiceError("OUT_OF_RANGE", f"keys and values must have at most {ENTRIES_BYTES_MAX} bytes, not {size}")


def _items(answer: Any, field: str, count: int) -> list[Any]:
    """The items of an answer. One that is missing has failed, as all have if the request has."""
    if isinstance(answer, ServiceError):
        return [answer] * count
    # It is None if the request has succeeded without a message.
    items = list(getattr(answer, field, ()))[:count]
    return items + [ServiceError("UNKNOWN", "the answer is incomplete")] * (count - len(items))


def service_error(error: Exception) -> ServiceError:
    """The error of a request, or what gRPC raises if the client is closed."""
    if isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return ServiceError(error.code().name, error.details() or "")
    return ServiceError("CANCELLED", str(error))


def hold_of(answer: Any) -> str:
    """What the answer to a hold or a renewal holds."""
    items = _items(answer, "verdicts" if isinstance(answer, pb.DecideResponse) else "results", 1)
    verdict = getattr(items[0], "verdict", items[0])
    return verdict.hold if isinstance(verdict, pb.Verdict) else ""


def encode_commit(
    hold: str, used: int | None = None, used_by_kind: Mapping[str, int] | None = None, end: str = ""
) -> pb.Commit:
    check_hits("used", used)
    check_kinds("used_by_kind", used_by_kind)
    check_text("end", end)
    return pb.Commit(hold=hold, used=used, used_by_kind=used_by_kind or {}, end=end)


def encode_renewal(commit: pb.Commit, call: Call) -> pb.Renewal:
    return pb.Renewal(commit=commit, call=encode(call))
