"""Asks a rate-limit service what the lines on stdin say, in another language than the service's.

Each line is a list of descriptors, each a list of [key, value], then hits (or null). Each answer is a
line too: the overall code, and for each descriptor its code, what is left, and the limit.
"""

import json
import sys

import grpc
from envoy_data_plane.envoy.extensions.common.ratelimit.v3 import (
    RateLimitDescriptor,
    RateLimitDescriptorEntry,
)
from envoy_data_plane.envoy.service.ratelimit.v3 import RateLimitRequest, RateLimitResponse

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def descriptor(entries, hits):
    return RateLimitDescriptor(
        entries=[RateLimitDescriptorEntry(key=key, value=value) for key, value in entries],
        hits_addend=hits,
    )


def status(it):
    limit = it.current_limit
    return [it.code.name, it.limit_remaining, limit and [limit.requests_per_unit, limit.unit.name]]


with grpc.insecure_channel(sys.argv[1]) as channel:
    ask = channel.unary_unary(METHOD, bytes, RateLimitResponse.parse)
    for line in sys.stdin:
        domain, descriptors = json.loads(line)
        request = RateLimitRequest(
            domain=domain, descriptors=[descriptor(entries, hits) for entries, hits in descriptors]
        )
        try:
            answer = ask(request, timeout=30)
            print(json.dumps([answer.overall_code.name, *map(status, answer.statuses)]))
        except grpc.RpcError as error:
            print(json.dumps([error.code().name, error.details()]))
