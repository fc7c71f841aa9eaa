from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cardinal.protocols.streams.types import Record
from cardinal.server.serving.counts import Counts
from cardinal.server.serving.ring import Found
from cardinal.server.serving.sending import Sender, TooSlowError
from cardinal.server.serving.taking import Plan, Taking
from cardinal.transports.websocket.chunks import encode_chunks

WHERE = ("t", 0)
SLOW_SECONDS = 60.0


class Socket:
    """One whose client takes long for what it is sent."""

    def __init__(self, taking: Taking) -> None:
        self._taking = taking

    async def send(self, frame: bytes) -> None:
        assert frame
        self._taking.took = time.monotonic() - 2 * SLOW_SECONDS


def test_a_client_that_took_a_large_frame_slowly_has_as_long_as_any_to_ask_for_more() -> None:
    chunk = encode_chunks([Record(*WHERE, 0, b"k", bytes(1_000))], {}, {})[0]
    # It has fallen out of the ring, too.
    ring = SimpleNamespace(after=lambda *_: Found((chunk,), 1), holds=lambda *_: False, ends=dict)
    stream: Any = SimpleNamespace(ring=ring)
    taking = Taking(lambda: 0)
    taking.credit = 1
    taking.positions[WHERE] = 0
    taking.plan = Plan(1, frozenset({WHERE}))
    nothing: Any = None
    sender = Sender(Socket(taking), taking, nothing, nothing, Counts(), slow_seconds=SLOW_SECONDS)

    async def send() -> None:
        await sender._go_on(stream, taking.plan)
        assert taking.credit < 0
        await sender._wait_for_credit(stream)
        taking.took = time.monotonic() - 2 * SLOW_SECONDS
        with pytest.raises(TooSlowError):
            await sender._wait_for_credit(stream)

    asyncio.run(send())
