"""The table of cases that all clients share, and where its services are."""

import json
import os
import unittest
import uuid
from pathlib import Path
from typing import Any

from tollkeeper import TLS

PACKAGE = Path(__file__).parent.parent
FOLDER = PACKAGE.parent / "conformance"

needs_service = unittest.skipUnless("TOLLKEEPER_ADDR" in os.environ, "TOLLKEEPER_ADDR is the address of a service")


def service() -> str:
    return os.environ["TOLLKEEPER_ADDR"]


def cases() -> list[dict[str, Any]]:
    """The cases, each with counters of its own."""
    listed = json.loads((FOLDER / "cases.json").read_text())["cases"]
    return [json.loads(json.dumps(case).replace("{run}", uuid.uuid4().hex)) for case in listed]


def client_of(case: dict[str, Any], kind: Any) -> Any:
    """The client that a case describes."""
    wanted = case.get("client", {})
    place = wanted.get("service", "plain")
    address = {"plain": "TOLLKEEPER_ADDR", "gone": "TOLLKEEPER_GONE_ADDR", "silent": "TOLLKEEPER_SILENT_ADDR"}
    on_failure = wanted.get("on_failure", "allow")
    return kind(
        os.environ[address.get(place, "TOLLKEEPER_TLS_ADDR")],
        wanted.get("domain", "conformance"),
        timeout=wanted.get("timeout_ms", 10_000) / 1000,
        on_failure=is_vip if on_failure == "function" else on_failure,
        tls=tls(has_certificate=place == "tls") if place.startswith("tls") else None,
    )


def tls(*, has_certificate: bool) -> TLS:
    ca, cert, key = (os.environ[f"TOLLKEEPER_{name}"] for name in ("CA", "CERT", "KEY"))
    return TLS(ca, cert, key, "localhost") if has_certificate else TLS(ca, server_name="localhost")


def is_vip(_error: Exception, descriptors: Any) -> bool:
    return bool(descriptors[0][0][0] == "vip")
