"""A service for unit tests, without a network: its clients are real, and it answers as the test says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack, cast

import grpc

from tollkeeper._generated import tollkeeper_pb2 as pb
from tollkeeper.aio import AsyncClient
from tollkeeper.call import Call, Descriptors, Mode, encode
from tollkeeper.client import Client
from tollkeeper.exchange import Settings


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit or a renewal has said of a hold."""

    hold: str
    used: int | None
    used_by_kind: dict[str, int]
    end: str


class Fake:
    """Allows all calls that no limit of its own denies, and lists what it got. For one thread at a time."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        """The calls, also of renewals, and the ones that failed. Their descriptors are lists of mappings."""
        self.commits: list[Commit] = []
        self._limits: dict[bytes, int] = {}
        self._used: dict[bytes, int] = {}
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
        """Allows this number of hits of each descriptor. Commits do not change what was charged."""
        for descriptor in encode(Call(descriptors)).descriptors:
            self._limits[_path(descriptor)], self._used[_path(descriptor)] = hits, 0

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
        paths = [_path(it) for it in message.descriptors]
        left = {it: max(0, self._limits[it] - self._used[it]) for it in paths if it in self._limits}
        hits = 1 if call.hits is None else call.hits
        wanted = {Mode.READ: 0, Mode.CHECK: 1, Mode.REFUND: -hits}.get(call.mode, hits)
        if call.mode is Mode.PART:
            wanted = min([hits, *left.values()])
        is_denied = any(it < wanted for it in left.values()) or (call.mode is Mode.PART and wanted == 0)
        if not self._code and (call.mode is Mode.DEBIT or (call.mode is not Mode.CHECK and not is_denied)):
            self._used |= {it: max(0, self._used[it] + wanted) for it in left}
        verdict = pb.Verdict(code="OVER_LIMIT" if is_denied else "OK")
        if call.mode is Mode.PART:
            verdict.hits = wanted
        elif call.mode is Mode.TAKE and not is_denied:
            verdict.hold = f"hold {len(self.calls)}"
        verdict.statuses.extend(self._status(index, it, is_denied, left) for index, it in enumerate(paths))
        return verdict

    def _status(self, index: int, path: bytes, is_denied: bool, left: dict[bytes, int]) -> pb.Status:
        if path not in left:
            return pb.Status(code="OK", descriptor_index=index)
        is_over = is_denied and left[path] == min(left.values())
        return pb.Status(
            code="OVER_LIMIT" if is_over else "OK",
            descriptor_index=index,
            rule="fake",
            current_limit={"requests_per_unit": self._limits[path], "unit": "MINUTE", "unit_multiplier": 1},
            limit_remaining=max(0, self._limits[path] - self._used[path]),
            duration_until_reset={"seconds": 60},
            used=self._used[path],
        )

    def _commit(self, commit: pb.Commit) -> pb.CommitResult:
        used = commit.used if commit.HasField("used") else None
        self.commits.append(Commit(commit.hold, used, dict(commit.used_by_kind), commit.end))
        return pb.CommitResult()


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
    first = call.descriptors[0]
    if first.is_negative_hits:
        return Call(descriptors, first.hits_addend.value, Mode.REFUND)
    hits = call.hits if call.HasField("hits") else None
    return Call(descriptors, hits, Mode[pb.Call.Mode.Name(call.mode)], dict(call.hits_by_kind) or None, call.id)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
