"""The services of faults.json, which answer as their rows say: see README.md.

Opens one port of the loopback address for each row, and prints their addresses as one line of JSON. When its stdin
ends, it compares the requests of each row with `sent`, and exits with 1 if any differ.
"""

import asyncio
import json
import re
import socket
import ssl
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc_tools
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import hyperframe.frame
from google.protobuf import descriptor_pb2, message_factory
from grpc_tools import protoc

FOLDER = Path(__file__).parent
PROTOS = FOLDER.parent.parent / "proto"


def messages() -> Any:
    """The messages of the service, apart from those of an installed client."""
    with tempfile.NamedTemporaryFile() as compiled:
        folders = [f"-I{PROTOS}", f"-I{Path(grpc_tools.__file__).parent / '_proto'}"]
        arguments = ["--include_imports", f"-o{compiled.name}", "tollkeeper/v1/tollkeeper.proto"]
        protoc.main(["protoc", *folders, *arguments])
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read())
    classes = message_factory.GetMessages(files.file)
    package = "tollkeeper.v1."
    return SimpleNamespace(**{it.removeprefix(package): made for it, made in classes.items() if it.startswith(package)})


pb = messages()
CODES = {code.name: code.value[0] for code in grpc.StatusCode}


def status(name: str) -> dict[str, Any]:
    return {"code": CODES[name], "message": "as the row says"}


def verdict(word: Any, token: str) -> Any:
    limit, reset = {"requests_per_unit": 10, "unit": "MINUTE", "unit_multiplier": 1}, {"seconds": 30}
    match word:
        case {"item": code}:
            return pb.Verdict(error=status(code))
        case "blank":
            return pb.Verdict()
        case "unlimited" | "without a domain":
            return pb.Verdict(code="OK", statuses=[pb.Status(code="OK")], domain_unknown=word != "unlimited")
        case "half" | "half, held":
            limited = pb.Status(code="OK", rule="user", current_limit=limit, limit_remaining=9)
            free = pb.Status(code="OK", descriptor_index=1)
            return pb.Verdict(code="OK", statuses=[limited, free], hold=token if word == "half, held" else "")
        case "denied":
            denied = pb.Status(code="OVER_LIMIT", rule="user", current_limit=limit, duration_until_reset=reset)
            return pb.Verdict(code="OVER_LIMIT", statuses=[denied])
    reset = {} if word == "now" else reset
    allowed = pb.Status(code="OK", rule="user", current_limit=limit, limit_remaining=9, duration_until_reset=reset)
    return pb.Verdict(code="OK", statuses=[allowed], hold=token)


def result(word: Any) -> Any:
    match word:
        case {"item": code}:
            return pb.CommitResult(error=status(code))
    return pb.CommitResult(charges=[pb.CommittedCharge(outcome="APPLIED", held=3, used=3)])


def answer(method: str, body: bytes, word: Any) -> Any:
    """The message that answers a request; without verdicts or results if it is `short`."""
    request = getattr(pb, f"{method}Request").FromString(body)
    field = {"Decide": "calls", "Commit": "commits", "Renew": "renewals"}[method]
    items = 0 if word == "short" else len(getattr(request, field))
    match method:
        case "Decide":
            return pb.DecideResponse(verdicts=[verdict(word, "token")] * items)
        case "Commit":
            return pb.CommitResponse(results=[result(word)] * items)
    return pb.RenewResponse(results=[pb.RenewResult(commit=result(word), verdict=verdict(word, "renewed"))] * items)


def uses(method: str, body: bytes) -> list[int | None]:
    """What the commits of a request say that was used."""
    match method:
        case "Commit":
            commits = pb.CommitRequest.FromString(body).commits
        case "Renew":
            commits = [renewal.commit for renewal in pb.RenewRequest.FromString(body).renewals]
        case _:
            commits = []
    return [commit.used if commit.HasField("used") else None for commit in commits]


