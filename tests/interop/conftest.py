"""The Go program and a broker for it; tests are skipped with the reason where either cannot be had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from go_program import BROKER_RELEASE, Go, GoUnavailableError, kafka, program

from cardinal_devkit.testing.pytest_plugin import BROKER_VARIABLE, DOCKER


@pytest.fixture(scope="session")
def go_program() -> Path:
    try:
        return program()
    except GoUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def go_broker(
    request: pytest.FixtureRequest, go_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """``host:port`` of the broker that is named, which then has to be old enough, else of one of our own."""
    del go_program  # without it no broker is fetched or started
    named = os.environ.get(BROKER_VARIABLE)
    if named == DOCKER:
        pytest.skip(f"the container's Kafka is newer than {BROKER_RELEASE}, and the Go client cannot talk to it")
    if named:
        yield request.getfixturevalue("cardinal_broker").bootstrap
        return
    with kafka(tmp_path_factory.mktemp("interop-broker")) as broker:
        yield broker.bootstrap


@pytest.fixture
def go(go_program: Path, go_broker: str, tmp_path: Path) -> Go:
    return Go(go_program, go_broker, tmp_path)
