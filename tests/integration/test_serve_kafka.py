"""`cardinal serve` as a process, from a real Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from commands import Processes, fresh_chain_id
from test_serve_breaks import _free_port, _line, _listens, _publish

from cardinal import apps
from cardinal.consumer import Consumer
from serving import until

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal.embedded import EmbeddedKafka
    from cardinal.protocols.streams import ChainUpdate

pytestmark = pytest.mark.broker

DEADLINE = 60.0


def _to(url: str, app: Application, last: int, start: str = "earliest") -> list[ChainUpdate]:
    updates: list[ChainUpdate] = []
    with Consumer(url, app, start=start, idle_timeout=DEADLINE) as consumer:
        for update in consumer:
            updates.append(update)
            if update.added[-1].number >= last:
                break
    return updates


def test_a_served_stream_equals_kafkas_and_survives_its_restart(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    app = apps.get("evm", chain_id=fresh_chain_id())
    kafka = f"kafka://{cardinal_killable_broker.bootstrap}"
    _publish(kafka, app, _line(app, 1, 40))
    port = _free_port()
    url = f"ws://127.0.0.1:{port}"
    with Processes(tmp_path) as processes:
        processes.start("serve", "--from", kafka, "--listen", f"127.0.0.1:{port}")
        until(lambda: _listens(port), DEADLINE)
        served, direct = _to(url, app, 40), _to(kafka, app, 40)
        blocks = [[block for update in updates for block in update.added] for updates in (served, direct)]
        assert blocks[0] == blocks[1]
        with Consumer(url, "evm", start=str(direct[-1].cursor), idle_timeout=DEADLINE) as consumer:
            updates = iter(consumer)
            _publish(kafka, app, _line(app, 41, 50))
            before = [next(updates)]
            while before[-1].added[-1].number < 50:
                before.append(next(updates))
            cardinal_killable_broker.kill()
            cardinal_killable_broker.start()
            _publish(kafka, app, _line(app, 51, 70))
            while before[-1].added[-1].number < 70:
                before.append(next(updates))
        assert before[0].first_seq == direct[-1].seq + 1
        assert [block.number for update in before for block in update.added] == list(range(41, 71))
        rest = _to(kafka, app, 70, start=str(served[-1].cursor))
        assert [block.number for update in rest for block in update.added] == list(range(41, 71))
