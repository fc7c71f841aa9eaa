"""Who was first with a block is forgotten in time, whatever is sent."""

from __future__ import annotations

from itertools import count

import pytest

from cardinal.protocols.streams.publishing import standby
from cardinal.protocols.streams.publishing.standby import Peers


def test_of_ever_more_blocks_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "REMEMBERED", 10)
    monkeypatch.setattr(standby, "_NAMES", 5)
    peers = Peers(1_000.0)
    for at in range(500):
        producer = f"producer {at}"
        peers.heard(producer, at)
        peers.batch(at.to_bytes(32, "big"), producer)
    peers.batch((499).to_bytes(32, "big"), "another")
    assert len(peers._seen) == 10
    assert len(peers._first) == 5
    ours = peers.count("producer 0")
    assert len(ours.first) == 5
    assert sum(ours.first.values()) == 5
    for at, silent in zip(count(10_000), range(500), strict=False):
        peers.heard(f"later {silent}", at)
    assert len(peers._last) <= 2 * len(peers.live()) + 65
