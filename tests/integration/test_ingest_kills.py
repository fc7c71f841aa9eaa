"""Kills of publishers, ingest node and broker: what was acknowledged is on the topics in the end, each block once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killing import PUBLISHERS, killed

if TYPE_CHECKING:
    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker
PROCESSES = ("node", PUBLISHERS[0], "node", PUBLISHERS[1])


@pytest.mark.parametrize("app", ["blob", pytest.param("items", marks=pytest.mark.slow)])
def test_publishers_and_node_are_killed(app: str, cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    killed(app, cardinal_broker, tmp_path, [*PROCESSES[:3]], 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_publishers_node_and_broker_are_killed_at_30_points(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    killed("blob", cardinal_killable_broker, tmp_path, [*PROCESSES, "broker"] * 6, 2)


@pytest.mark.soak
@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("seed", range(10, 20))
def test_publishers_node_and_broker_are_killed_at_1000_points(
    seed: int, cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    killed("blob", cardinal_killable_broker, tmp_path, [*PROCESSES, "broker"] * 20, seed)
