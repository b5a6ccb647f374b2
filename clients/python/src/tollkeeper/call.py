"""Calls: what a client wants to do, checked before it is sent."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

from tollkeeper._generated import tollkeeper_pb2
from tollkeeper._generated.tollkeeper_pb2 import Limit

HITS_MAX = 2**53 - 1
UINT32_MAX = 2**32 - 1
CALLS_MAX = 1_000
# The most bytes of keys and values in a request. End users may send long values, and more would take longer than the
# timeout, or be refused by the service, which takes 4 MiB.
ENTRIES_BYTES_MAX = 512 * 1_024
UNITS = [name.lower() for name, number in Limit.Unit.items() if number]
ID_BYTES_MAX = 128

Text = str | bytes
# An ordered path of keys and values, as in the rules. Pairs may repeat a key and have keys that are bytes.
Path = Mapping[str, Text] | Sequence[tuple[Text, Text]]


@dataclass(frozen=True, slots=True)
class Limited:
    """A descriptor with a limit of the caller's own, in place of the one of the rules."""

    descriptor: Path
    requests: int
    unit: str
    """`second`, `minute`, `hour`, `day`, `week`, `month` or `year`."""
    multiplier: int = 1


Descriptor = Path | Limited
Descriptors = Descriptor | Sequence[Descriptor]


class Mode(Enum):
    """What a call does to the counters."""

    TAKE = "take"
    """Charges the hits if all of them fit, or nothing."""
    CHECK = "check"
    """Charges nothing, and answers as for one hit."""
    READ = "read"
    """Charges nothing and denies nothing: the statuses show the counters of every limit."""
    DEBIT = "debit"
    """Charges the hits in any case, since the work is done."""
    PART = "part"
    """Charges as many of the hits as fit: `Decision.hits`. Denied if none fits."""
    REFUND = "refund"
    """Gives the hits back."""


@dataclass(frozen=True, slots=True)
class Call:
    """One thing to do. All of its descriptors pass, or none."""

    descriptors: Descriptors
    hits: int | None = 1
    """Not used by CHECK and READ. None is 1, or the estimate of a rule with `hold`."""
    mode: Mode = Mode.TAKE
    hits_by_kind: Mapping[str, int] | None = None
    """Estimates of a hold, for limits with `weights`. Only with TAKE."""
    id: str = ""
    """Names the call: the same call is charged once, also if it is repeated within 60 s."""


def listed(descriptors: Descriptors) -> Sequence[Descriptor]:
    """Several descriptors, from one or several."""
    if isinstance(descriptors, Mapping | Limited):
        return [descriptors]
    # A pair begins with text, a descriptor does not.
    first = next(iter(descriptors), None)
    if isinstance(first, tuple) and first and isinstance(first[0], (str, bytes)):
        return [cast(Descriptor, descriptors)]
    return cast(Sequence[Descriptor], descriptors)


def keys(descriptor: Descriptor) -> str:
    """The keys of a descriptor, as the path of a rule has them."""
    names = (key.decode(errors="replace") if isinstance(key, bytes) else key for key, _ in _pairs(descriptor))
    return "|".join(names)


def check_hits(field: str, hits: int | None, most: int = HITS_MAX) -> None:
    if hits is None:
        return
    try:
        operator.index(hits)
    except TypeError:
        raise TypeError(f"{field}: must be an int, not {type(hits).__name__}") from None
    if not 0 <= hits <= most:
        raise ValueError(f"{field}: must be from 0 to {most}, not {hits}")


def check_kinds(field: str, hits_by_kind: Mapping[str, int] | None) -> None:
    for kind, hits in (hits_by_kind or {}).items():
        check_text(f"{field}: kind", kind)
        check_hits(f"{field}[{kind}]", hits)


def check_text(field: str, text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{field}: must be str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field}: must be valid Unicode, not {text!a}") from None


def encode(call: Call, path: str = "") -> tollkeeper_pb2.Call:
    """The message of a call. Errors name the field below `path`."""
    descriptors = listed(call.descriptors)
    if not descriptors:
        raise ValueError(f"{path}descriptors: must have at least 1 item")
    hits = None if call.mode in (Mode.CHECK, Mode.READ) else call.hits
    check_hits(f"{path}hits", hits)
    check_kinds(f"{path}hits_by_kind", call.hits_by_kind)
    if (size := len(call.id.encode())) > ID_BYTES_MAX:
        raise ValueError(f"{path}id: must be at most {ID_BYTES_MAX} bytes, not {size}")
    is_refund = call.mode is Mode.REFUND
    mode = None if is_refund else call.mode.name
    message = tollkeeper_pb2.Call(mode=mode, hits=hits, hits_by_kind=call.hits_by_kind, id=call.id)
    for index, descriptor in enumerate(descriptors):
        field = f"{path}descriptors[{index}]"
        added = message.descriptors.add(is_negative_hits=is_refund)
        for key, value in _entries(descriptor, field):
            added.entries.add(key=key, value=value)
        if isinstance(descriptor, Limited):
            added.limit.CopyFrom(_limit(descriptor, f"{field}.limit"))
    return message


def _limit(limited: Limited, path: str) -> tollkeeper_pb2.Descriptor.Override:
    if limited.unit not in UNITS:
        raise ValueError(f"{path}.unit: must be one of: {', '.join(UNITS)}")
    check_hits(f"{path}.requests", limited.requests, UINT32_MAX)
    check_hits(f"{path}.multiplier", limited.multiplier, UINT32_MAX)
    return tollkeeper_pb2.Descriptor.Override(
        requests_per_unit=limited.requests,
        unit=limited.unit.upper(),
        unit_multiplier={"value": limited.multiplier},
    )


def _pairs(descriptor: Descriptor) -> list[tuple[Text, Text]]:
    if isinstance(descriptor, Limited):
        descriptor = descriptor.descriptor
    return list(descriptor.items() if isinstance(descriptor, Mapping) else descriptor)


def _entries(descriptor: Descriptor, path: str) -> list[tuple[bytes, bytes]]:
    pairs = _pairs(descriptor)
    if not pairs:
        raise ValueError(f"{path}.entries: must have at least 1 item")
    entries = []
    for index, (key, value) in enumerate(pairs):
        field = f"{path}.entries[{index}]"
        if not key:
            raise ValueError(f"{field}.key: must not be empty")
        entries.append((_bytes(key, f"{field}.key"), _bytes(value, f"{field}.value")))
    return entries


def _bytes(text: Text, field: str) -> bytes:
    if isinstance(text, str):
        # A lone surrogate in a value from outside is no reason to fail.
        return text.encode(errors="surrogatepass")
    if isinstance(text, bytes):
        return text
    raise TypeError(f"{field}: must be str or bytes, not {type(text).__name__}")
