#!/usr/bin/env python3
"""Writes the JSON Schemas by which kubeconform judges objects, one file per kind: strict, and without links to others.

usage: kubernetes_schemas.py FOLDER SWAGGER.json [CRD.yaml ...]

SWAGGER.json is the OpenAPI document of Kubernetes, from its Go module; CRDs are from operators.
"""
import copy
import json
import pathlib
import sys

import yaml

# Types that OpenAPI 2 cannot express.
SCALARS = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}


def refuse_unknown_fields(schema):
    """Makes each object with named fields refuse others, as the API server does when asked to be strict."""
    if isinstance(schema, list):
        for part in schema:
            refuse_unknown_fields(part)
    if not isinstance(schema, dict):
        return
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("anyOf", None)
        schema["type"] = ["string", "integer"]
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not is_open:
        schema["additionalProperties"] = False
    for part in schema.values():
        refuse_unknown_fields(part)


def references(schema):
    """The names of the definitions that a schema refers to."""
    if isinstance(schema, list):
        return {name for part in schema for name in references(part)}
    if not isinstance(schema, dict):
        return set()
    found = {name for part in schema.values() for name in references(part)}
    link = schema.get("$ref")
    return found | {link.rsplit("/", 1)[-1]} if isinstance(link, str) else found


def built_in(definitions):
    """The schemas of Kubernetes' own kinds, by file name."""
    for name, definition in definitions.items():
        kinds = definition.get("x-kubernetes-group-version-kind", [])
        if len(kinds) != 1:
            continue
        needed, waiting = {}, {name}
        while waiting:
            part = waiting.pop()
            needed[part] = definitions[part]
            waiting |= references(definitions[part]) - needed.keys()
        yield file_name(**kinds[0]), {"$ref": f"#/definitions/{name}", "definitions": needed}


def custom(files):
    """The schemas of custom kinds, by file name."""
    for file in files:
        for crd in yaml.safe_load_all(pathlib.Path(file).read_text()):
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = version["schema"]["openAPIV3Schema"]
                refuse_unknown_fields(schema)
                schema["properties"]["metadata"] = {"type": "object"}
                yield file_name(spec["group"], version["name"], spec["names"]["kind"]), schema


def file_name(group, version, kind):
    """The name that kubeconform looks for: only the first part of the group counts."""
    parts = [kind.lower(), group.split(".")[0], version]
    return "-".join(part for part in parts if part) + ".json"


def main(folder, swagger, *crds):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    definitions = copy.deepcopy(json.loads(pathlib.Path(swagger).read_text())["definitions"])
    refuse_unknown_fields(list(definitions.values()))
    definitions.update(SCALARS)
    for name, schema in [*built_in(definitions), *custom(crds)]:
        (folder / name).write_text(json.dumps(schema))


main(*sys.argv[1:])
