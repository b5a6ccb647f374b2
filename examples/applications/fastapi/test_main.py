"""The shop with a fake in place of the service."""

import pytest
from fastapi.testclient import TestClient
from tollkeeper.testing import Fake

from main import make_app

ALICE = {"user": "alice", "password": "correct-horse"}
KEY = {"Authorization": "Bearer key-of-alice"}


@pytest.fixture
def limits() -> Fake:
    return Fake()


@pytest.fixture
def shop(limits: Fake) -> TestClient:
    return TestClient(make_app(limits.async_client("shop")))


def test_the_sixth_guess_is_denied_and_so_is_the_right_password_then(limits: Fake, shop: TestClient) -> None:
    limits.limit({"route": "/login", "user": "alice"}, 5)
    guesses = [shop.post("/login", data=ALICE | {"password": "guess"}).status_code for _ in range(6)]
    assert guesses == [401, 401, 401, 401, 401, 429]
    assert shop.post("/login", data=ALICE).headers["retry-after"] == "60"


def test_without_an_answer_logins_are_denied_and_reports_pass(limits: Fake, shop: TestClient) -> None:
    limits.fail()
    assert shop.post("/login", data=ALICE).status_code == 503
    assert shop.get("/reports", headers=KEY).status_code == 200


def test_strangers_and_endless_names_are_not_decided(limits: Fake, shop: TestClient) -> None:
    assert shop.get("/reports").status_code == 401
    assert shop.get("/reports", headers={"Authorization": "Bearer alice"}).status_code == 401
    assert shop.post("/login", data=ALICE | {"user": "é" * 51}).status_code == 400
    assert limits.calls == []
    assert shop.post("/login", data=ALICE).text == "welcome\n"
