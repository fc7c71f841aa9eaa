"""A login that the broker refuses: looked into before anybody is told, and withdrawn when it holds no longer."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError

from blocks import DEADLINE
from cardinal.errors import RefusedError, UnreachableError
from cardinal.transports import parse_url
from cardinal.transports.kafka import login
from cardinal.transports.kafka.errors import Reasons
from cardinal.transports.kafka.login import Login
from cardinal.transports.kafka.settings import KafkaSettings, kafka_settings
from cardinal.transports.secrets import with_secrets

if TYPE_CHECKING:
    from pathlib import Path

REFUSED = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED)


class _Broker:
    """Takes one password, or does not answer; what it was shown."""

    def __init__(self, password: str | None) -> None:
        self.password = password
        self.shown: list[str] = []

    def __call__(self, settings: KafkaSettings) -> None:
        self.shown.append(settings.properties["sasl.password"])
        if self.password is None:
            raise UnreachableError("nobody there", address="127.0.0.1:1")
        if self.shown[-1] != self.password:
            raise RefusedError("wrong")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_AGAIN_SECONDS", 0.01)


def _reasons(tmp_path: Path, broker: _Broker) -> Reasons:
    (tmp_path / "password").write_text("old")
    url = f"kafka://alice@127.0.0.1:1?tls=1&sasl.mechanism=SCRAM-SHA-256&password_file={tmp_path}/password"
    return Reasons("127.0.0.1:1", login=Login(kafka_settings(with_secrets(parse_url(url))), broker))


def _look(reasons: Reasons) -> None:
    """A client tells of a refusal, and it is looked into."""
    reasons(REFUSED)
    deadline = time.monotonic() + DEADLINE
    while any(thread.name == "cardinal-kafka-login" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_wrong_password_at_the_start_is_told_at_once(tmp_path: Path) -> None:
    reasons = _reasons(tmp_path, broker := _Broker("other"))
    _look(reasons)
    assert isinstance(reasons.refusal(), RefusedError)
    assert broker.shown == ["old"]


def test_once_taken_it_is_told_after_a_while_and_withdrawn_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "GRACE_SECONDS", 0.2)
    reasons = _reasons(tmp_path, broker := _Broker("new"))
    reasons.forget()
    begun = time.monotonic()
    _look(reasons)
    assert isinstance(reasons.refusal(), RefusedError)
    assert len(broker.shown) > 1
    assert time.monotonic() - begun >= 0.2
    (tmp_path / "password").write_text("new")
    _look(reasons)
    assert reasons.refusal() is None
    assert broker.shown[-1] == "new"


def test_a_file_that_is_changed_meanwhile_is_no_refusal(tmp_path: Path) -> None:
    class Late(_Broker):
        def __call__(self, settings: KafkaSettings) -> None:
            if len(self.shown) == 3:
                (tmp_path / "password").write_text("new")
            super().__call__(settings)

    reasons = _reasons(tmp_path, broker := Late("new"))
    reasons.forget()
    _look(reasons)
    assert reasons.refusal() is None
    assert broker.shown == ["old"] * 4 + ["new"]


def test_where_no_broker_answers_nothing_is_known(tmp_path: Path) -> None:
    reasons = _reasons(tmp_path, broker := _Broker("other"))
    _look(reasons)
    broker.password = None
    _look(reasons)
    assert isinstance(reasons.refusal(), RefusedError), "what was told stands"
    reasons = _reasons(tmp_path, broker)
    _look(reasons)
    assert reasons.refusal() is None
