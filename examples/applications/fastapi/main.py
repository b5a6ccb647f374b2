"""A shop that limits guesses of passwords, and the reports of each user."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Form, HTTPException, Request
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from tollkeeper import AsyncClient
from tollkeeper.fastapi import rate_limit

# These stand for your accounts, which have hashes in place of passwords and keys.
PASSWORDS = {"alice": "correct-horse"}
KEYS = {"key-of-alice": "alice"}


def user_to_log_in(user: Annotated[str, Form()]) -> str:
    if len(user.encode()) > 100:
        raise HTTPException(400, "user: must be at most 100 bytes")
    return user


def by_user_and_address(request: Request, user: Annotated[str, Depends(user_to_log_in)]) -> list[dict[str, str]]:
    assert request.client, "uvicorn listens on TCP"
    return [{"route": "/login", "user": user}, {"route": "/login", "address": request.client.host}]


def authenticated(key: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    if key.credentials not in KEYS:
        raise HTTPException(401)
    return KEYS[key.credentials]


def by_user(user: Annotated[str, Depends(authenticated)]) -> dict[str, str]:
    return {"user": user}


def make_app(limits: AsyncClient) -> FastAPI:
    @asynccontextmanager
    async def connected(_app: FastAPI) -> AsyncIterator[None]:
        limits.connect()
        async with limits:
            yield

    app = FastAPI(lifespan=connected, default_response_class=PlainTextResponse)
    # Without an answer, nobody may guess passwords, and reports stay available.
    login_limits = limits.using(on_failure="deny")

    @app.post("/login", dependencies=[Depends(rate_limit(login_limits, by_user_and_address))])
    async def login(user: Annotated[str, Depends(user_to_log_in)], password: Annotated[str, Form()]) -> str:
        if PASSWORDS.get(user) != password:
            raise HTTPException(401, "wrong user or password")
        return "welcome\n"

    @app.get("/reports", dependencies=[Depends(rate_limit(limits, by_user))])
    async def reports(user: Annotated[str, Depends(authenticated)]) -> str:
        return f"reports of {user}\n"

    @app.get("/healthz")
    async def healthz() -> str:
        return "ok\n"

    return app


if __name__ == "__main__":
    # A busy laptop may need longer than the default of 50 ms.
    limits = AsyncClient(os.environ.get("TOLLKEEPER", "localhost:8081"), "shop", timeout=1.0)
    # By default, uvicorn lets every caller on this machine choose its address.
    proxies = os.environ.get("FORWARDED_ALLOW_IPS", "")
    uvicorn.run(make_app(limits), port=int(os.environ.get("PORT", "8000")), forwarded_allow_ips=proxies)
