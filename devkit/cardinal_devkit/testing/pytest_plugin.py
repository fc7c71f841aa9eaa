"""Pytest fixtures: a real Kafka broker, chains with forks, and the fault kit for a handler.

Pytest loads this file in every run where Cardinal is installed, so it imports nothing of Cardinal and no dependency
before a fixture is requested.

The processes of `pytest -n N` share one broker, which ends with the last of them.

``CARDINAL_TEST_BROKER=host:port`` names an existing broker; tests then share it, and tests that kill or pause a broker
are skipped. ``CARDINAL_TEST_BROKER=docker`` runs brokers in containers, through testcontainers; without an engine,
tests that need a broker are skipped with that reason.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cardinal_devkit.faultkit import Chain, ComparedHandler
    from cardinal_devkit.kafka import EmbeddedKafka
    from cardinal_devkit.testing.containers import ContainerKafka

BROKER_VARIABLE = "CARDINAL_TEST_BROKER"
DOCKER = "docker"


class ExternalBroker:
    """The broker that ``CARDINAL_TEST_BROKER`` names. Calls that would disturb other users skip the test."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def client_config(self) -> dict[str, str]:
        """Settings of a confluent-kafka client."""
        return {"bootstrap.servers": self.bootstrap}

    def kill(self) -> NoReturn:
        """Skip the test."""
        _skip()

    start = stop = pause = resume = kill


def _skip() -> NoReturn:
    pytest.skip(f"needs a broker of its own, and {BROKER_VARIABLE} names one that is not ours to stop")


def _in_container() -> ContainerKafka:
    from cardinal_devkit.testing.containers import ContainerKafka, why_not  # noqa: PLC0415 - pytest loads this file in every run

    if reason := why_not():
        pytest.skip(f"{BROKER_VARIABLE}={DOCKER}, and {reason}")
    return ContainerKafka()


@pytest.fixture(scope="session")
def cardinal_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EmbeddedKafka | ExternalBroker | ContainerKafka]:
    """A Kafka broker for the whole run: embedded, in a container, or the one that ``CARDINAL_TEST_BROKER`` names.

    Clients connect with ``.bootstrap`` or ``.client_config()``. Use unique topic names per test. To kill or pause a
    broker, use ``cardinal_killable_broker``.
    """
    named = os.environ.get(BROKER_VARIABLE)
    if named == DOCKER:
        with _in_container() as container:
            yield container
        return
    if named:
        yield ExternalBroker(named)
        return
    from cardinal_devkit.testing.shared_broker import PROPERTIES, shared_broker  # noqa: PLC0415 - pytest loads this file in every run

    if "PYTEST_XDIST_WORKER" in os.environ:
        # The parent of this worker's folder belongs to the whole run.
        with shared_broker(tmp_path_factory.getbasetemp().parent / "cardinal-broker") as shared:
            yield shared
        return
    from cardinal_devkit.kafka import EmbeddedKafka  # noqa: PLC0415 - pytest loads this file in every run

    with EmbeddedKafka(tmp_path_factory.mktemp("cardinal-broker"), properties=PROPERTIES) as broker:
        yield broker


@pytest.fixture
def cardinal_killable_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka | ContainerKafka]:
    """A started broker on data of its own, for one test that kills, pauses or stops it."""
    named = os.environ.get(BROKER_VARIABLE)
    if named == DOCKER:
        with _in_container() as container:
            yield container
        return
    if named:
        _skip()
    from cardinal_devkit.kafka import EmbeddedKafka  # noqa: PLC0415 - pytest loads this file in every run

    broker = EmbeddedKafka(tmp_path_factory.mktemp("cardinal-killable-broker"))
    with broker:
        yield broker


@pytest.fixture
def cardinal_chain() -> Callable[..., Chain]:
    """Factory of seeded chains with forks: ``cardinal_chain(seed=7, blocks=12, app="evm")``.

    ``.payloads`` has the blocks by name, ``.updates()`` the ChainUpdates that a consumer yields; see
    :class:`cardinal_devkit.faultkit.Chain`. No broker is needed.
    """
    from cardinal_devkit.faultkit import Chain  # noqa: PLC0415 - pytest loads this file in every run

    return Chain


@pytest.fixture
def cardinal_faults() -> Callable[..., None]:
    """Run of the fault kit: ``cardinal_faults(Balances, app="evm", seeds=10)``; fails the test with a report.

    The handler is a class or function at the top of a module, or its name; keyword arguments are those of
    :class:`cardinal_devkit.faultkit.Settings`, and ``script`` to repeat one run.
    """
    from cardinal_devkit.faultkit import Settings, find_failure  # noqa: PLC0415 - pytest loads this file in every run

    def run(
        handler: str | Callable[[Path], ComparedHandler],
        *,
        script: str | None = None,
        **settings: Any,  # noqa: ANN401 - the fields of Settings
    ) -> None:
        if failure := find_failure(handler, Settings(**settings), script=script):
            pytest.fail(failure.story, pytrace=False)

    return run
