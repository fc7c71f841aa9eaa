"""Pytest fixtures for a real Kafka broker.

Pytest loads this file in every run of everybody who has Cardinal installed, so it imports nothing of ours (and nothing
that is not there anyway) before a fixture is asked for.

``CARDINAL_TEST_BROKER=host:port`` names a broker that runs already; tests then share it, and tests that kill or pause a
broker are skipped. ``CARDINAL_TEST_BROKER=docker`` takes brokers in containers, through testcontainers; where no engine
answers, tests that need a broker are skipped with that reason.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal.embedded import EmbeddedKafka
    from cardinal.testing.containers import ContainerKafka

BROKER_VARIABLE = "CARDINAL_TEST_BROKER"
DOCKER = "docker"


class ExternalBroker:
    """The broker that ``CARDINAL_TEST_BROKER`` names: it can be used, and what would harm it skips the test."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def client_config(self) -> dict[str, str]:
        """What a confluent-kafka client needs to connect."""
        return {"bootstrap.servers": self.bootstrap}

    def kill(self) -> NoReturn:
        """Skips the test."""
        _skip()

    def start(self) -> NoReturn:
        """Skips the test."""
        _skip()

    def stop(self) -> NoReturn:
        """Skips the test."""
        _skip()

    def pause(self) -> NoReturn:
        """Skips the test."""
        _skip()

    def resume(self) -> NoReturn:
        """Skips the test."""
        _skip()


def _skip() -> NoReturn:
    pytest.skip(f"needs a broker of its own, and {BROKER_VARIABLE} names one that is not ours to stop")


def _in_container() -> ContainerKafka:
    from cardinal.testing.containers import ContainerKafka, why_not  # noqa: PLC0415 - pytest loads this file in every run

    if reason := why_not():
        pytest.skip(f"{BROKER_VARIABLE}={DOCKER}, and {reason}")
    return ContainerKafka()


@pytest.fixture(scope="session")
def cardinal_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EmbeddedKafka | ExternalBroker | ContainerKafka]:
    """A Kafka broker for the whole run: embedded, in a container, or the one that ``CARDINAL_TEST_BROKER`` names.

    ``.bootstrap`` and ``.client_config()`` lead clients to it. Take topic names that are your test's own. Whoever kills
    or pauses a broker takes ``cardinal_killable_broker``.
    """
    named = os.environ.get(BROKER_VARIABLE)
    if named == DOCKER:
        with _in_container() as container:
            yield container
        return
    if named:
        yield ExternalBroker(named)
        return
    from cardinal.embedded import EmbeddedKafka  # noqa: PLC0415 - pytest loads this file in every run

    with EmbeddedKafka(tmp_path_factory.mktemp("cardinal-broker")) as broker:
        yield broker


@pytest.fixture
def cardinal_killable_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka | ContainerKafka]:
    """A broker on data of its own, for one test that kills, pauses or stops it; started when handed over."""
    named = os.environ.get(BROKER_VARIABLE)
    if named == DOCKER:
        with _in_container() as container:
            yield container
        return
    if named:
        _skip()
    from cardinal.embedded import EmbeddedKafka  # noqa: PLC0415 - pytest loads this file in every run

    broker = EmbeddedKafka(tmp_path_factory.mktemp("cardinal-killable-broker"))
    with broker:
        yield broker
