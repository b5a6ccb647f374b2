"""No answer of a service, and no log, raises into the application."""

import asyncio
import gc
import inspect
import logging
import threading
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from tollkeeper import AsyncClient, Client
from tollkeeper._generated import tollkeeper_pb2 as pb

KINDS: list[Any] = [Client, AsyncClient]
LONG = 10.0
UNREADABLE = b"\xff\xff"
HOSTILE = "down\r\nINFO all is well\x1b[31m\x00\x7f\x9b\u2028\u2029\u202e\u2066" + "x" * 1_000


class Service(grpc.GenericRpcHandler):
    """Answers each method by a message or bytes, by a code and a text, or late, if it is None."""

    late: Any = UNREADABLE

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.arrived = threading.Semaphore(0)
        self.is_released = threading.Event()

    def service(self, details: Any) -> Any:
        found = self.answers[details.method.rsplit("/", 1)[1]]

        def answer(_request: bytes, context: Any) -> Any:
            self.arrived.release()
            if found is None:
                self.is_released.wait(LONG)
            if isinstance(found, tuple):
                context.abort(*found)
            message = self.late if found is None else found
            return message if isinstance(message, bytes) else message.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)

    @contextmanager
    def listen(self) -> Iterator[str]:
        server = grpc.server(ThreadPoolExecutor(8), handlers=[self])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            self.is_released.set()
            server.stop(None).wait()


async def awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def work(client: Any, problem: Exception) -> Any:
    """Takes a hold, renews it, and raises within its block."""
    hold = client.hold({"user": "alice"})
    try:
        if isinstance(client, AsyncClient):
            async with hold:
                await hold.renew(used=1)
                raise problem
        with hold:
            hold.renew(used=1)
            raise problem
    finally:
        await awaited(client.close())


def limited(unit: int, **status: Any) -> pb.Verdict:
    limit = {"requests_per_unit": 10, "unit": unit}
    return pb.Verdict(code="OK", hold="token", statuses=[pb.Status(code="OK", current_limit=limit, **status)])


def raising(_record: logging.LogRecord) -> bool:
    raise OSError("the log is full")


