"""Passwords that are changed at the broker and in their files while producers and consumers run."""

from __future__ import annotations

import time
from functools import partial
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
from cardinal.errors import RefusedError
from cardinal.producer import Producer
from cardinal.transports import list_topics
from secured_brokers import DEADLINE, EVERYTHING, SecuredBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cardinal.protocols.streams import ChainUpdate

pytestmark = pytest.mark.broker

USER = "carol"
CHAIN = a_chain(" ".join(f"{number}a" for number in range(1, 4)))


def _set_password(at: SecuredBroker, password: str) -> None:
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
def at(secured_broker: Callable[[str], SecuredBroker]) -> SecuredBroker:
    at = secured_broker("login")
    at.permit(USER, *EVERYTHING, (ResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL))
    return at


def _url(at: SecuredBroker, file: Path | None = None, **options: str) -> str:
    named = {"password_file": str(file)} if file else {}
    return at.url(sasl__username=USER, sasl__mechanism="SCRAM-SHA-256", **named, **options)


def _until(updates: Iterator[ChainUpdate], number: int) -> list[int]:
    found: list[int] = []
    while not found or found[-1] < number:
        found += [block.number for block in next(updates).added]
    return found


@pytest.mark.slow
def test_a_password_that_changed_is_a_refusal_until_a_restart_reads_its_file(at: SecuredBroker, tmp_path: Path) -> None:
    """A client keeps the password that it was opened with: a refusal is one sentence, and a restart is the remedy."""
    app, file = small_stream(), tmp_path / "password"
    file.write_text("first-s3cr3t\n")
    _set_password(at, "first-s3cr3t")
    url = _url(at, file)
    with Producer(url, app, producer_id="one") as producer, Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        updates = iter(consumer)
        producer.add(CHAIN[0]).result(DEADLINE)
        cursor = next(updates).cursor
        _set_password(at, "second-s3cr3t")
        file.write_text("second-s3cr3t")
        at.proxy.reset()
        late = producer.add(CHAIN[1])
        for refused in (partial(late.result, DEADLINE), partial(next, updates)):
            with pytest.raises(RefusedError, match=r"refused the login.*check user, password and mechanism"):
                refused()
        shown = repr(vars(producer)) + repr(vars(consumer))
        assert "s3cr3t" not in shown
    with Producer(url, app, producer_id="one") as producer:
        for payload in CHAIN[1:3]:
            producer.add(payload).result(DEADLINE)
    with Consumer(url, app, start=cursor, idle_timeout=DEADLINE) as consumer:
        assert _until(iter(consumer), 3) == [2, 3]


def test_a_password_that_changed_at_the_broker_alone_is_refused_at_the_start(at: SecuredBroker, tmp_path: Path) -> None:
    app, file = small_stream(), tmp_path / "password"
    file.write_text("old-s3cr3t")
    _set_password(at, "new-s3cr3t")
    for opened in (partial(Consumer, _url(at, file), app), partial(Producer, _url(at, file), app, producer_id="one")):
        with pytest.raises(RefusedError, match=r"refused the login.*check user, password and mechanism") as caught:
            opened()
        assert "s3cr3t" not in str(caught.value)
