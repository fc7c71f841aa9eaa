"""Topics with reorg channels, and a driver that reads everything that a follower asks for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Cursor,
    Follower,
    FollowerSettings,
    MissingPayload,
    Payload,
    Routed,
    split_reorg,
)
from cardinal.protocols.streams.events import Event
from cardinal.protocols.streams.following.follower import Requests, Step
from cardinal.protocols.streams.types import PRODUCER_HEADER, Partition, Record
from streams import SCHEMA, TOPIC, WIDTH, block, h, messages, parents_of

THRESHOLD = 4


def settings(**options: object) -> FollowerSettings:
    return FollowerSettings(  # type: ignore[arg-type]
        "test", "test:1", prefixes=tuple(SCHEMA), reorg_threshold=THRESHOLD, default_topic=TOPIC, **options
    )


def line(tag: str, first: int, last: int, below: str, weight: int = 0) -> list[Payload]:
    """Blocks `5a` to `9a` on a block, weights their numbers and so much more."""
    out = []
    for number in range(first, last + 1):
        out.append(block(f"{number}{tag}", below, number + weight, txs=1))
        below = f"{number}{tag}"
    return out


class Stream:
    """Topics, channels included, and a driver that reads everything that it should."""

    def __init__(self, follower: Follower | None = None, **options: object) -> None:
        self.partitions: dict[Partition, list[Record]] = {
            (topic, index): [] for topic, width in WIDTH.items() for index in range(width)
        }
        self.options = options
        self.follower = follower or Follower(settings(**options))
        self.at: dict[Partition, int] = dict.fromkeys(self.partitions, 0)
        self.updates: list[ChainUpdate] = []
        self.events: list[Event] = []
        self.requests = Requests()
        self.recalled: list[int] = []
        self.rewinds: list[Mapping[Partition, int]] = []
        self.polled = 0

    def write(self, routed: Sequence[Routed], producer: str = "", first: int = 0) -> None:
        """Write messages, those of channels to the place whose partitions have numbers from ``first`` on."""
        headers = ((PRODUCER_HEADER, producer.encode()),) if producer else ()
        for message in routed:
            width = WIDTH.get(message.topic)
            place = (message.topic, first if width is None else sum(message.key) % width)
            records = self.partitions.setdefault(place, [])
            records.append(Record(*place, len(records), message.key, message.value, 0, headers))

    def publish(self, blocks: Sequence[Payload]) -> None:
        for payload in blocks:
            self.write(messages(payload))

    def channel(self, ancestor: str, number: int, blocks: Sequence[Payload]) -> tuple[Routed, list[Routed]]:
        return split_reorg(BlockRef(number, h(ancestor)), blocks, SCHEMA, TOPIC)

    def ends(self) -> dict[Partition, int]:
        return {place: len(records) for place, records in self.partitions.items()}

    def read(self, step: int = 1000, seed: int = 0, steps: int = 100_000) -> str:
        """Read what there is, in so many steps at most; what came of it, as `+1a+2a -2a+2b`.

        Every step takes up to ``step`` records of every partition; with a seed, of some.
        """
        rng = random.Random(seed)
        before = len(self.updates)
        for _ in range(steps):
            wanted = self._wanted()
            records: list[Record] = []
            for place in wanted:
                count = rng.randint(0, step) if seed else step
                records += self.partitions[place][self.at[place] :][:count]
            for record in records:
                self.at[record.topic, record.partition] = record.offset + 1
            self.polled += len(records)
            positions = {place: self.at[place] for place in wanted}
            self.give(records, positions)
            left = any(at < len(self.partitions[place]) for place, at in self.at.items())
            if not left and not records and self._wanted() == wanted:
                break
        return " ".join(shape(update) for update in self.updates[before:])

    def give(
        self, records: Sequence[Record], positions: Mapping[Partition, int] | None = None, *, waited: bool = False
    ) -> None:
        """One step of the follower with these records, and what it wants done."""
        requests = self._sort(self.follower.step(records, positions or self.at, self.ends(), waited=waited))
        if requests.rewind is not None:
            self.rewinds.append(requests.rewind)
            self.at |= requests.rewind
        if requests.history is not None:
            self.recalled.append(requests.history)
            older = [record for place, found in self.partitions.items() if place[0] == TOPIC for record in found]
            self._sort(self.follower.recall(parents_of(older)))

    def rest(self, steps: int = 3) -> None:
        """Nothing comes for a while."""
        for _ in range(steps):
            self.give((), waited=True)

    def _wanted(self) -> list[Partition]:
        channels = set(self.follower.channels)
        for place in self.partitions:
            if place[0] in channels:
                self.at.setdefault(place, 0)
        for place in [place for place in self.at if place[0] not in WIDTH and place[0] not in channels]:
            del self.at[place]
        return sorted(self.at)

    def _sort(self, step: Step) -> Requests:
        self.updates += step.updates
        self.events += step.reports
        self.requests = step.requests
        return step.requests

    def restart(self, cursor: Cursor | None = None, **options: object) -> None:
        cursor = Cursor.parse(str(cursor or self.follower.cursor()))
        self.follower = Follower(settings(**(options or self.options)), cursor)
        marks = {place: (0, len(records)) for place, records in self.partitions.items()}
        channels = self.follower.channels
        begin = self.follower.begin_at(marks)
        self.at = {place: at for place, at in begin.items() if place[0] in WIDTH or place[0] in channels}

    def named(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def shape(update: ChainUpdate) -> str:
    sign = {Payload: "", MissingPayload: "?"}
    return "".join(
        f"{side}{sign[type(payload)]}{called(payload.hash)}"
        for side, payloads in (("-", update.removed), ("+", update.added))
        for payload in payloads
    )


def called(block_hash: bytes) -> str:
    """A block's name, or the beginning of a hash that is none."""
    text = block_hash.lstrip(b"\0")
    return text.decode() if text.isalnum() and text.isascii() else text.hex()[:8]
