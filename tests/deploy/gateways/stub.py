"""Stands in for kubectl, helm, istioctl and curl while a test runs the commands of a page about a gateway, in their order.

It keeps the objects and releases that exist in the folder STUB_STATE, and refuses what would fail or do harm in a cluster: a
file that does not exist or does not parse, a release that is installed twice, an upgrade to another version of the reader's
gateway, and an `apply` over the reader's own configuration.
"""

import json
import os
import re
import sys

import yaml

# What the reader has before the first command, by kind and name. Objects of these are never applied whole or deleted.
READERS = {
    "configmap/contour", "configmap/ratelimit-config", "contourconfiguration/contour", "deployment/contour",
    "deployment/envoy-gateway", "deployment/envoy-ratelimit", "deployment/ratelimit", "service/envoy",
    "service/emissary-ingress", "service/istio-ingressgateway",
}
RELEASES = {"eg": "v1.9.0"}
# What `kubectl get -o jsonpath` prints, by kind.
SHOWN = {
    "configmap/contour": "disablePermitInsecure: false\n",
    "configmap/ratelimit-config": "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}\n",
    "deployment/contour": '["serve","--config-path=/config/contour.yaml"]',
}
PLURALS = {"gateways": "gateway", "ratelimitservices": "ratelimitservice"}


def fail(problem):
    sys.exit(f"{os.path.basename(sys.argv[0])} {' '.join(sys.argv[1:])}: {problem}")


class State:
    def __init__(self):
        self.file = os.path.join(os.environ["STUB_STATE"], "state.json")
        state = json.load(open(self.file)) if os.path.exists(self.file) else {}
        self.objects = state.get("objects", sorted(READERS))
        self.releases = state.get("releases", RELEASES)
        self.before = self.text()

    def text(self):
        return json.dumps({"objects": self.objects, "releases": self.releases})

    def save(self):
        """Replaces the file as a whole, and only by a change: another program of a pipe may be reading it, or have written it."""
        if self.text() == self.before and os.path.exists(self.file):
            return
        new = f"{self.file}.{os.getpid()}"
        with open(new, "w") as file:
            file.write(self.text())
        os.replace(new, self.file)


