"""Holds: hits charged before the work, which a commit replaces by what was used."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from tollkeeper.call import Call, check_hits, check_kinds
from tollkeeper.decision import Committed, Decision

if TYPE_CHECKING:
    from tollkeeper.aio import AsyncClient
    from tollkeeper.client import Client


class _Work:
    """What a hold knows of its work. True if the work may begin."""

    decision: Decision
    """Set when the block is entered."""
    end = ""
    """How the work ended, such as `503 UF`, which is compared with `unused_on` of the rule."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._used: int | None = None
        self._used_by_kind: Mapping[str, int] = MappingProxyType({})
        self._is_committed = False

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    @property
    def used(self) -> int | None:
        """Number of hits that were used. If it is never set, what was held counts."""
        return self._used

    @used.setter
    def used(self, used: int) -> None:
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

    def release(self) -> None:
        """Gives everything back on the way out."""
        self.used = 0
        self.used_by_kind = {}


class Hold(_Work):
    """Commits on the way out of its `with` block, also if the block raises."""

    def __init__(self, client: "Client", call: Call) -> None:
        super().__init__(call)
        self._client = client

    def __enter__(self) -> Self:
        self.decision = self._client.decide_call(self._call)
        return self

    def __exit__(self, *raised: object) -> None:
        if not self._is_committed:
            self.commit()

    def commit(self) -> Committed:
        """Commits now. It may be repeated: only the first commit counts."""
        if not self.decision.hold:
            return Committed()
        committed = self._client.commit(self.decision.hold, self._used, self._used_by_kind, self.end)
        self._is_committed = committed.error is None
        return committed


class AsyncHold(_Work):
    """Commits on the way out of its `async with` block, also if the block raises or is cancelled."""

    def __init__(self, client: "AsyncClient", call: Call) -> None:
        super().__init__(call)
        self._client = client

    async def __aenter__(self) -> Self:
        self.decision = await self._client.decide_call(self._call)
        return self

    async def __aexit__(self, *raised: object) -> None:
        if not self._is_committed:
            await self.commit()

    async def commit(self) -> Committed:
        """Commits now. It may be repeated: only the first commit counts."""
        if not self.decision.hold:
            return Committed()
        committed = await self._client.commit(self.decision.hold, self._used, self._used_by_kind, self.end)
        self._is_committed = committed.error is None
        return committed
