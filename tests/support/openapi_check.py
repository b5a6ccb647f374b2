"""Holds exchanges of HTTP against an OpenAPI document.

usage: openapi_check.py DOCUMENT < exchanges

Stdin is a JSON list of exchanges. Stdout is a list with an entry for each: the problem of the request and the problem of the
response, or null. Fields of an answer that the document does not describe are a problem.
"""

import copy
import json
import re
import sys
from urllib.parse import parse_qsl, urlsplit

import yaml
from openapi_core import OpenAPI
from openapi_core.datatypes import RequestParameters
from werkzeug.datastructures import Headers, ImmutableMultiDict


def close(schema):
    """Makes each object with named fields refuse others, where the document leaves that open."""
    if isinstance(schema, dict) and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []:
        close(part)


class Request:
    def __init__(self, exchange):
        target = urlsplit(exchange["target"])
        self.host_url, self.path, self.method = exchange["server"], target.path, exchange["method"].lower()
        self.parameters = RequestParameters(
            query=ImmutableMultiDict(parse_qsl(target.query, keep_blank_values=True)),
            header=Headers(exchange["headers"]),
        )
        self.body, self.content_type = exchange["body"].encode() or None, "application/json"


class Response:
    def __init__(self, exchange):
        self.status_code, self.headers = exchange["status"], Headers(exchange["answer_headers"])
        self.data, self.content_type = exchange["answer"].encode(), self.headers.get("content-type", "")


def refuse_unknown_parameters(document, request):
    """The service refuses them on its own paths."""
    paths = document["paths"].items()
    item = next((item for path, item in paths if re.fullmatch(re.sub("{.*}", "[^/]+", path), request.path)), {})
    listed = item.get("parameters", []) + item.get(request.method, {}).get("parameters", [])
    known = {part.get("name") or part["$ref"].rsplit("/", 1)[-1] for part in listed}
    unknown = set(request.parameters.query) - known
    if unknown:
        raise ValueError(f"unknown parameters: {unknown}")


def problem(check):
    try:
        check()
    except Exception as error:
        causes = getattr(error.__cause__, "schema_errors", None) or [error.__cause__ or error]
        return "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        document = yaml.safe_load(file)
    as_written = OpenAPI.from_dict(document)
    document = copy.deepcopy(document)
    close(document["components"]["schemas"])
    closed = OpenAPI.from_dict(document)
    found = []
    for exchange in json.load(sys.stdin):
        request, response = Request(exchange), Response(exchange)
        found.append([
            problem(lambda: as_written.validate_request(request))
            or problem(lambda: refuse_unknown_parameters(document, request)),
            problem(lambda: closed.validate_response(request, response)),
        ])
    json.dump(found, sys.stdout)


main()
