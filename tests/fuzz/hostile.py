"""Records that somebody writes to the topics who wants to do harm: seeded, endless, mixed with a legit chain.

    hostile = Hostile(seed=7)
    for key, value, headers in hostile.burst(): ...       # one attack: a few records

What it never does, because policy `first` cannot tell it from the truth (`quorum:k` can): put a copy of a legit
message, or another message under a legit counted prefix, before the legit ones; extend the legit head by a whole
block. Everything else is allowed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from cardinal.protocols.streams import BlockRef, Payload, Record, Routed
from cardinal.protocols.streams.types import NO_ID, PRODUCER_HEADER, SEALED_HEADER
from cardinal.protocols.streams.wire.avro import Entry
from cardinal_devkit.testing.generator import SCHEMA, TOPIC, ChainGenerator

WIDTH: Final = 2
TOPICS: Final = (TOPIC, *sorted({topic for topic in SCHEMA.values() if topic != TOPIC}))
WILD: Final = (0, 1, -1, 2, 64, 100, 2**16, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
SEALED: Final = ((SEALED_HEADER, b"1"),)

Headers = tuple[tuple[str, bytes], ...]


class Attack(NamedTuple):
    """One hostile record without its place."""

    key: bytes
    value: bytes
    headers: Headers = ()


def zigzag(value: int) -> bytes:
    """An Avro long; also of values that no long can hold."""
    value = (value << 1) ^ (value >> 63) if -(2**63) <= value < 2**63 else value << 1
    value &= (1 << 70) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def entry(path: bytes, value: bytes = b"", count: int = 0, sub_batch: bytes = NO_ID, *, delete: bool = False) -> Entry:
    return Entry(path, value, count, delete, sub_batch)


def batch(number: int, parent: bytes, weight: int = 0, entries: Sequence[Entry] = ()) -> bytes:
    """A Batch's value; numbers and counts may be anything."""
    out = [zigzag(number), zigzag((weight.bit_length() + 7) // 8), weight.to_bytes((weight.bit_length() + 7) // 8)]
    out.append(parent)
    if entries:
        out.append(zigzag(len(entries)))
    for one in entries:
        out += [zigzag(len(one.path)), one.path, zigzag(len(one.value)), one.value, zigzag(one.count)]
        out += [b"\1" if one.delete else b"\0", one.sub_batch]
    out.append(b"\0")
    return b"".join(out)


class Hostile:
    """The attacks.

    Arguments:
        seed: any integer.
        root: the block below the legit chain, which its producers do not send.
        heavy: bytes of the largest value.

    """

    def __init__(self, seed: int, *, root: bytes = bytes(32), heavy: int = 1 << 20) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.heavy = heavy
        self._hashes = [self.rng.randbytes(32) for _ in range(16)]
        self._whole = [self.rng.randbytes(32)]
        self._legit: list[Payload] = []
        self._sent: list[Routed] = []
        self._attacks: list[tuple[Callable[[], list[Attack]], int]] = [
            (self.random_bytes, 20),
            (self.type_bytes, 20),
            (self.cut_short, 10),
            (self.wild_counts, 10),
            (self.giant_map, 10),
            (self.never_complete, 30),
            (self.sub_batch_flood, 10),
            (self.colliding_prefixes, 6),
            (self.many_prefixes, 1),
            (self.far_ahead, 20),
            (self.orphans, 6),
            (self.circles, 4),
            (self.heavy_weight, 1),
            (self.heavy_value, 1),
            (self.two_faces, 6),
            (self.sealed_lie, 6),
            (self.reorg_flood, 10),
            (self.pings, 4),
            (self.headers, 4),
            (self.late_copies, 10),
            (self.false_children, 10),
            (self.false_batch, 4),
        ]
        self._weights = [weight for _, weight in self._attacks]

    def saw(self, payload: Payload, messages: Sequence[Routed]) -> None:
        """A legit block is on the topics as a whole; from now on it may be copied and built upon."""
        self._legit = [*self._legit[-20:], payload]
        self._sent = [*self._sent[-100:], *messages]

    def burst(self) -> list[Attack]:
        """One attack."""
        return self.rng.choices(self._attacks, self._weights)[0][0]()

    def kinds(self) -> Iterator[tuple[str, list[Attack]]]:
        """Every attack once, by name."""
        for attack, _ in self._attacks:
            yield attack.__name__, attack()

    # --- bytes -----------------------------------------------------------------------------------------------

    def _some(self, most: int) -> bytes:
        return self.rng.randbytes(self.rng.randrange(most + 1))

    def _hash(self) -> bytes:
        """One of a few open hashes, now and then a new one."""
        if self.rng.randrange(3) == 0:
            self._hashes[self.rng.randrange(len(self._hashes))] = self.rng.randbytes(32)
        return self.rng.choice(self._hashes)

    def _wild(self) -> int:
        return self.rng.choice(WILD)

    def random_bytes(self) -> list[Attack]:
        return [Attack(self._some(80), self._some(200)) for _ in range(4)]

    def type_bytes(self) -> list[Attack]:
        """Every type byte before a hash and something."""
        kind = self.rng.randrange(256)
        return [Attack(bytes((kind,)) + self._hash() + self._some(size), self._some(40)) for size in (0, 32, 34, 40)]

    def cut_short(self) -> list[Attack]:
        """A whole Batch, cut anywhere, also with something behind it."""
        whole = batch(5, self._hash(), 5, [entry(b"a/", count=2), entry(b"b", b"value"), entry(b"c", delete=True)])
        cut = self.rng.randrange(len(whole))
        return [Attack(b"\0" + self._hash(), whole[:cut]), Attack(b"\0" + self._hash(), whole[:cut] + self._some(60))]

    # --- counts ----------------------------------------------------------------------------------------------

    def wild_counts(self) -> list[Attack]:
        counted = [entry(self._some(6), count=self._wild()) for _ in range(self.rng.randrange(1, 6))]
        block = self._hash()
        return [
            Attack(b"\0" + block, batch(self._wild(), self._hash(), self.rng.randrange(1 << 20), counted)),
            *(Attack(b"\3" + block + one.path + self._some(3), self._some(20)) for one in counted),
        ]

    def giant_map(self) -> list[Attack]:
        """A map that says it has more entries, or more bytes, than anybody has."""
        count, size = self._wild(), self._wild()
        opening = zigzag(1) + zigzag(0) + bytes(32) + zigzag(count) + (zigzag(size) if count < 0 else b"")
        one = entry(b"p", b"v")
        filling = batch(0, b"", 0, [one])[3:-1] * self.rng.randrange(4)
        content = zigzag(count) + (zigzag(size) if count < 0 else b"") + zigzag(1) + b"p" + zigzag(1) + b"v"
        block = self._hash()
        return [
            Attack(b"\0" + block, opening + filling + self.rng.choice((b"", b"\0"))),
            Attack(b"\2" + block + self._hash() + zigzag(0), self.rng.choice((b"\0", b"")) + content),
            Attack(b"\2" + block + self._hash() + zigzag(self._wild()), zigzag(0) * 2),
        ]

    def sub_batch_flood(self) -> list[Attack]:
        block, announced = self._hash(), self.rng.randbytes(32)
        part = zigzag(0) + zigzag(1) + zigzag(1) + b"p" + zigzag(1) + b"v" + zigzag(0)
        out = [
            Attack(b"\1" + block + announced, zigzag(self.rng.choice((self._wild(), 3, 100)))),
            Attack(b"\0" + block, batch(3, self._hash(), 3, [entry(b"s", sub_batch=announced)])),
        ]
        out += [Attack(b"\2" + block + announced + zigzag(self._wild() >> 33), part) for _ in range(4)]
        out += [Attack(b"\2" + block + self.rng.randbytes(32) + zigzag(index), part) for index in range(4)]
        self.rng.shuffle(out)
        return out

    # --- prefixes --------------------------------------------------------------------------------------------

    def colliding_prefixes(self) -> list[Attack]:
        block, depth = self._hash(), self.rng.randrange(1, 60)
        paths = {b"a", b"a/", b"a/b", b"a/b/", b"", b"/", b"//"}
        paths |= {b"a" * size for size in range(depth)} | {b"a/" * size for size in range(depth)}
        counted = [entry(path, count=self.rng.randrange(3)) for path in sorted(paths)]
        keys = [b"\3" + block + self.rng.choice(sorted(paths)) + self._some(2) for _ in range(20)]
        out = [Attack(key, b"v") for key in keys]
        return [*out[:10], Attack(b"\0" + block, batch(7, self._hash(), 7, counted)), *out[10:]]

    def many_prefixes(self) -> list[Attack]:
        """Thousands of counted prefixes of many lengths, and keys that none or the shortest of them begins."""
        block = self.rng.randbytes(32)
        counted = [entry(b"x" * (index % 250) + b"%d" % index, count=9) for index in range(1000)]
        keys = [b"\3" + block + b"x" * self.rng.randrange(300) + b"?%d" % index for index in range(200)]
        return [Attack(b"\0" + block, batch(7, self._hash(), 7, counted)), *(Attack(key, b"") for key in keys)]

    # --- blocks ----------------------------------------------------------------------------------------------

    def never_complete(self) -> list[Attack]:
        block = self.rng.randbytes(32) if self.rng.randrange(2) else self._hash()
        prefix = self.rng.choice((b"b/x/item/", b"state/", b"", b"b/9/n"))
        return [Attack(bytes((3 + index % 2,)) + block + prefix + self._some(9), self._some(900)) for index in range(4)]

    def _block(self, number: int, parent: bytes, weight: int, entries: Sequence[Entry] = ()) -> list[Attack]:
        """A whole block."""
        block = self.rng.randbytes(32)
        self._whole[self.rng.randrange(len(self._whole))] = block
        if len(self._whole) < 64:
            self._whole.append(block)
        return [Attack(b"\0" + block, batch(number, parent, weight, entries), SEALED)]

    def far_ahead(self) -> list[Attack]:
        number = self.rng.choice((self.rng.randrange(2**63), self.rng.randrange(1000), 2**63 - 1, 0))
        return self._block(number, self.rng.choice((*self._whole, self.rng.randbytes(32))), self.rng.getrandbits(256))

    def orphans(self) -> list[Attack]:
        """A chain of whole blocks on a parent that nobody has."""
        parent, number, out = self.rng.randbytes(32), self.rng.randrange(2**40), []
        for index in range(self.rng.randrange(1, 20)):
            out += self._block(number + index, parent, 2**255 + index, [entry(b"tip", self._some(50))])
            parent = out[-1].key[1:]
        return out[:: self.rng.choice((1, -1))]

    def circles(self) -> list[Attack]:
        """Blocks that are each other's ancestors, and one that is its own."""
        one, two = self.rng.randbytes(32), self.rng.randbytes(32)
        return [
            Attack(b"\0" + one, batch(9, two, 9)),
            Attack(b"\0" + two, batch(10, one, 10)),
            Attack(b"\0" + self.root, batch(1, self.rng.choice((self.root, one, two)), 1)),
            Attack(b"\0" + self._hash(), batch(self.rng.randrange(1, 99), self.root, 0)),
        ]

    def heavy_weight(self) -> list[Attack]:
        size = self.rng.randrange(self.heavy)
        number = zigzag(self.rng.randrange(1000))
        value = number + zigzag(size) + b"\xff" * size + self.rng.choice(self._whole) + zigzag(0)
        return [Attack(b"\0" + self.rng.randbytes(32), value)]

    def heavy_value(self) -> list[Attack]:
        """A whole block, and one that never will be, of one large value each."""
        large = bytes(self.rng.randrange(self.heavy))
        return [
            *self._block(self.rng.randrange(1000), self.rng.randbytes(32), 3, [entry(b"tip", large)]),
            Attack(b"\3" + self.rng.randbytes(32) + b"b/x/item/1", large),
            Attack(b"\3" + self.rng.randbytes(32) + large[:100_000], b""),
        ]

    def two_faces(self) -> list[Attack]:
        """Many different Batches of one hash."""
        block = self._hash()
        return [
            Attack(b"\0" + block, batch(self.rng.randrange(9), self._hash(), 1, [entry(b"a/", count=1 + index)]))
            for index in range(6)
        ]

    def sealed_lie(self) -> list[Attack]:
        block, counted = self._hash(), [entry(b"a/", count=self.rng.randrange(1, 1000))]
        return [Attack(b"\0" + block, batch(4, self._hash(), 2**255, counted), SEALED)]

    def reorg_flood(self) -> list[Attack]:
        ancestor = self.rng.choice((self.rng.randbytes(32), self.rng.choice(self._hashes)))
        if self._legit and self.rng.randrange(4) == 0:
            ancestor = self.rng.choice(self._legit).hash
        number = zigzag(self.rng.choice((self._wild(), self.rng.randrange(100))))
        return [Attack(bytes((self.rng.choice((5, 5, 6)),)) + ancestor, number) for _ in range(2)]

    def pings(self) -> list[Attack]:
        who = self.rng.randbytes(32)
        return [Attack(b"\xff" + who, bytes((version,)) + self.rng.randbytes(14)) for version in (0, 1, 1, 2)]

    def headers(self) -> list[Attack]:
        name = self.rng.choice((PRODUCER_HEADER, SEALED_HEADER, "", "\udcff"))
        said: Headers = ((name, self._some(300)),) * self.rng.randrange(1, 5)
        return [
            Attack(b"", b""),
            Attack(b"\0" + self._hash(), batch(2, self._hash(), 2), said),
            Attack(b"", b"x", said),
        ]

    # --- the legit chain -------------------------------------------------------------------------------------

    def late_copies(self) -> list[Attack]:
        """Copies of legit messages after them that differ, and messages that legit blocks do not count."""
        if not self._sent:
            return []
        key, value = self.rng.choice(self._sent)[1:]
        return [Attack(key, value + b"!"), Attack(key, self._some(30)), Attack(b"\3" + key[1:33] + b"more", b"")]

    def false_children(self) -> list[Attack]:
        """Blocks on legit ones whose number or place is wrong."""
        if len(self._legit) < 10:
            return []
        old, new = self.rng.choice(self._legit[:4]), self._legit[-1]
        return [
            *self._block(new.number + self.rng.choice((0, 2, 3, 2**40)), new.hash, 2**255),
            *self._block(old.number + 1, old.hash, 0, [entry(b"tip", b"side")]),
        ]

    def false_batch(self) -> list[Attack]:
        """A second Batch of a legit block, behind the first."""
        if not self._legit:
            return []
        legit = self.rng.choice(self._legit)
        return [Attack(b"\0" + legit.hash, batch(legit.number, legit.parent, legit.weight + 1, [entry(b"x", count=1)]))]


class Stream:
    """Hostile records and a legit chain between them, as one consumer gets them.

    Arguments:
        seed: any integer.
        blocks: of the legit chain.
        every: hostile records between two legit messages.

    """

    def __init__(self, seed: int, *, blocks: int = 100, every: int = 10, heavy: int = 1 << 20) -> None:
        self.again = lambda: Stream(seed, blocks=blocks, every=every, heavy=heavy)
        """The same once more."""
        self.rng = random.Random(f"{seed}/stream")
        self.chain = ChainGenerator(seed, size=3)
        self.payloads = self.chain.payloads(blocks)
        first = self.payloads[0]
        self.start = BlockRef(first.number - 1, first.parent)
        self.hostile = Hostile(seed, root=first.parent, heavy=heavy)
        self.every = every
        self.ends = {(topic, number): 0 for topic in TOPICS for number in range(WIDTH)}
        self.legit: dict[bytes, list[Record]] = {}

    def __iter__(self) -> Iterator[Record]:
        waiting: list[Attack] = []
        for payload in self.payloads:
            messages = self.chain.messages(payload)
            for message in messages:
                while len(waiting) < self.every:
                    waiting += self.hostile.burst()
                for attack in waiting:
                    yield self._place(self.rng.choice(TOPICS), *attack)
                waiting = []
                record = self._place(message.topic, message.key, message.value)
                self.legit.setdefault(payload.hash, []).append(record)
                yield record
            self.hostile.saw(payload, messages)

    def channel(self, topic: str, count: int) -> list[Record]:
        """Hostile records on a reorg channel, which has one partition."""
        out: list[Record] = []
        offset = self.ends.get((topic, 0), 0)
        while len(out) < count:
            out += [
                Record(topic, 0, offset + len(out) + index, *attack[:2], 0, attack[2])
                for index, attack in enumerate(self.hostile.burst())
            ]
        self.ends[topic, 0] = offset + len(out)
        return out

    def _place(self, topic: str, key: bytes, value: bytes, headers: Headers = ()) -> Record:
        number = sum(key) % WIDTH
        offset = self.ends[topic, number]
        self.ends[topic, number] = offset + 1
        return Record(topic, number, offset, key, value, offset, headers)
