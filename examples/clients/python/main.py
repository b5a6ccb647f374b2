"""Decides a call for each line of stdin, such as user=alice or path=/login,user=alice:

echo user=alice | python main.py localhost:8081 example [TIMEOUT_MS]
"""

import sys

from tollkeeper import Client, Decision


def describe(decision: Decision) -> str:
    verdict = "allowed" if decision.allowed else "denied"
    if decision.failed:
        return f"{verdict}, no answer"
    if decision.limit is None:
        return f"{verdict}, no limit"
    headers = "".join(f"; {name}: {value}" for name, value in decision.headers.items())
    left = f"{decision.remaining} of {decision.limit} left"
    return f"{verdict}, {left}, resets in {decision.reset:.0f} s{headers}"


def main(target: str, domain: str, timeout_ms: str = "50") -> None:
    with Client(target, domain, timeout=int(timeout_ms) / 1000) as client:
        for line in sys.stdin:
            descriptor = dict(entry.split("=", 1) for entry in line.strip().split(","))
            print(describe(client.decide(descriptor)), flush=True)


main(*sys.argv[1:])
