"""The lines of a producer's progress: often while it fetches a backlog, a line a minute at the head."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from cardinal.cli import produce as module
from cardinal.producing.inflight import ProducerStats


@dataclass(eq=False)
class Fetching:
    """A service, and its task: 0.2 s pass at each look, in 10 s it has 1,000 blocks, and then one every 2 s."""

    ends: float
    looks: int = 0

    def done(self) -> bool:
        return self.now >= self.ends

    @property
    def now(self) -> float:
        return 0.2 * self.looks

    @property
    def progress(self) -> Any:  # noqa: ANN401 - as much of a snapshot as is reported
        number = int(min(1_000, 100 * self.now) + max(0, self.now - 10) / 2)
        target = max(number, 1_000)
        stats = ProducerStats(number, 0, 0, 0, 0, 0, 0)
        return SimpleNamespace(number=number, target=target, head=target, lag=target - number, stats=stats, reorgs=0)


def test_the_head_is_a_line_when_it_is_reached_and_then_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cardinal.produce")
    service = Fetching(ends=490.0)

    async def look(_tasks: object, **_: object) -> None:
        service.looks += 1

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: service.now))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(wait=look))
    bar: Any = SimpleNamespace(report=lambda *_: None, drawn=False, last=None)
    asyncio.run(module._reported(service, service, bar))  # type: ignore[arg-type] # as much as it reads
    numbers = [int(text.split()[1].rstrip(",")) for text in caplog.messages]
    assert numbers[:5] == [200, 400, 600, 800, 1_000]
    assert 7 <= len(numbers[5:]) <= 8, "480 s at the head"
    assert caplog.messages[-1].split(": ")[1].startswith("0.5 blocks/s"), "of the minute"
