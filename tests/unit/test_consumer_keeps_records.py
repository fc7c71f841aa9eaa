"""What was read is followed, though a question that comes before that fails."""

from __future__ import annotations

import uuid

import pytest

from blocks import DEADLINE, Blocks, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.consuming.reader import Reader
from cardinal.errors import RefusedError
from cardinal.testing.memory import MemoryBroker

EVERYTHING = [f"+{number}a" for number in range(1, 31)]


@pytest.mark.parametrize("call", ["answered_ends", "positions", "follow"])
def test_nothing_is_lost_where_a_step_fails_after_it_has_read(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The first blocks are read; the rights are being changed just then, and the application iterates on."""
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, line(1, 30))
        with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as consumer:
            polled = []
            poll, asked = Reader.poll_now, getattr(Reader, call)

            def poll_now(reader: Reader) -> object:
                polled.append(poll(reader))
                return polled[-1]

            def ask(reader: Reader, *args: object) -> object:
                if polled and polled[-1]:
                    monkeypatch.undo()
                    raise RefusedError("the rights are being changed")
                return asked(reader, *args)

            monkeypatch.setattr(Reader, "poll_now", poll_now)
            monkeypatch.setattr(Reader, call, ask)
            with pytest.raises(RefusedError):
                until(consumer, "30a")
            assert steps(until(consumer, "30a")) == EVERYTHING