class Answers(unittest.TestCase):
    def test_no_answer_replaces_the_exception_of_a_hold(self) -> None:
        later = pb.CommitResult(charges=[pb.CommittedCharge(outcome=8)])  # type: ignore[arg-type]
        for decide, renew, commit in (
            (UNREADABLE, UNREADABLE, UNREADABLE),
            (b"", b"", b""),
            (
                pb.DecideResponse(verdicts=[limited(8)]),
                pb.RenewResponse(results=[pb.RenewResult(commit=later, verdict=limited(-1))]),
                pb.CommitResponse(results=[later]),
            ),
            (pb.DecideResponse(verdicts=[limited(2)]), UNREADABLE, UNREADABLE),
        ):
            for kind in KINDS:
                service = Service(Decide=decide, Renew=renew, Commit=commit)
                with self.subTest(kind=kind, decide=decide), service.listen() as address, self.assertNoLogs("grpc"):
                    client = kind(address, "example", timeout=LONG, on_failure="allow")
                    with self.assertRaisesRegex(KeyError, "mine"):
                        asyncio.run(work(client, KeyError("mine")))

    def test_a_hold_is_committed_after_a_denied_renewal_that_does_not_say_so(self) -> None:
        denied = pb.RenewResult(verdict=pb.Verdict(code="OVER_LIMIT"))
        answers = {
            "Decide": pb.DecideResponse(verdicts=[limited(2)]),
            "Commit": pb.CommitResponse(results=[pb.CommitResult()]),
        }
        heard: list[str] = []
        for result, methods in (
            (denied, ["decide", "renew", "commit"]),
            (pb.RenewResult(verdict=denied.verdict, commit=pb.CommitResult()), ["decide", "renew"]),
        ):
            for kind in KINDS:
                service = Service(**answers, Renew=pb.RenewResponse(results=[result]))
                with self.subTest(kind=kind, methods=methods), service.listen() as address:
                    client = kind(address, "example", timeout=LONG, on_call=lambda method, *_: heard.append(method))
                    with self.assertRaisesRegex(KeyError, "mine"):
                        asyncio.run(work(client, KeyError("mine")))
                    self.assertEqual(heard, methods)
                    heard.clear()

    def test_numbers_of_a_later_version_are_shown_as_they_are(self) -> None:
        decided = pb.DecideResponse(verdicts=[limited(8, duration_until_reset={"seconds": -5})])
        charge = pb.CommittedCharge(outcome=8, held=3, used=2)  # type: ignore[arg-type]
        committed = pb.CommitResponse(results=[pb.CommitResult(charges=[charge])])
        with Service(Decide=decided, Commit=committed).listen() as address, Client(address, "example") as client:
            decision = client.using(timeout=LONG).decide({"user": "alice"})
            charges = client.using(commit_timeout=4 * LONG).commit("token", used=2).charges
        self.assertEqual([(it.unit, it.limit) for it in decision.statuses], [("8", 10)])
        self.assertEqual(decision.headers["RateLimit-Reset"], "0")
        self.assertEqual([(it.outcome, it.held, it.used) for it in charges], [("8", 3, 2)])

    def test_an_unreadable_answer_is_an_answer_of_something_else(self) -> None:
        for kind in KINDS:
            with self.subTest(kind), Service(Decide=UNREADABLE).listen() as address:
                client = kind(address, "example", timeout=LONG, on_failure="deny")
                decision = asyncio.run(awaited(client.decide({"user": "alice"})))
                self.assertEqual((decision.allowed, decision.failed, decision.error.code), (False, True, "INTERNAL"))

    def test_each_call_has_an_error_of_its_own(self) -> None:
        for kind in KINDS:
            with self.subTest(kind), Service(Decide=UNREADABLE).listen() as address:
                asyncio.run(self.raise_twice(kind(address, "example", timeout=LONG)))

    async def raise_twice(self, client: Any) -> None:
        for close in (lambda: None, client.close):
            await awaited(close())
            for _ in range(2):
                error = (await awaited(client.decide({"user": "alice"}))).error
                # An exception keeps every place where it was raised.
                self.assertIsNone(error.__traceback__)
                with suppress(type(error)):
                    raise error

    def test_a_status_of_no_descriptor_of_the_call_raises_nothing(self) -> None:
        status = pb.Status(code="OK", descriptor_index=2**32 - 1)
        answer = pb.DecideResponse(verdicts=[pb.Verdict(code="OK", statuses=[status])])
        with Service(Decide=answer).listen() as address, Client(address, "example", timeout=LONG) as client:
            self.assertTrue(client.using(require_limit=True).decide({"user": "alice"}).allowed)

    def test_a_hold_that_is_given_back_may_have_an_unreadable_answer(self) -> None:
        asyncio.run(self.leave())

    def test_a_hold_is_given_back_if_its_task_is_cancelled_right_before_its_client_is_closed(self) -> None:
        asyncio.run(self.cancel_and_close())

    async def cancel_and_close(self) -> None:
        service = Service(Decide=None, Commit=pb.CommitResponse(results=[pb.CommitResult()]))
        service.late = pb.DecideResponse(verdicts=[limited(2)])
        heard: list[str] = []
        with service.listen() as address:
            client = AsyncClient(
                address, "example", timeout=LONG, commit_timeout=LONG, on_call=lambda method, *_: heard.append(method)
            )
            task = asyncio.create_task(client.hold({"user": "alice"}).__aenter__())
            await asyncio.to_thread(service.arrived.acquire)
            service.is_released.set()
            task.cancel()
            await client.close()
        self.assertEqual(heard, ["commit"])

    async def leave(self) -> None:
        problems: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, problem: problems.append(problem))
        service = Service(Decide=None)
        service.answers["Commit"] = UNREADABLE
        with service.listen() as address:
            async with AsyncClient(address, "example", timeout=LONG) as client:
                task = asyncio.create_task(client.hold({"user": "alice"}).__aenter__())
                await asyncio.to_thread(service.arrived.acquire)
                task.cancel()
                await asyncio.wait([task])
                service.is_released.set()
        # A task whose exception nobody has seen says so when it is deleted.
        gc.collect()
        self.assertEqual(problems, [])


