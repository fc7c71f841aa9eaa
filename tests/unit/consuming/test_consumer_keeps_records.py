"""What was read is followed, though a request that comes before or after that fails."""

from __future__ import annotations

import uuid

import pytest

from blocks import DEADLINE, Blocks, line, publish, steps, until
from cardinal.consumer import Consumer
from cardinal.consuming.channels import Channels
from cardinal.consuming.reader import Reader
from cardinal.errors import RefusedError
from cardinal.testing.memory import MemoryBroker

EVERYTHING = [f"+{number}a" for number in range(1, 31)]


@pytest.mark.parametrize(("owner", "call"), [(Reader, "answered_ends"), (Channels, "follow")])
def test_nothing_is_lost_where_a_step_fails_after_it_has_read(
    monkeypatch: pytest.MonkeyPatch, owner: type, call: str
) -> None:
    """The first blocks are read; the rights are being changed just then, and the application iterates on."""
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        publish(broker, line(1, 30))
        with Consumer(broker.url, Blocks(), idle_timeout=DEADLINE) as consumer:
            polled = []
            poll, asked = Reader.poll, getattr(owner, call)

            def noted(reader: Reader, seconds: float = 0.0) -> object:
                polled.append(poll(reader, seconds))
                return polled[-1]

            def ask(reader: object, *args: object) -> object:
                if polled and polled[-1]:
                    monkeypatch.undo()
                    raise RefusedError("the rights are being changed")
                return asked(reader, *args)

            monkeypatch.setattr(Reader, "poll", noted)
            monkeypatch.setattr(owner, call, ask)
            with pytest.raises(RefusedError):
                until(consumer, "30a")
            assert steps(until(consumer, "30a")) == EVERYTHING
