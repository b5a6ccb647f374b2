"""Limits of single routes of FastAPI, as dependencies and as decorators."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Response
from fastapi.concurrency import run_in_threadpool

from tollkeeper.aio import AsyncClient
from tollkeeper.decision import Decision
from tollkeeper.middleware import MISTAKE, denial_of


class DeniedError(HTTPException):
    """429, or 503 if `on_failure` denied. Handle it with `app.exception_handler` for a response of your own."""

    def __init__(self, decision: Decision) -> None:
        status = denial_of(decision)
        super().__init__(status.value, status.phrase, decision.headers)
        self.decision = decision


def rate_limit(client: AsyncClient, descriptors: Callable[..., Any]) -> Callable[..., Awaitable[Decision | None]]:
    """A dependency that decides each request: `dependencies=[Depends(rate_limit(client, descriptors))]`.

    `descriptors` is a dependency too, which returns what to limit, or None. Name a route in it by a text
    of your own, since FastAPI's template may lack the prefixes of routers. A handler that returns a Response of its own
    adds the headers itself.
    """

    async def decide(response: Response, found: Any = Depends(descriptors)) -> Decision | None:
        if found is None:
            return None
        try:
            decision = await client.decide(found)
        except Exception:
            client._log.mistake(MISTAKE)
            raise HTTPException(HTTPStatus.INTERNAL_SERVER_ERROR) from None
        if not decision.allowed:
            raise DeniedError(decision)
        response.headers.update(decision.headers)
        return decision

    return decide


def rate_limited(
    client: AsyncClient, descriptors: Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
    """`rate_limit` as a decorator, between the one of the route and its handler."""
    limit = Annotated[Any, Depends(rate_limit(client, descriptors))]

    def decorate(handler: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        # Some versions of FastAPI look for the names of annotations that are text in this module.
        signature = inspect.signature(handler, eval_str=True)
        # Another decorator of a limit, which the handler may have, adds a parameter too.
        name = f"_decision{len(signature.parameters)}"

        @functools.wraps(handler)
        async def limited(**arguments: Any) -> Any:
            del arguments[name]
            if inspect.iscoroutinefunction(handler):
                return await handler(**arguments)
            return await run_in_threadpool(handler, **arguments)

        decision = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=limit)
        parameters = [*signature.parameters.values(), decision]
        limited.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return limited

    return decorate
