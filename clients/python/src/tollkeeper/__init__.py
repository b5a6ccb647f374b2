"""A client of tollkeeper, a rate-limit service: decides calls, and holds hits while work is under way."""

from tollkeeper.aio import AsyncClient
from tollkeeper.call import HITS_MAX, Call, Descriptor, Descriptors, Limited, Mode
from tollkeeper.channel import OPTIONS, TLS
from tollkeeper.client import Client
from tollkeeper.decision import Charge, Committed, Decision, ServiceError, Status
from tollkeeper.exchange import OnCall, OnFailure, Settings
from tollkeeper.hold import AsyncHold, Hold
from tollkeeper.middleware import ASGIMiddleware, WSGIMiddleware

__all__ = [
    "HITS_MAX",
    "OPTIONS",
    "TLS",
    "ASGIMiddleware",
    "AsyncClient",
    "AsyncHold",
    "Call",
    "Charge",
    "Client",
    "Committed",
    "Decision",
    "Descriptor",
    "Descriptors",
    "Hold",
    "Limited",
    "Mode",
    "OnCall",
    "OnFailure",
    "ServiceError",
    "Settings",
    "Status",
    "WSGIMiddleware",
]
