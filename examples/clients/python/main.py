"""Makes a call for each line of stdin, such as user=alice or path=/login,user=alice:

echo user=alice | python main.py localhost:8081 example [DEADLINE_MS]
"""

import sys

from rate_limit import Decision, Limiter


def describe(decision: Decision) -> str:
    verdict = "allowed" if decision.allowed else "denied"
    if decision.failure:
        return f"{verdict}, no answer"
    if not decision.limit:
        return f"{verdict}, no limit"
    headers = "".join(f"; {name}: {value}" for name, value in decision.headers.items())
    left = f"{decision.remaining} of {decision.limit} left"
    return f"{verdict}, {left}, resets in {decision.reset_seconds:.0f} s{headers}"


def main(address: str, domain: str, deadline_ms: str = "50"):
    limiter = Limiter(address, int(deadline_ms) / 1000)
    for line in sys.stdin:
        descriptor = dict(entry.split("=", 1) for entry in line.strip().split(","))
        print(describe(limiter.allow(domain, descriptor)), flush=True)
    limiter.close()


main(*sys.argv[1:])
