"""Producers of the quorum tests: what each writes of a block, true or not, and how a consumer reads it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cardinal.protocols.streams import (
    ChainUpdate,
    Completed,
    Cursor,
    Divergence,
    Follower,
    FollowerSettings,
    Incomplete,
    Payload,
    Record,
    Routed,
    SubBatch,
    Surplus,
    split,
)
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import Event, ReassemblyEvent
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER, Partition, path_bytes
from streams import SCHEMA, TOPIC, WIDTH, block, h

NAMES = ("a", "b", "c")
VOLATILE = ("^head/",)


def true(name: str, parent: str, mark: str = "") -> Payload:
    """A block with a sub batch of some parts, and a value that every producer may see in another way."""
    payload = block(name, parent, txs=2, sub=True)
    updates = {**payload.updates, f"head/{name}": mark.encode(), f"b/{name}/l/gone": b"1"}
    sub = SubBatch("state/", {f"state/{index}": b"x" * 40 for index in range(4)}, frozenset({"state/gone"}))
    return replace(payload, updates=updates, sub_batches={h(f"sub{name}"): sub})


def said(payload: Payload) -> list[Routed]:
    return split(payload, SCHEMA, TOPIC)


def _updates(payload: Payload, changes: Mapping[str, bytes]) -> list[Routed]:
    return said(replace(payload, updates={**payload.updates, **changes}))


def _sub(payload: Payload, **changes: object) -> list[Routed]:
    ((batch_id, sub),) = payload.sub_batches.items()
    assert sub is not None
    return said(replace(payload, sub_batches={batch_id: replace(sub, **changes)}))  # type: ignore[arg-type]  # by name


def _name(payload: Payload) -> str:
    return payload.hash.lstrip(b"\0").decode()


SETTINGS = FollowerSettings(
    "test",
    "test:1",
    prefixes=tuple(SCHEMA),
    reorg_threshold=16,
    policy="quorum:2",
    producers=NAMES,
    volatile=VOLATILE,
)

LIES: dict[str, Callable[[Payload], list[Routed]]] = {
    "value": lambda p: _updates(p, {f"b/{_name(p)}/t/1": b"false"}),
    "value in the Batch": lambda p: _updates(p, {"empty": b"false"}),
    "number": lambda p: said(replace(p, number=p.number + 1)),
    "weight": lambda p: said(replace(p, weight=p.weight + 100)),
    "parent": lambda p: said(replace(p, parent=h("9z"))),
    "one more, counted": lambda p: _updates(p, {f"b/{_name(p)}/t/9": b"more"}),
    "one less, counted": lambda p: said(
        replace(p, updates={path: value for path, value in p.updates.items() if not path.endswith("/t/0")})
    ),
    "extra": lambda p: [
        *said(p)[:1],
        Routed("tx", b"\3" + p.hash + b"b/%s/t/9" % _name(p).encode(), b"x"),
        *said(p)[1:],
    ],
    "missing": lambda p: [message for message in said(p) if not message.key.endswith(b"/t/0")],
    "no Batch": lambda p: [message for message in said(p) if message.key[0] != 0],
    "deletes": lambda p: said(replace(p, deletes=p.deletes | {"other/gone"})),
    "counted delete": lambda p: said(replace(p, deletes=frozenset({f"b/{_name(p)}/t/lost"}))),
    "part": lambda p: _sub(p, updates={f"state/{index}": b"y" * 40 for index in range(4)}),
    "parts": lambda p: _sub(p, updates={f"state/{index}": b"x" * 40 for index in range(9)}),
    "deletes of a part": lambda p: _sub(p, deletes=frozenset({"state/else"})),
}
SILENT = {"missing", "no Batch"}
"""Lies that show in what does not come."""


def record(producer: str | None, routed: Routed, partition: int, offset: int) -> Record:
    headers = () if producer is None else ((PRODUCER_HEADER, path_bytes(producer)),)
    return Record(routed.topic, partition, offset, routed.key, routed.value, offset, headers)


class Topics:
    """What the producers wrote, and how one consumer reads it."""

    def __init__(self) -> None:
        self.partitions: dict[Partition, list[Record]] = {}
        self.written = 0

    def write(self, producer: str | None, messages: Iterable[Routed]) -> list[Record]:
        out = []
        for message in messages:
            partition = sum(message.key) % WIDTH[message.topic]
            log = self.partitions.setdefault((message.topic, partition), [])
            log.append(record(producer, message, partition, len(log))._replace(timestamp_ms=self.written))
            self.written += 1
            out.append(log[-1])
        return out

    def mix(self, streams: Mapping[str | None, Sequence[Routed]], rng: random.Random, most: int = 12) -> None:
        """The producers write at once, each in its order, some messages at a time."""
        left = {producer: list(stream) for producer, stream in streams.items() if stream}
        while left:
            producer = rng.choice(list(left))
            count = rng.randint(1, most)
            self.write(producer, left[producer][:count])
            del left[producer][:count]
            if not left[producer]:
                del left[producer]

    def read(self, rng: random.Random) -> list[Record]:
        """Everything, partitions interleaved, in order within each."""
        at = dict.fromkeys(self.partitions, 0)
        out = []
        left = list(at)
        while left:
            place = rng.choice(left)
            for _ in range(rng.randint(1, 6)):
                if at[place] < len(self.partitions[place]):
                    out.append(self.partitions[place][at[place]])
                    at[place] += 1
            if at[place] == len(self.partitions[place]):
                left.remove(place)
        return out


class Reading:
    """A consumer beside the producers: it reads in the order written, and goes on from its cursor when restarted."""

    def __init__(self, topics: Topics, settings: FollowerSettings = SETTINGS) -> None:
        self.topics, self.settings = topics, settings
        self.updates: list[ChainUpdate] = []
        self.reports: list[Event] = []
        self._open(None)

    def _open(self, cursor: Cursor | None) -> None:
        self.follower = Follower(self.settings, cursor)
        self._at = dict(self.follower.begin_at({place: (0, end) for place, end in self._ends().items()}))

    def _ends(self) -> dict[Partition, int]:
        return {place: len(log) for place, log in self.topics.partitions.items()}

    def unread(self) -> list[Record]:
        """What it has not read, in the order written."""
        logs = self.topics.partitions.items()
        return sorted((each for place, log in logs for each in log[self._at.get(place, 0) :]), key=lambda r: r[5])

    def take(self, records: Sequence[Record]) -> list[Event]:
        """Read these; returns what was reported of them."""
        self._at |= {each[:2]: each.offset + 1 for each in records}
        reports: list[Event] = []
        for value in self.follower.step(records, self._at, self._ends()).items:
            if isinstance(value, ChainUpdate):
                self.updates.append(value)
            else:
                reports.append(value)
        self.reports += reports
        return reports

    def read(self, step: int = 9) -> list[Event]:
        """Read what there is; returns what was reported of it."""
        unread = self.unread()
        return [event for at in range(0, len(unread), step) for event in self.take(unread[at : at + step])]

    def restart(self, update: int = -1) -> None:
        """The consumer is killed, and started from the cursor of an update; what came after that one is undone."""
        cursor = Cursor.parse(str(self.updates[update].cursor))
        del self.updates[len(self.updates) + update + 1 :]
        self._open(cursor)


def quorum(k: int = 2, producers: Sequence[str] = NAMES, **options: object) -> QuorumReassembler:
    bounds = options.pop("bounds", Bounds())
    make = partial(Reassembler, reorg_threshold=16, prefixes=tuple(SCHEMA), volatile=VOLATILE)
    return QuorumReassembler(k, producers, partial(make, **options), bounds)  # type: ignore[arg-type]  # by name


def delivered(events: Iterable[ReassemblyEvent]) -> list[Payload]:
    blocks = [event.payload for event in events if isinstance(event, Completed)]
    return [replace(block, updates=dict(block.updates)) for block in blocks if isinstance(block, Payload)]


def as_delivered(payload: Payload) -> Payload:
    updates, deletes = dict(payload.updates), set(payload.deletes)
    for sub in payload.sub_batches.values():
        assert sub is not None
        updates |= sub.updates
        deletes |= sub.deletes
    return replace(payload, updates=updates, deletes=frozenset(deletes), sub_batches={})


def without_marks(payload: Payload) -> Payload:
    """The block but for what is volatile."""
    return replace(payload, updates={**payload.updates, **{p: b"" for p in payload.updates if p.startswith("head/")}})


def reported(events: Iterable[ReassemblyEvent]) -> set[bytes]:
    """The blocks of which something is reported that producers do not agree on."""
    out = set()
    for event in events:
        if isinstance(event, Divergence | Surplus):
            out.add(event.block)
        elif isinstance(event, Incomplete):
            out.add(event.explanation.block)
    return out
