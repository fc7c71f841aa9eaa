"""How the quorum tests play: producers that write, and a reassembler or a whole consumer that has read it all."""

from __future__ import annotations

from dataclasses import replace

from cardinal.protocols.streams import Payload, Routed
from cardinal.protocols.streams.events import Event, ReassemblyEvent
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from quorums import SETTINGS, Reading, Topics, quorum, said, true
from streams import replay

ONE = true("1a", "0a")
HONEST = ("a", "b")
CHAIN = [true(f"{number}a", f"{number - 1}a") for number in range(1, 201)]
"""Block N is `CHAIN[N - 1]`; the settings' threshold is 16, so that late copies are known for 32 blocks."""


def at(number: int) -> Payload:
    return CHAIN[number - 1]


def part(payload: Payload) -> list[Routed]:
    """All of a block but one value."""
    return [message for message in said(payload) if not message.key.endswith(b"/t/0")]


class Feed:
    """Producers that write one after the other, and a consumer that reads at once."""

    def __init__(self, assembler: QuorumReassembler | None = None) -> None:
        self.assembler = quorum() if assembler is None else assembler
        self.topics = Topics()

    def __call__(self, producer: str | None, *said: Routed) -> list[ReassemblyEvent]:
        return self.assembler.receive(self.topics.write(producer, said))

    def chain(self, first: int, last: int, *producers: str) -> list[ReassemblyEvent]:
        events = []
        for number in range(first, last + 1):
            for producer in producers:
                events += self(producer, *said(true(f"{number}a", f"{number - 1}a")))
        return events


def kinds(events: list[ReassemblyEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


class Scene:
    """Producers that write, and a consumer that has read everything when it is asked."""

    def __init__(self, **options: object) -> None:
        self.topics = Topics()
        self.reading = Reading(self.topics, replace(SETTINGS, **options))  # type: ignore[arg-type]  # by name

    def write(self, producer: str, *messages: Routed) -> None:
        self.topics.write(producer, messages)

    def chain(self, first: int, last: int, *producers: str) -> None:
        for number in range(first, last + 1):
            for producer in producers:
                self.write(producer, *said(at(number)))

    def read(self) -> list[Event]:
        return self.reading.read()

    @property
    def head(self) -> int:
        head = self.reading.follower.orderer.head
        assert head is not None
        assert replay(self.reading.updates) == [payload.hash for payload in CHAIN[: head.number]]
        return head.number