class Row:
    """One row, and its port."""

    def __init__(self, row: dict[str, Any], certificate: ssl.SSLContext) -> None:
        self.row = row
        self.certificate = certificate if row.get("listens") == "tls" else None
        self.writers: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Condition()
        self.has_run = False
        self.problems: list[str] = []
        # Keeps the port while nobody listens: it is bound and does not listen.
        self.port = bound(0)
        self.begin()

    def begin(self) -> None:
        self.words = list(self.row.get("service", []))
        self.seen: list[str] = []
        self.used: list[int | None] = []
        self.is_pinged = False

    def end(self) -> None:
        """Notes the difference between what should have come and what has."""
        wanted = "".join(re.sub(r"(\w+)(\W?)", r"(\1 )\2", word) for word in self.row["sent"])
        if not self.has_run:
            if not self.row.get("optional"):
                self.problems.append(f"{self.row['name']}: was not run")
        elif not re.fullmatch(wanted, "".join(f"{method} " for method in self.seen)):
            self.problems.append(f"{self.row['name']}: sent {self.seen}, not {self.row['sent']}")
        elif self.used != self.row.get("used", self.used):
            self.problems.append(f"{self.row['name']}: committed {self.used}, not {self.row['used']}")

    def address(self) -> str:
        return f"127.0.0.1:{self.port.getsockname()[1]}"

    async def listen(self) -> None:
        port = self.port.getsockname()[1]
        self.server = await asyncio.start_server(self.serve, sock=bound(port))

    async def leave(self, ms: int) -> None:
        """Closes the connections, and listens again later."""
        self.server.close()
        self.close()
        await asyncio.sleep(ms / 1000)
        await self.listen()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    async def changes(self, **values: Any) -> None:
        async with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            first = await reader.readexactly(3)
            if first.islower():
                await self.obey((first + await reader.readline()).decode().split(), writer)
                return
            await self.changes(has_run=True)
            if self.certificate:
                await shake_hands(self.certificate, first, reader, writer)
            elif first == b"PRI":
                await Connection(self, reader, writer).run(first)
        except (OSError, EOFError, h2.exceptions.ProtocolError):
            # The client has gone.
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def obey(self, command: list[str], writer: asyncio.StreamWriter) -> None:
        """A line of a suite, which gets an answer when what it waits for has come."""
        if command == ["begin"]:
            if self.has_run:
                self.end()
            self.begin()
            self.has_run = True
        else:
            conditions = {
                "connected": lambda: any(it is not writer for it in self.writers),
                "pinged": lambda: self.is_pinged,
                "sent": lambda: len(self.seen) >= int(command[1]),
            }
            async with self.changed:
                await self.changed.wait_for(conditions[command[0]])
        writer.write(b"ok\n")
        await writer.drain()


class Connection:
    """One HTTP/2 connection of a client."""

    def __init__(self, row: Row, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.row, self.reader, self.writer = row, reader, writer
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.methods: dict[int, str] = {}
        self.bodies: dict[int, bytes] = {}

    async def run(self, data: bytes) -> None:
        self.http.initiate_connection()
        while data:
            for event in self.http.receive_data(data):
                await self.handle(event)
            self.send()
            data = await self.reader.read(65_536)

    def send(self) -> None:
        self.writer.write(self.http.data_to_send())

    async def handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=stream, headers=headers):
                self.methods[stream] = dict(headers)[":path"].rsplit("/", 1)[1]
                self.bodies[stream] = b""
            case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                self.bodies[stream] += data
                self.http.acknowledge_received_data(length, stream)
            case h2.events.PingReceived() if not self.methods:
                await self.row.changes(is_pinged=True)
            case h2.events.StreamEnded(stream_id=stream):
                word = self.row.words.pop(0) if self.row.words else self.row.row.get("then", "ok")
                used = uses(self.methods[stream], self.bodies[stream][5:])
                await self.row.changes(seen=[*self.row.seen, self.methods[stream]], used=[*self.row.used, *used])
                task = asyncio.create_task(self.respond(stream, word))
                self.row.tasks.add(task)
                task.add_done_callback(self.row.tasks.discard)

    async def respond(self, stream: int, word: Any) -> None:
        match word:
            case {"late_ms": ms}:
                await asyncio.sleep(ms / 1000)
            case "goaway":
                self.send()
                self.writer.write(hyperframe.frame.GoAwayFrame(0, last_stream_id=stream).serialize())
        # The client may have cancelled the request, or gone.
        with suppress(OSError, h2.exceptions.ProtocolError):
            self.answer(stream, word)
            self.send()
            await self.writer.drain()
        match word:
            case "goaway" | "close":
                self.writer.close()
            case {"leaves_ms": ms} | {"away_ms": ms}:
                await self.row.leave(ms)

    def answer(self, stream: int, word: Any) -> None:
        headers = [(":status", "200"), ("content-type", "application/grpc")]
        match word:
            case "silent" | "close" | {"away_ms": _}:
                pass
            case {"status": code}:
                trailers = [("grpc-status", str(CODES[code])), ("grpc-message", "as the row says")]
                self.http.send_headers(stream, headers + trailers, end_stream=True)
            case _:
                message = answer(self.methods[stream], self.bodies[stream][5:], word).SerializeToString()
                self.http.send_headers(stream, headers)
                self.http.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message)
                self.http.send_headers(stream, [("grpc-status", "0")], end_stream=True)


def bound(port: int) -> socket.socket:
    """A socket at the port, or at any for 0."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


async def shake_hands(
    certificate: ssl.SSLContext, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Begins TLS with a client, which does not trust the certificate."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = certificate.wrap_bio(incoming, outgoing, server_side=True)
    while data:
        incoming.write(data)
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            pass
        finally:
            writer.write(outgoing.read())
        data = await reader.read(65_536)


def self_signed() -> ssl.SSLContext:
    """A certificate for localhost that no client trusts."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        cert, key = f"{folder}/cert", f"{folder}/key"
        made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        subject = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        subprocess.run([*made.split(), *subject, "-out", cert, "-keyout", key], check=True, capture_output=True)
        context.load_cert_chain(cert, key)
    return context


async def main() -> None:
    certificate = self_signed()
    rows = [Row(row, certificate) for row in json.loads((FOLDER / "faults.json").read_text())["rows"]]
    for row in rows:
        await row.listen()
    print(json.dumps({row.row["name"]: row.address() for row in rows}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for row in rows:
        row.end()
    problems = [problem for row in rows for problem in row.problems]
    sys.exit("\n".join(problems) or None)


asyncio.run(main())