class Logs(unittest.TestCase):
    def test_a_line_of_the_log_is_one_line_whatever_the_service_says(self) -> None:
        item = pb.Verdict(error={"code": 14, "message": HOSTILE})
        for answer in ((grpc.StatusCode.UNAVAILABLE, HOSTILE), pb.DecideResponse(verdicts=[item])):
            with (
                Service(Decide=answer).listen() as address,
                Client(address, "a\n\u202eb", timeout=LONG) as client,
                self.assertLogs("tollkeeper") as logs,
            ):
                decision = client.decide({"user": "alice"})
            self.assertEqual(decision.error and decision.error.message, HOSTILE)
            [line] = [record.getMessage() for record in logs.records]
            self.assertTrue(line.replace("…", "").isprintable(), ascii(line))
            self.assertIn('"a  b"', line)
            self.assertIn("UNAVAILABLE: down  INFO all is well", line)
            self.assertIn("x… (target ", line)
            self.assertLess(len(line), 500)

    def test_holds_and_renewals_in_an_unknown_domain_are_counted(self) -> None:
        verdict = pb.Verdict(code="OK", hold="token", domain_unknown=True)
        answers = {
            "Decide": pb.DecideResponse(verdicts=[verdict]),
            "Renew": pb.RenewResponse(results=[pb.RenewResult(verdict=verdict)]),
            "Commit": pb.CommitResponse(results=[pb.CommitResult()]),
        }
        for kind in KINDS:
            with Service(**answers).listen() as address, self.assertLogs("tollkeeper") as logs:
                with self.assertRaisesRegex(KeyError, "mine"):
                    asyncio.run(work(kind(address, "shop", timeout=LONG), KeyError("mine")))
                text = 'tollkeeper: 1 call of the domain "shop" met no limit, because the service has no such domain'
                line = f"{text} (target {address}, without TLS)"
                self.assertEqual([it.getMessage() for it in logs.records], [line, line])

    def test_a_failed_call_in_an_unknown_domain_is_counted_once(self) -> None:
        verdict = pb.Verdict(domain_unknown=True, error={"code": 14, "message": "down"})
        for kind in KINDS:
            answer = pb.DecideResponse(verdicts=[verdict])
            with Service(Decide=answer).listen() as address, self.assertLogs("tollkeeper") as logs:
                asyncio.run(awaited(kind(address, "shop", timeout=LONG).decide({"user": "alice"})))
                [line] = [it.getMessage() for it in logs.records]
                self.assertIn('1 call of the domain "shop" had no answer', line)

    def test_a_log_that_raises_reaches_no_caller(self) -> None:
        logger = logging.getLogger("tollkeeper")
        logger.addFilter(raising)
        self.addCleanup(logger.removeFilter, raising)
        failed = grpc.StatusCode.PERMISSION_DENIED, "no"
        taken = pb.DecideResponse(verdicts=[limited(2)])
        for kind in KINDS:
            with self.subTest(kind), Service(Decide=taken, Renew=failed, Commit=failed).listen() as address:
                client = kind(address, "example", timeout=LONG, on_call=lambda *_: 1 / 0)
                with self.assertRaisesRegex(KeyError, "mine"):
                    asyncio.run(work(client, KeyError("mine")))

    def test_close_counts_the_calls_that_it_ends(self) -> None:
        for kind in KINDS:
            service = Service(Decide=(grpc.StatusCode.UNAVAILABLE, "no"))
            with self.subTest(kind), service.listen() as address, self.assertLogs("tollkeeper") as logs:
                asyncio.run(self.close(kind(address, "example", timeout=LONG), service))
                self.assertEqual([line.getMessage().split()[1] for line in logs.records], ["1", "4"])

    async def close(self, client: Any, service: Service) -> None:
        await awaited(client.decide({"user": "alice"}))
        service.arrived.acquire()
        service.answers["Decide"] = None

        def decide() -> Any:
            if isinstance(client, AsyncClient):
                return asyncio.ensure_future(client.decide({"user": "alice"}))
            return asyncio.ensure_future(asyncio.to_thread(client.decide, {"user": "alice"}))

        calls = [decide() for _ in range(4)]
        for _ in calls:
            await asyncio.to_thread(service.arrived.acquire)
        await awaited(client.close())
        # The line was there before the calls were awaited.
        for decision in await asyncio.gather(*calls):
            self.assertEqual(decision.error.code, "CANCELLED")
