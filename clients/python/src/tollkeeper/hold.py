"""Holds: hits charged before the work, which a commit replaces by what was used."""

import dataclasses
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, Generic, Self, TypedDict, Unpack

from tollkeeper.call import Call, Descriptors, check_hits, check_kinds, check_text
from tollkeeper.decision import Committed, Decision
from tollkeeper.exchange import Done, Exchange, One, encode_commit, encode_renewal


class Renewal(TypedDict, total=False):
    """What was used so far, and the next estimate: the first one if it is absent."""

    used: int | None
    estimate: int
    used_by_kind: Mapping[str, int]
    hits_by_kind: Mapping[str, int]


class _Work(Generic[One, Done]):
    """What a hold knows of its work. True if the work may begin."""

    _used: int | None
    _used_by_kind: Mapping[str, int]
    # What was used before a renewal that has ended nothing: it is committed too.
    _before: tuple[int | None, Mapping[str, int]]

    def __init__(
        self, client: Exchange[One, Any, Done], descriptors: Descriptors | Call, estimate: int | None = None
    ) -> None:
        check_hits("estimate", estimate)
        self._client = client
        self._call = descriptors if isinstance(descriptors, Call) else Call(descriptors, estimate)
        self._decision: Decision | None = None
        self._begin("")

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    @property
    def decision(self) -> Decision:
        """The last decision: on the hold, or on its renewal."""
        if self._decision is None:
            raise RuntimeError("hold: not decided yet; enter it by `with client.hold(…) as hold`")
        return self._decision

    @property
    def used(self) -> int | None:
        """Number of hits that were used. If it is never set, what was held counts."""
        return self._used

    @used.setter
    def used(self, used: int | None) -> None:
        check_hits("used", used)
        self._used = used

    @property
    def used_by_kind(self) -> Mapping[str, int]:
        """The same by kind, such as `{"input": 900, "output": 42}`, for limits with `weights`."""
        return self._used_by_kind

    @used_by_kind.setter
    def used_by_kind(self, used_by_kind: Mapping[str, int]) -> None:
        check_kinds("used_by_kind", used_by_kind)
        self._used_by_kind = MappingProxyType(dict(used_by_kind))

    @property
    def end(self) -> str:
        """How the work ended, such as `503 UF`, which is compared with `unused_on` of the rule."""
        return self._end

    @end.setter
    def end(self, end: str) -> None:
        check_text("end", end)
        self._end = end

    def commit(self) -> Done:
        """Commits now; not again if that has succeeded. Repeated while there is no answer."""
        return self._client._run(self._client._finish(self._commit()))

    def release(self) -> Done:
        """Gives everything back now."""
        self._begin_usage(None, {})
        self.used = 0
        return self.commit()

    def renew(self, **renewal: Unpack[Renewal]) -> One:
        """Commits what was used so far, and holds a new estimate for what follows."""
        return self._client._run(self._renew(renewal))

    async def _enter(self, call: Call) -> Decision:
        [self._decision] = await self._client._ask([call], [""], holds=True)
        self._begin(self._decision.hold)
        return await self._checked(call)

    async def _checked(self, call: Call) -> Decision:
        """The decision. If the call met no limit where one is required, what it holds is given back."""
        try:
            self._client._check_limits(call, self.decision)
        except ValueError:
            if self.decision.hold:
                self.used = 0
                await self._client._finish(self._commit())
            raise
        return self.decision

    def _begin(self, token: str) -> None:
        """Nothing is used yet of what the token holds, if it is not empty."""
        self._token = token
        self._begin_usage(None, {})
        self._end = ""

    def _begin_usage(self, before: int | None, before_by_kind: Mapping[str, int]) -> None:
        self._before = before, before_by_kind
        self._used, self._used_by_kind = None, MappingProxyType({})

    def _usage(self) -> tuple[int | None, dict[str, int]]:
        before, by_kind = self._before
        used = self._used if before is None else before + (self._used or 0)
        kinds = [*by_kind, *self._used_by_kind]
        return used, {kind: by_kind.get(kind, 0) + self._used_by_kind.get(kind, 0) for kind in kinds}

    async def _commit(self) -> Committed:
        if not self._token:
            return Committed()
        commit = encode_commit(self._token, *self._usage(), self._end)
        committed = await self._client._commit(commit)
        if committed.error is None:
            self._token = ""
        return committed

    async def _renew(self, renewal: Renewal) -> Decision:
        self.used = renewal.get("used", self.used)
        self.used_by_kind = renewal.get("used_by_kind", self.used_by_kind)
        call = dataclasses.replace(self._call, id="")
        if "estimate" in renewal or "hits_by_kind" in renewal:
            estimate = renewal.get("estimate")
            check_hits("estimate", estimate)
            call = dataclasses.replace(call, hits=estimate, hits_by_kind=renewal.get("hits_by_kind"))
        if not self._token:
            return await self._enter(call)
        usage = self._usage()
        # A mistake in it leaves the usage as it was.
        message = encode_renewal(encode_commit(self._token, *usage, self._end), call)
        # Also if the caller is cancelled meanwhile.
        self._begin_usage(*usage)
        self._decision, is_committed = await self._client._renew(message, call)
        if self._decision.hold or is_committed:
            self._begin(self._decision.hold)
        return await self._checked(call)


class Hold(_Work[Decision, Committed]):
    """Commits on the way out of its `with` block, also if the block raises."""

    def __enter__(self) -> Self:
        self._client._run(self._enter(self._call))
        return self

    def __exit__(self, *raised: object) -> None:
        self.commit()


class AsyncHold(_Work[Coroutine[Any, Any, Decision], Coroutine[Any, Any, Committed]]):
    """Commits on the way out of its `async with` block, also if the block raises or is cancelled."""

    async def __aenter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self._client._connection.under_way("hold"))
            await self._enter(self._call)
            self._open = entered.pop_all()
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._open.close()
        await self.commit()