def options(words, with_value, without_value):
    """The options and the other words; an option that is not listed is an error."""
    found, rest, words = [], [], list(words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            rest.append(word)
        elif name in with_value:
            found.append((name, value if equals else words.pop(0)))
        elif word in without_value or name in without_value:
            found.append((name, value))
        else:
            fail(f"unknown option {word}")
    return found, rest


def documents(file):
    text = sys.stdin.read() if file == "-" else open(file).read()
    found = [each for each in yaml.safe_load_all(text) if each]
    if not found:
        fail(f"{file} has no objects")
    for each in found:
        if not all(each.get(key) for key in ("apiVersion", "kind")) or not each["metadata"].get("name"):
            fail(f"{file}: not an object: {each}")
    return found


def identity(document):
    """Its kind and name, and for what a page makes its group and namespace."""
    name = f"{document['kind']}/{document['metadata']['name']}".lower()
    if name in READERS:
        return name
    group, namespace = document["apiVersion"].split("/")[0], document["metadata"].get("namespace", "")
    return f"{name}@{group}@{namespace}"


def named(kind, name):
    kind = kind.split(".")[0].lower()
    return f"{PLURALS.get(kind, kind)}/{name}"


def existing(state, words):
    """The objects that are named as `KIND NAME` or `KIND/NAME`, which must exist."""
    names = [named(*word.split("/")) for word in words if "/" in word]
    if not names and len(words) > 1:
        names = [named(words[0], name) for name in words[1:]]
    for name in names:
        if not any(each.split("@")[0] == name for each in state.objects):
            fail(f"no {name}")
    return names


def kubectl(state, words):
    found, rest = options(
        words,
        {"-n", "--namespace", "-f", "--filename", "-o", "--output", "--type", "--patch-file", "--from-file", "--dry-run"},
        {"--all-namespaces"},
    )
    files = [value for name, value in found if name in ("-f", "--filename")]
    output = next((value for name, value in found if name in ("-o", "--output")), "")
    verb, rest = rest[0], rest[1:]
    if verb == "apply":
        for document in (each for file in files for each in documents(file)):
            name = identity(document)
            if name in READERS and "tollkeeper" not in json.dumps(document):
                fail(f"overwrites the reader's {name}")
            if name in READERS and document["kind"] != "ConfigMap":
                fail(f"replaces the reader's {name}")
            state.objects = sorted({*state.objects, name})
    elif verb == "delete":
        names = [identity(each) for file in files for each in documents(file)] or existing(state, rest)
        for name in names:
            if name not in state.objects or name in READERS:
                fail(f"deletes {name}, which the page has not made")
            state.objects.remove(name)
    elif verb == "get":
        names = existing(state, rest)
        if output.startswith("jsonpath"):
            print(SHOWN.get(names[0], "203.0.113.7"), end="")
    elif verb == "patch":
        existing(state, rest)
        for name, value in found:
            if name == "--patch-file":
                documents(value)
    elif verb == "create":
        file = next(value for name, value in found if name == "--from-file")
        data = {os.path.basename(file): open(file).read()}
        yaml.safe_load(data[os.path.basename(file)])
        if ("--dry-run", "client") not in found:
            fail("would create it")
        print(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": rest[1]}, "data": data}))
    elif verb in ("rollout", "set"):
        if rest[0] not in ("restart", "status", "undo", "image"):
            fail(f"unknown command {rest[0]}")
        existing(state, [word for word in rest[1:] if "=" not in word])
    elif verb != "port-forward":
        fail(f"unknown command {verb}")


def helm(state, words):
    found, rest = options(
        words,
        {"-n", "--namespace", "--set", "--set-string", "--values", "--version", "--filter", "--output"},
        {"--install", "--reuse-values"},
    )
    given = dict(found)
    verb = rest[0]
    for name, value in found:
        if name == "--values" and not isinstance(yaml.safe_load(open(value)), dict):
            fail(f"{value} has no values")
    if verb == "list":
        listed = [{"name": name, "chart": f"gateway-helm-{version}"} for name, version in RELEASES.items()]
        print(json.dumps(listed, separators=(",", ":")), end="")
        return
    release = rest[1]
    is_own = len(rest) > 2 and rest[2] == "./helm"
    if verb == "install" and release in state.releases:
        fail("cannot re-use a name that is still in use")
    if verb in ("upgrade", "rollback", "uninstall") and "--install" not in given and release not in state.releases:
        fail(f"no release {release}")
    if verb in ("install", "upgrade") and is_own:
        objects = [f"{kind}/{release}" for kind in ("deployment", "service")]
        state.objects = sorted({*state.objects, *objects})
        state.releases = {**state.releases, release: "0.1.0"}
    elif verb == "upgrade":
        if given.get("--version") != RELEASES[release] or "--reuse-values" not in given:
            fail("changes the version or the values of the reader's gateway")
    elif verb == "uninstall":
        if release in RELEASES:
            fail("uninstalls the reader's gateway")
        del state.releases[release]
        state.objects = [each for each in state.objects if each not in (f"deployment/{release}", f"service/{release}")]
    elif verb != "rollback":
        fail(f"unknown command {verb}")


def curl(words):
    if not re.fullmatch(r"http://203\.0\.113\.7(/\w*)?", words[-1]):
        fail("GATEWAY is not set")
    print("200 ", end="")


program, state = os.path.basename(sys.argv[0]), State()
if program == "curl":
    curl(sys.argv[1:])
else:
    {"kubectl": kubectl, "helm": helm}[program](state, sys.argv[1:])
    state.save()
