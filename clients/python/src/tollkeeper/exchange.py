"""What both clients share: the methods, requests and answers, without the connection."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Literal, TypeVar

import grpc

from tollkeeper._generated import tollkeeper_pb2 as pb
from tollkeeper.call import CALLS_MAX, Call, Descriptor, Descriptors, Mode, check_hits, check_kinds, encode, listed
from tollkeeper.channel import TLS, Options, options
from tollkeeper.decision import Committed, Decision, ServiceError, decode, decode_commit

OnFailure = Literal["allow", "deny"] | Callable[[ServiceError, Sequence[Descriptor]], bool]
OnCall = Callable[[str, float, str], None]
Answer = pb.DecideResponse | pb.CommitResponse | ServiceError
# A decision, or a coroutine with it.
One = TypeVar("One")

DECIDE = "/tollkeeper.v1.Tollkeeper/Decide"
COMMIT = "/tollkeeper.v1.Tollkeeper/Commit"
# Seconds before the second and the third attempt of a commit.
COMMIT_PAUSES = (0.1, 0.2)
_REPEATED = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNKNOWN"}


class Exchange(ABC, Generic[One]):
    """Makes requests, and decisions of their answers."""

    def __init__(
        self,
        target: str,
        domain: str,
        *,
        timeout: float = 0.05,
        on_failure: OnFailure = "allow",
        tls: TLS | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        """`target` is HOST:PORT; `timeout` is in seconds.

        `on_failure` is "allow", "deny" or a function of the error and the descriptors. `on_call` is called after each
        request with `decide` or `commit`, its seconds, and `ok` or a gRPC code.
        """
        if not domain:
            raise ValueError("domain: must not be empty")
        if timeout <= 0:
            raise ValueError(f"timeout: must be more than 0 seconds, not {timeout}")
        if on_failure not in ("allow", "deny") and not callable(on_failure):
            raise ValueError('on_failure: must be "allow", "deny" or a function')
        self._domain = domain
        self._timeout = timeout
        self._on_failure = on_failure
        self._on_call = on_call
        self._connect(target, tls.credentials() if tls else None, options(tls))

    @abstractmethod
    def _connect(self, target: str, credentials: grpc.ChannelCredentials | None, options: Options) -> None: ...

    @abstractmethod
    def decide_call(self, call: Call) -> One:
        """Decides one call."""

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

    def _decide_request(self, calls: Sequence[Call], *, batch: bool) -> pb.DecideRequest:
        if len(calls) > CALLS_MAX:
            raise ValueError(f"calls: must be at most {CALLS_MAX}, not {len(calls)}")
        messages = [encode(call, f"calls[{index}]." if batch else "") for index, call in enumerate(calls)]
        return pb.DecideRequest(domain=self._domain, calls=messages)

    def _decisions(self, calls: Sequence[Call], answer: pb.DecideResponse | ServiceError) -> list[Decision]:
        if isinstance(answer, ServiceError):
            return [self._decision(call, answer) for call in calls]
        # A call without a verdict has failed.
        verdicts = [*answer.verdicts, *(pb.Verdict() for _ in calls)]
        return [self._decision(call, decode(verdict)) for call, verdict in zip(calls, verdicts, strict=False)]

    def _decision(self, call: Call, answer: Decision | ServiceError) -> Decision:
        if isinstance(answer, Decision):
            return answer
        allowed = self._on_failure == "allow"
        if callable(self._on_failure):
            allowed = self._on_failure(answer, listed(call.descriptors))
        return Decision(allowed, failed=True, error=answer)

    def _commit_request(
        self, hold: str, used: int | None, used_by_kind: Mapping[str, int] | None, end: str
    ) -> pb.CommitRequest:
        check_hits("used", used)
        check_kinds("used_by_kind", used_by_kind)
        commit = pb.Commit(hold=hold, used=used, used_by_kind=used_by_kind or {}, end=end)
        return pb.CommitRequest(domain=self._domain, commits=[commit])

    def _report(self, method: str, start: float, answer: Answer) -> None:
        error = answer if isinstance(answer, ServiceError) else None
        if isinstance(answer, pb.CommitResponse):
            error = committed(answer).error
        if self._on_call:
            self._on_call(method, time.perf_counter() - start, error.code if error else "ok")


def committed(answer: pb.CommitResponse | ServiceError) -> Committed:
    if isinstance(answer, ServiceError):
        return Committed(error=answer)
    return decode_commit(answer.results[0]) if answer.results else Committed()


def worth_repeating(answer: pb.CommitResponse | ServiceError) -> bool:
    """Whether a commit got no answer. A service that answers keeps the commit by itself while its store is down."""
    return isinstance(answer, ServiceError) and answer.code in _REPEATED


def service_error(error: Exception) -> ServiceError:
    """The error of a request, or what gRPC raises if the client is closed."""
    if isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return ServiceError(error.code().name, error.details() or "")
    return ServiceError(grpc.StatusCode.CANCELLED.name, str(error))


def hold_call(descriptors: Descriptors | Call, estimate: int | None) -> Call:
    """The call that takes a hold, checked."""
    check_hits("estimate", estimate)
    call = descriptors if isinstance(descriptors, Call) else Call(descriptors, estimate)
    encode(call)
    return call
