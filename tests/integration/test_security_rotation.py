"""Passwords that are changed at the broker and in their files while producers and consumers run."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AclOperation,
    AdminClient,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka_streams import a_chain, small_stream

from cardinal.consumer import Consumer
from cardinal.errors import LocalProtocolError, RefusedError
from cardinal.producer import Producer
from cardinal.transports import list_topics
from cardinal.transports.kafka.login import Login
from guarded import DEADLINE, EVERYTHING, Guarded, folder, guarded, papers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cardinal.protocols.streams import ChainUpdate

__all__ = ["folder", "guarded", "papers"]

pytestmark = pytest.mark.broker

USER = "carol"
CHAIN = a_chain(" ".join(f"{number}a" for number in range(1, 31)))
SOON = 20.0


def _give(at: Guarded, password: str) -> None:
    """Make the user's password this one, as an administrator does; it counts from now on."""
    admin = AdminClient(at.broker.admin_config())
    wanted = UserScramCredentialUpsertion(
        USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), password.encode()
    )
    for done in admin.alter_user_scram_credentials([wanted]).values():
        done.result(DEADLINE)
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            list_topics(_url(at, sasl__password=password))
        except RefusedError:  # the controller has it; the broker has not yet
            assert time.monotonic() < deadline
        else:
            return


@pytest.fixture
def at(guarded: Callable[[str], Guarded]) -> Guarded:
    at = guarded("login")
    at.permit(USER, *EVERYTHING, (ResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL))
    return at


def _url(at: Guarded, file: Path | None = None, **options: str) -> str:
    named = {"password_file": str(file)} if file else {}
    return at.url(sasl__username=USER, sasl__mechanism="SCRAM-SHA-256", **named, **options)


def _until(updates: Iterator[ChainUpdate], number: int) -> list[int]:
    found: list[int] = []
    while not found or found[-1] < number:
        found += [block.number for block in next(updates).added]
    return found


def test_a_changed_password_file_is_read_when_the_broker_refuses_the_old_one(at: Guarded, tmp_path: Path) -> None:
    """Producer and consumer stay open over two changes, each with every connection broken after it."""
    app, file = small_stream(), tmp_path / "password"
    file.write_text("first-s3cr3t\n")
    _give(at, "first-s3cr3t")
    url = _url(at, file)
    with Producer(url, app, producer_id="one") as producer, Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        updates = iter(consumer)
        found: list[int] = []
        for turn, password in enumerate(("first-s3cr3t", "second-s3cr3t", "third-s3cr3t")):
            if turn:
                _give(at, password)
                file.write_text(password)
                at.proxy.reset()
            begun = time.monotonic()
            for future in [producer.add(payload) for payload in CHAIN[10 * turn : 10 * turn + 10]]:
                future.result(DEADLINE)
            found += _until(updates, 10 * turn + 10)
            assert time.monotonic() - begun < SOON
        shown = repr(vars(producer)) + repr(vars(consumer))
    assert found == list(range(1, 31))
    assert "s3cr3t" not in shown


def test_the_broker_may_have_a_new_password_a_moment_before_the_file_has_it(
    at: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clients are refused while the file holds the old one; nobody else hears of it."""
    app, file, noticed = small_stream(), tmp_path / "password", threading.Semaphore(0)
    refused = Login.refused

    def watched(self: Login, *calls: Callable[[], None]) -> None:
        refused(self, *calls)
        noticed.release()

    monkeypatch.setattr(Login, "refused", watched)
    file.write_text("tenth-s3cr3t")
    _give(at, "tenth-s3cr3t")
    url = _url(at, file)
    with (
        Producer(url, app, producer_id="one") as producer,
        Consumer(url, app, idle_timeout=DEADLINE) as consumer,
        ThreadPoolExecutor(1) as reader,
    ):
        updates = iter(consumer)
        producer.add(CHAIN[0]).result(DEADLINE)
        assert _until(updates, 1) == [1]
        read = reader.submit(_until, updates, 2)  # a consumer hears of a refusal while it is polled
        _give(at, "eleventh-s3cr3t")
        at.proxy.reset()
        late = producer.add(CHAIN[1])
        assert noticed.acquire(timeout=DEADLINE)
        for _ in range(2):  # as long as it takes to be refused
            with pytest.raises(RefusedError):
                list_topics(_url(at, file))
        assert not late.done()
        file.write_text("eleventh-s3cr3t")
        late.result(DEADLINE)
        assert read.result(DEADLINE) == [2]


def test_transactions_go_on_over_a_changed_password_file(at: Guarded, tmp_path: Path) -> None:
    app, file = small_stream(), tmp_path / "password"
    file.write_text("fourth-s3cr3t")
    _give(at, "fourth-s3cr3t")
    with Producer(_url(at, file, transactional="update"), app, producer_id=app.default_topic) as producer:
        producer.add(CHAIN[0]).result(DEADLINE)
        _give(at, "fifth-s3cr3t")
        file.write_text("fifth-s3cr3t")
        at.proxy.reset()
        producer.add(CHAIN[1]).result(DEADLINE)
    with Consumer(_url(at, file), app, idle_timeout=DEADLINE) as consumer:
        assert _until(iter(consumer), 2) == [1, 2]


@pytest.mark.slow
def test_a_producer_whose_password_stopped_counting_says_so_soon_and_goes_on_when_it_counts_again(
    at: Guarded, tmp_path: Path
) -> None:
    app, file = small_stream(), tmp_path / "password"
    file.write_text("eighth-s3cr3t")
    _give(at, "eighth-s3cr3t")
    with Producer(_url(at, file), app, producer_id="one") as producer:
        producer.add(CHAIN[0]).result(DEADLINE)
        _give(at, "ninth-s3cr3t")
        at.proxy.reset()
        begun = time.monotonic()
        late = [producer.add(payload) for payload in CHAIN[1:4]]
        for future in late[:1]:
            with pytest.raises(RefusedError, match=r"refused the login.*check user, password and mechanism"):
                future.result(DEADLINE)
        assert time.monotonic() - begun < SOON
        _give(at, "eighth-s3cr3t")
        deadline = time.monotonic() + 2 * DEADLINE
        for payload in CHAIN[1:4]:
            while True:
                with contextlib.suppress(RefusedError, LocalProtocolError):
                    producer.add(payload).result(DEADLINE)
                    break
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_a_password_that_was_changed_at_the_broker_alone_is_refused_as_ever(at: Guarded, tmp_path: Path) -> None:
    app, file = small_stream(), tmp_path / "password"
    file.write_text("sixth-s3cr3t")
    _give(at, "sixth-s3cr3t")
    url = _url(at, file)
    with Producer(url, app, producer_id="one") as producer:
        producer.add(CHAIN[0]).result(DEADLINE)
    with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        updates = iter(consumer)
        assert _until(updates, 1) == [1]
        _give(at, "seventh-s3cr3t")
        at.proxy.reset()
        begun = time.monotonic()
        with pytest.raises(RefusedError, match=r"refused the login.*check user, password and mechanism"):
            next(updates)
        assert time.monotonic() - begun < SOON
    with pytest.raises(RefusedError, match="refused the login"):
        Consumer(url, app)
