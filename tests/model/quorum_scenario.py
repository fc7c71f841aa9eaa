"""Who publishes where a quorum decides: several producers that count, of whom a minority lies, and perhaps strangers.

Rules:

1. Equal seeds and profiles give equal casts, and equal sayings.
2. There are fewer liars than it takes to agree, and enough honest producers: so every block comes about as it is,
   whatever the liars say, also where all of them say the same.
3. A liar says the same of a block whenever it says anything: other values, a value inside the Batch, other counts,
   another parent, number or weight, fewer messages, only the Batch, nothing at all, or a block of its own above it.
4. What strangers say, who are not in the list, or give no name, is nothing.
5. Every honest producer publishes every block in the end, each at its own pace.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import digits
from typing import Final

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.types import PRODUCER_HEADER, Routed
from cardinal.protocols.streams.wire.codec import decode, encode
from cardinal.protocols.streams.wire.messages import Batch
from cardinal_devkit.testing.faults import Faults, FaultSettings
from cardinal_devkit.testing.generator import block_hash, block_name, block_number

from .lies import Log, altered, other_batch, other_place

_EVERY: Final = 8
"""One schedule in so many is about a quorum."""

_MOST: Final = 5
_STRANGER: Final = "stranger"
_LIES: Final = (
    "value",
    "inline",
    "more",
    "none",
    "parent",
    "number",
    "weight",
    "fewer",
    "alone",
    "nothing",
    "own",
)


@dataclass(frozen=True, slots=True)
class Quorum:
    """Whose word counts.

    Attributes:
        k: how many have to agree.
        producers: the ids of those that count.
        liars: those of them that lie.

    """

    k: int
    producers: tuple[str, ...]
    liars: frozenset[str]

    @property
    def policy(self) -> str:
        """As settings say it."""
        return f"quorum:{self.k}"


def quorum_of(seed: int, profile: str, *, always: bool = False) -> Quorum | None:
    """Whose word counts in the schedule of a seed; None where the first does, as in most."""
    source = random.Random(f"quorum/{profile}/{seed}")
    if source.randrange(_EVERY) and not always:
        return None
    producers = [f"node{index}" for index in range(source.randint(1, _MOST))]
    most = (len(producers) - 1) // 2
    liars = frozenset(source.sample(producers, source.choice((most, most, source.randint(0, most)))))
    source.shuffle(producers)
    return Quorum(source.randint(len(liars) + 1, len(producers) - len(liars)), tuple(producers), liars)


class Cast:
    """All who publish.

    Arguments:
        quorum: whose word counts.
        messages: of every block, as it is, parents first.
        seed: any text.

    """

    def __init__(self, quorum: Quorum, messages: Mapping[bytes, Sequence[Routed]], seed: str) -> None:
        self._quorum = quorum
        self._messages = messages
        self._random = random.Random(f"cast/{seed}")
        self._alike = self._chance(0.3)
        self._eager = self._random.choice((0.2, 0.6, 1.0))
        self._said: dict[tuple[str, bytes], list[list[Routed]]] = {}
        self.lied: set[bytes] = set()
        """Blocks of which somebody who counts says something else."""

    def publish(self, partitions: int, gone: set[bytes]) -> Log:
        """Everything that they send, but for messages with these keys, which nobody's log has."""
        log, left = Log(partitions), {name: list(self._messages) for name in self._names()}
        while any(left.values()):
            producers = {name: self._some(name, blocks) for name, blocks in left.items()}
            unsealed = [name for name in producers if self._chance(0.2)]
            faults = Faults(self._random.getrandbits(32), self._faults(partitions))
            if any(producers.values()):
                published = faults.publish(producers, unsealed=unsealed)
                everything = (record for records in published.partitions.values() for record in records)
                log.take(r for r in sorted(everything, key=lambda r: r.timestamp_ms) if r.key not in gone)
            if self._chance(0.2):
                log.append(self._anything(), self._random.choice(((), ((PRODUCER_HEADER, b"nobody"),))))
        return log

    # --- who says what ---------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """Those that count and perhaps a stranger, in any order."""
        names = [*self._quorum.producers, *([_STRANGER] if self._chance(0.3) else [])]
        return self._random.sample(names, len(names))

    def _some(self, name: str, blocks: list[bytes]) -> list[list[Routed]]:
        """What one of them says of the next blocks of its node; as many as it likes, and all soon enough."""
        count = self._random.choice((0, 1, 2, len(blocks), len(blocks)))
        now, blocks[:] = blocks[:count], blocks[count:]
        return [said for block in now for said in self._says(name, block)]

    def _says(self, name: str, block: bytes) -> list[list[Routed]]:
        """The blocks that it publishes for one of its node's: that one, another one, none, or two."""
        honest = list(self._messages[block])
        if name not in self._quorum.liars and name != _STRANGER:
            return [honest]
        who = "liars" if self._alike else name
        if (who, block) not in self._said:
            self._said[who, block] = self._lie(honest) if self._chance(self._eager) else [honest]
        said = self._said[who, block]
        if name != _STRANGER and said != [honest]:
            self.lied |= {block} | {messages[-1].key[1:] for messages in said}
        return said

    def _lie(self, honest: list[Routed]) -> list[list[Routed]]:
        *content, batch = honest
        said = honest
        match self._random.choice(_LIES):
            case "nothing":
                return []
            case "own":
                return [honest, [self._own(batch)]]
            case "value":
                said = [*(altered(message) if self._chance(0.4) else message for message in content), batch]
            case "fewer":
                said = [*(message for message in content if self._chance(0.6)), batch]
            case "alone":
                said = [batch]
            case "parent" | "number" | "weight" as lie:
                said = other_place(honest, lie, self._random)
            case lie:
                said = other_batch(honest, lie, self._random)
        return [said]

    def _own(self, sealed: Routed) -> Routed:
        """The Batch of a heavy block that nobody mined, above this one."""
        batch = decode(sealed.key, sealed.value)
        if not isinstance(batch, Batch):
            raise ConfigurationError("a block's messages end with its Batch, as split() gives them")
        below = block_name(batch.hash)
        own = block_hash(f"{block_number(below) + 1}own{below.lstrip(digits)}")
        return Routed(sealed.topic, *encode(Batch(own, batch.number + 1, 1 << 50, batch.hash)))

    def _anything(self) -> list[Routed]:
        """What somebody says who has no name, or none that counts."""
        honest = list(self._messages[self._random.choice(list(self._messages))])
        return self._random.choice(([altered(message) for message in honest], honest, [self._own(honest[-1])]))

    # --- how -------------------------------------------------------------------------------------------------

    def _faults(self, partitions: int) -> FaultSettings:
        choose = self._random.choice
        return FaultSettings(
            partitions=partitions,
            in_flight=choose((1, 3, 6)),
            duplicates=choose((0.0, 0.05, 0.4)),
            failures=choose((0.0, 0.1, 0.4)),
            restarts=choose((0.0, 0.05, 0.2)),
        )

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability


def lost_for_good(messages: Mapping[bytes, Sequence[Routed]], source: random.Random) -> list[Routed]:
    """Some messages, none of them a Batch, that nobody's log has and a node can supply."""
    content = [message for routed in messages.values() for message in routed[:-1]]
    return source.sample(content, min(len(content), source.randint(1, 4))) if content else []
