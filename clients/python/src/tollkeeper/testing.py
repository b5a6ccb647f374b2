"""A service for unit tests, without a network: its clients are real, and it answers as the test says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack, cast

import grpc

from tollkeeper._generated import tollkeeper_pb2 as pb
from tollkeeper.aio import AsyncClient
from tollkeeper.call import HITS_MAX, Call, Descriptors, Mode, encode
from tollkeeper.client import Client
from tollkeeper.exchange import Settings


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit or a renewal has said of a hold."""

    hold: str
    used: int | None
    used_by_kind: dict[str, int]
    end: str


@dataclass
class _Counter:
    limit: int
    used: int = 0

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)

    def charge(self, hits: int) -> None:
        self.used = max(0, self.used + hits)


class Fake:
    """Allows all calls that no limit of its own denies, and lists what it got. For one thread at a time."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        """The calls, also of renewals, and the ones that failed. Their descriptors are lists of mappings."""
        self.commits: list[Commit] = []
        self._counters: dict[bytes, _Counter] = {}
        self._holds: dict[str, tuple[list[_Counter], int]] = {}
        self._code: str | None = None

    def client(self, domain: str = "fake", **settings: Unpack[Settings]) -> Client:
        """A client of this service, with the settings of `Client`."""
        return Client(cast(grpc.Channel, _Channel(self._answer)), domain, **settings)

    def async_client(self, domain: str = "fake", **settings: Unpack[Settings]) -> AsyncClient:
        """The same for asyncio."""

        async def answer(method: str, request: Any) -> Any:
            return self._answer(method, request)

        return AsyncClient(cast(grpc.aio.Channel, _Channel(answer)), domain, **settings)

    def deny(self, descriptors: Descriptors) -> None:
        """Denies calls with any of these descriptors."""
        self.limit(descriptors, 0)

    def limit(self, descriptors: Descriptors, hits: int) -> None:
        """Allows this number of hits of each descriptor, and gives none back but those of refunds and commits."""
        for descriptor in encode(Call(descriptors)).descriptors:
            self._counters[_path(descriptor)] = _Counter(hits)

    def fail(self, code: str | None = "UNAVAILABLE") -> None:
        """Answers all requests with this gRPC code; None: answers again."""
        self._code = code

    def _answer(self, method: str, request: Any) -> Any:
        match method:
            case "Decide":
                answer: Any = pb.DecideResponse(verdicts=[self._verdict(it) for it in request.calls])
            case "Commit":
                answer = pb.CommitResponse(results=[self._commit(it) for it in request.commits])
            case _:
                results = [
                    {"commit": self._commit(it.commit), "verdict": self._verdict(it.call)} for it in request.renewals
                ]
                answer = pb.RenewResponse(results=results)
        if self._code:
            code, metadata = grpc.StatusCode[self._code], grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, metadata, metadata, "the fake was told to fail")
        return answer

    def _verdict(self, message: pb.Call) -> pb.Verdict:
        call = _decode(message)
        self.calls.append(call)
        counters = [self._counters.get(_path(it)) for it in message.descriptors]
        limited = [it for it in counters if it]
        room = min((it.left for it in limited), default=HITS_MAX)
        hits = 1 if call.hits is None else call.hits
        part = min(hits, room) if call.mode is Mode.PART else 0
        needed = 0 if call.mode in (Mode.READ, Mode.REFUND) else part or max(1, hits)
        is_denied = needed > room
        charged = {Mode.TAKE: hits, Mode.DEBIT: hits, Mode.PART: part, Mode.REFUND: -hits}.get(call.mode, 0)
        if not self._code and (not is_denied or call.mode is Mode.DEBIT):
            for it in limited:
                it.charge(charged)
        hold = f"hold {len(self.calls)}" if call.mode is Mode.TAKE and not is_denied else ""
        if hold:
            self._holds[hold] = limited, hits
        statuses = [_status(index, it, needed if is_denied else 0) for index, it in enumerate(counters)]
        return pb.Verdict(code="OVER_LIMIT" if is_denied else "OK", hits=part, hold=hold, statuses=statuses)

    def _commit(self, commit: pb.Commit) -> pb.CommitResult:
        used = commit.used if commit.HasField("used") else None
        self.commits.append(Commit(commit.hold, used, dict(commit.used_by_kind), commit.end))
        if not self._code:
            limited, held = self._holds.pop(commit.hold, ([], 0))
            for it in limited:
                it.charge(0 if used is None else used - held)
        return pb.CommitResult()


def _status(index: int, counter: _Counter | None, denied: int) -> pb.Status:
    if counter is None:
        return pb.Status(code="OK", descriptor_index=index)
    return pb.Status(
        code="OVER_LIMIT" if counter.left < denied else "OK",
        descriptor_index=index,
        rule="fake",
        current_limit={"requests_per_unit": counter.limit, "unit": "MINUTE", "unit_multiplier": 1},
        limit_remaining=counter.left,
        duration_until_reset={"seconds": 60},
        used=counter.used,
    )


class _Channel:
    """The part of a channel that clients use."""

    def __init__(self, answer: Callable[[str, Any], Any]) -> None:
        self._answer = answer

    def unary_unary(self, path: str, *_codec: object) -> Callable[..., Any]:
        def send(request: Any, **_options: object) -> Any:
            return self._answer(path.rsplit("/", 1)[1], request)

        return send


def _path(descriptor: pb.Descriptor) -> bytes:
    """What two descriptors with the same entries have in common."""
    return pb.Descriptor(entries=descriptor.entries).SerializeToString(deterministic=True)


def _decode(call: pb.Call) -> Call:
    """The call of a message, with text in its descriptors."""
    descriptors = [{_text(it.key): _text(it.value) for it in one.entries} for one in call.descriptors]
    mode = Mode.REFUND if call.descriptors[0].is_negative_hits else Mode[pb.Call.Mode.Name(call.mode)]
    hits = call.hits if call.HasField("hits") else None
    return Call(descriptors, hits, mode, dict(call.hits_by_kind) or None, call.id)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
