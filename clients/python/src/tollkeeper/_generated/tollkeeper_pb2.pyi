import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import wrappers_pb2 as _wrappers_pb2
from tollkeeper._generated import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecideRequest(_message.Message):
    __slots__ = ("domain", "calls")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    domain: str
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, domain: _Optional[str] = ..., calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...

class DecideResponse(_message.Message):
    __slots__ = ("verdicts",)
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ...) -> None: ...

class Descriptor(_message.Message):
    __slots__ = ("entries", "limit", "hits_addend", "is_negative_hits")
    class Entry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: bytes
        value: bytes
        def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...
    class Override(_message.Message):
        __slots__ = ("requests_per_unit", "unit", "unit_multiplier")
        REQUESTS_PER_UNIT_FIELD_NUMBER: _ClassVar[int]
        UNIT_FIELD_NUMBER: _ClassVar[int]
        UNIT_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
        requests_per_unit: int
        unit: Limit.Unit
        unit_multiplier: _wrappers_pb2.UInt32Value
        def __init__(self, requests_per_unit: _Optional[int] = ..., unit: _Optional[_Union[Limit.Unit, str]] = ..., unit_multiplier: _Optional[_Union[_wrappers_pb2.UInt32Value, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    HITS_ADDEND_FIELD_NUMBER: _ClassVar[int]
    IS_NEGATIVE_HITS_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Descriptor.Entry]
    limit: Descriptor.Override
    hits_addend: _wrappers_pb2.UInt64Value
    is_negative_hits: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[Descriptor.Entry, _Mapping]]] = ..., limit: _Optional[_Union[Descriptor.Override, _Mapping]] = ..., hits_addend: _Optional[_Union[_wrappers_pb2.UInt64Value, _Mapping]] = ..., is_negative_hits: bool = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("descriptors", "mode", "hits", "hits_by_kind", "id")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TAKE: _ClassVar[Call.Mode]
        CHECK: _ClassVar[Call.Mode]
        READ: _ClassVar[Call.Mode]
        DEBIT: _ClassVar[Call.Mode]
        PART: _ClassVar[Call.Mode]
        LEASE: _ClassVar[Call.Mode]
    TAKE: Call.Mode
    CHECK: Call.Mode
    READ: Call.Mode
    DEBIT: Call.Mode
    PART: Call.Mode
    LEASE: Call.Mode
    class HitsByKindEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    HITS_BY_KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    descriptors: _containers.RepeatedCompositeFieldContainer[Descriptor]
    mode: Call.Mode
    hits: int
    hits_by_kind: _containers.ScalarMap[str, int]
    id: str
    def __init__(self, descriptors: _Optional[_Iterable[_Union[Descriptor, _Mapping]]] = ..., mode: _Optional[_Union[Call.Mode, str]] = ..., hits: _Optional[int] = ..., hits_by_kind: _Optional[_Mapping[str, int]] = ..., id: _Optional[str] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("code", "statuses", "hold", "error", "hits", "spend_within", "domain_unknown")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Verdict.Code]
        OK: _ClassVar[Verdict.Code]
        OVER_LIMIT: _ClassVar[Verdict.Code]
    UNKNOWN: Verdict.Code
    OK: Verdict.Code
    OVER_LIMIT: Verdict.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    SPEND_WITHIN_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    code: Verdict.Code
    statuses: _containers.RepeatedCompositeFieldContainer[Status]
    hold: str
    error: _status_pb2.Status
    hits: int
    spend_within: _duration_pb2.Duration
    domain_unknown: bool
    def __init__(self, code: _Optional[_Union[Verdict.Code, str]] = ..., statuses: _Optional[_Iterable[_Union[Status, _Mapping]]] = ..., hold: _Optional[str] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., hits: _Optional[int] = ..., spend_within: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., domain_unknown: bool = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "descriptor_index", "rule", "current_limit", "limit_remaining", "duration_until_reset", "used", "held")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_REMAINING_FIELD_NUMBER: _ClassVar[int]
    DURATION_UNTIL_RESET_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    code: Verdict.Code
    descriptor_index: int
    rule: str
    current_limit: Limit
    limit_remaining: int
    duration_until_reset: _duration_pb2.Duration
    used: int
    held: int
    def __init__(self, code: _Optional[_Union[Verdict.Code, str]] = ..., descriptor_index: _Optional[int] = ..., rule: _Optional[str] = ..., current_limit: _Optional[_Union[Limit, _Mapping]] = ..., limit_remaining: _Optional[int] = ..., duration_until_reset: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., used: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("name", "requests_per_unit", "unit", "unit_multiplier")
    class Unit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Limit.Unit]
        SECOND: _ClassVar[Limit.Unit]
        MINUTE: _ClassVar[Limit.Unit]
        HOUR: _ClassVar[Limit.Unit]
        DAY: _ClassVar[Limit.Unit]
        MONTH: _ClassVar[Limit.Unit]
        YEAR: _ClassVar[Limit.Unit]
        WEEK: _ClassVar[Limit.Unit]
    UNKNOWN: Limit.Unit
    SECOND: Limit.Unit
    MINUTE: Limit.Unit
    HOUR: Limit.Unit
    DAY: Limit.Unit
    MONTH: Limit.Unit
    YEAR: Limit.Unit
    WEEK: Limit.Unit
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_UNIT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    UNIT_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    name: str
    requests_per_unit: int
    unit: Limit.Unit
    unit_multiplier: int
    def __init__(self, name: _Optional[str] = ..., requests_per_unit: _Optional[int] = ..., unit: _Optional[_Union[Limit.Unit, str]] = ..., unit_multiplier: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("domain", "commits")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    domain: str
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    def __init__(self, domain: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("hold", "used", "used_by_kind", "end")
    class UsedByKindEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    HOLD_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    USED_BY_KIND_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    hold: str
    used: int
    used_by_kind: _containers.ScalarMap[str, int]
    end: str
    def __init__(self, hold: _Optional[str] = ..., used: _Optional[int] = ..., used_by_kind: _Optional[_Mapping[str, int]] = ..., end: _Optional[str] = ...) -> None: ...

class CommitResult(_message.Message):
    __slots__ = ("charges", "error")
    CHARGES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    charges: _containers.RepeatedCompositeFieldContainer[CommittedCharge]
    error: _status_pb2.Status
    def __init__(self, charges: _Optional[_Iterable[_Union[CommittedCharge, _Mapping]]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class CommittedCharge(_message.Message):
    __slots__ = ("outcome", "held", "used")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[CommittedCharge.Outcome]
        APPLIED: _ClassVar[CommittedCharge.Outcome]
        REPEATED: _ClassVar[CommittedCharge.Outcome]
        LATE: _ClassVar[CommittedCharge.Outcome]
    UNKNOWN: CommittedCharge.Outcome
    APPLIED: CommittedCharge.Outcome
    REPEATED: CommittedCharge.Outcome
    LATE: CommittedCharge.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    outcome: CommittedCharge.Outcome
    held: int
    used: int
    def __init__(self, outcome: _Optional[_Union[CommittedCharge.Outcome, str]] = ..., held: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("domain", "renewals")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    RENEWALS_FIELD_NUMBER: _ClassVar[int]
    domain: str
    renewals: _containers.RepeatedCompositeFieldContainer[Renewal]
    def __init__(self, domain: _Optional[str] = ..., renewals: _Optional[_Iterable[_Union[Renewal, _Mapping]]] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RenewResult]
    def __init__(self, results: _Optional[_Iterable[_Union[RenewResult, _Mapping]]] = ...) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("commit", "call")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    call: Call
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ...) -> None: ...

class RenewResult(_message.Message):
    __slots__ = ("commit", "verdict")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    commit: CommitResult
    verdict: Verdict
    def __init__(self, commit: _Optional[_Union[CommitResult, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ...) -> None: ...
