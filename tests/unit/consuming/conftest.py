"""The broker of these tests: two partitions a topic, or as many as a file's PARTITIONS or a test's parameter says."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cardinal_devkit.testing.memory import MemoryBroker


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[MemoryBroker]:
    partitions = getattr(request, "param", None) or getattr(request.module, "PARTITIONS", 2)
    with MemoryBroker(uuid.uuid4().hex, partitions=partitions) as broker:
        yield broker
