"""What a schedule is made of, from one number: a chain with forks, who publishes it and what goes wrong, who reads it.

Rules:

1. Equal seeds and profiles give equal scenarios.
2. Everything that happens to the topics is laid out beforehand, in the order in which it is appended; a run reveals it
   bit by bit.
3. Weights rise along every chain, and the heaviest block is the only one of its weight.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Final

from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.events import BlockHeader
from cardinal.protocols.streams.following.settings import FollowerSettings, OnIncomplete
from cardinal.protocols.streams.ordering.finality import OnFinalityViolation
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality, Record, Routed
from cardinal_devkit.testing.faults import Faults, FaultSettings
from cardinal_devkit.testing.generator import SCHEMA, TOPIC, ChainGenerator, as_received

from .block_model import ModelRules
from .chain_model import ChainRules
from .lies import Log, altered, other_batch
from .quorum_scenario import Cast, Quorum, lost_for_good, quorum_of

_TRACKABLE: Final = (
    r"/item/",
    r"/group/[0-9]/",
    r"/n(?!n)",
    r"/nn",
    r"state/",
    r"ledger/",
    r"/head$",
    r"^tip$",
    r"kept/",
)
_HASH: Final = slice(1, 33)
_LIES: Final = ("value", "inline", "more", "none")
_LITTLE_MEMORY: Final = 4
"""One schedule in so many is run on a small machine."""
_KEPT_BYTES: Final = 1 << 20
"""More than a block: a quorum agrees on the header and content alone of one that is larger."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How large schedules are.

    Attributes:
        name: what the command line calls it.
        blocks: the fewest and the most blocks of the chain.
        size: the most entries of each kind in a block.
        producers: the most producers.

    """

    name: str
    blocks: tuple[int, int]
    size: int
    producers: int


QUICK: Final = Profile("quick", (3, 14), 2, 4)
DEEP: Final = Profile("deep", (3, 40), 4, 5)
PROFILES: Final = {profile.name: profile for profile in (QUICK, DEEP)}


@dataclass(frozen=True, slots=True)
class Memory:
    """The bounds of a small machine.

    Attributes:
        open_blocks: blocks under assembly.
        open_bytes, finished_bytes: of messages; see :class:`~cardinal.protocols.streams.assembly.window.Bounds`.
        votes: complete copies of one producer of a quorum.
        waiting, side: complete blocks that wait for their parent, or stand on side branches: room for a few branches.

    """

    open_blocks: int
    open_bytes: int
    finished_bytes: int
    votes: int
    waiting: int
    side: int

    def of(self, settings: FollowerSettings) -> FollowerSettings:
        """The settings of a consumer on this machine; each producer of a quorum has as much."""
        parts = max(1, len(settings.producers))
        bounds = Bounds(
            open_bytes=parts * self.open_bytes,
            open_blocks=parts * self.open_blocks,
            finished_bytes=parts * (self.finished_bytes if parts == 1 else _KEPT_BYTES),
            votes=parts * self.votes,
        )
        return replace(settings, bounds=bounds, max_waiting=self.waiting, max_side=self.side)


def little_memory(seed: int, profile: str) -> Memory | None:
    """The machine of a seed's schedule, None where there is memory enough, as in most."""
    source = random.Random(f"memory/{profile}/{seed}")
    if source.randrange(_LITTLE_MEMORY):
        return None
    choose = source.choice
    return Memory(
        choose((8, 12)),
        choose((100_000, 1 << 20)),
        choose((0, _KEPT_BYTES)),
        choose((2, 4, 100)),
        choose((2, 4, 100)),
        choose((24, 100)),
    )


@dataclass(slots=True)
class Scenario:
    """See the module.

    Attributes:
        seed, profile: what it was made from.
        settings: the consumer's.
        rules: the same for the model.
        payloads: what honest producers publish, as a consumer of everything receives it.
        records: everything that is ever appended, in order.
        heaviest: the one heaviest block.
        lied: blocks of which a producer tells something else.
        disputed: those of them whose Batch exists in several versions, one of which cannot be right.
        doubtful: blocks whose content may be missing after a resume: what they consist of is not all on the topics.
        supplies: messages that no topic has and a node can supply.
        roomy: whether no fork is deeper than the threshold allows in any order of arrival.
        little_memory: whether messages and complete blocks are evicted, and re-read. Then nobody lies but where a
            quorum decides, nothing has to be supplied, and the start is given.
        quorum: whose word counts; None: the first one's.
        command: what `python -m tests.model` has to be given, beside the seed, to make it again.

    """

    seed: int
    profile: Profile
    settings: FollowerSettings
    rules: ModelRules
    payloads: dict[bytes, Payload]
    records: list[Record]
    heaviest: Payload
    lied: set[bytes] = field(default_factory=set)
    disputed: set[bytes] = field(default_factory=set)
    doubtful: set[bytes] = field(default_factory=set)
    supplies: list[Routed] = field(default_factory=list)
    roomy: bool = True
    little_memory: bool = False
    quorum: Quorum | None = None
    command: str = ""

    @property
    def misled(self) -> set[bytes]:
        """Blocks that may be delivered otherwise than they are; none where a quorum decides."""
        return self.lied if self.quorum is None else set()


def make_scenario(seed: int, profile: Profile = QUICK, *, quorum: bool = False) -> Scenario:
    """The scenario of a seed; with ``quorum`` one that is about a quorum whatever the seed says."""
    scenario = _Maker(seed, profile, quorum_of(seed, profile.name, always=quorum)).make()
    scenario.command = ("" if profile is QUICK else f" --profile {profile.name}") + (" --quorum" if quorum else "")
    return scenario


class _Maker:
    """One scenario being made."""

    def __init__(self, seed: int, profile: Profile, quorum: Quorum | None) -> None:
        self._seed, self._profile, self._quorum = seed, profile, quorum
        self._random = random.Random(f"scenario/{profile.name}/{seed}")
        self._chain = ChainGenerator(seed, size=self._random.randint(0, profile.size))
        self._depth = self._random.randint(1, 5)
        self._moves = self._chain.moves(
            self._random.randint(*profile.blocks),
            reorg_rate=self._random.choice((0.0, 0.2, 0.5)),
            max_depth=self._depth,
            difficulty=self._random.choice((0, 1000)),
        )
        self._mined = [payload for move in self._moves for payload in move.mined]
        self._messages = {payload.hash: self._chain.messages(payload) for payload in self._mined}
        self._partitions = self._random.randint(1, 3)
        self._lied: set[bytes] = set()
        self._disputed: set[bytes] = set()
        self._lost: set[bytes] = set()
        self._late: set[bytes] = set()
        self._supplied: set[bytes] = set()
        self._memory = little_memory(seed, profile.name)

    def make(self) -> Scenario:
        threshold = self._random.choice((1, 2, 4, 8, 16, 64))
        tracked = self._tracked()
        canonical = self._canonical()
        start = canonical[0].ref if self._chance(0.5) else None
        pinned = self._random.choice(canonical)
        whitelist = {pinned.number: pinned.hash} if self._chance(0.2) else {}
        lag = self._random.choice((None, None, 2 * self._depth + 2, 1))
        halts = self._chance(0.5)
        quorum, memory = self._quorum, self._memory
        if memory is not None:
            threshold, start = max(threshold, 2 * self._depth + 1), canonical[0].ref
            whitelist, lag = {}, None
        records = self._records() if quorum is None else self._cast(quorum, lossy=tracked is None)
        settings = FollowerSettings(
            "generated",
            f"generated:{self._seed}",
            tracked=tracked,
            prefixes=tuple(SCHEMA),
            reorg_threshold=threshold,
            whitelist=whitelist,
            finality_of=None if lag is None else _Lag(lag),
            on_finality_violation=OnFinalityViolation.HALT if halts else OnFinalityViolation.FOLLOW,
            start=start,
            on_incomplete=self._random.choice((OnIncomplete.SKIP, OnIncomplete.HALT)),
            default_topic=TOPIC,
            policy="first" if quorum is None else quorum.policy,
            producers=() if quorum is None else quorum.producers,
        )
        if memory is not None:
            settings = memory.of(settings)
        rules = ModelRules(tracked, tuple(SCHEMA), ChainRules(threshold, whitelist, start, lag, halts))
        keys = [message for routed in self._messages.values() for message in routed]
        return Scenario(
            self._seed,
            self._profile,
            settings,
            rules,
            {payload.hash: as_received(payload) for payload in self._mined},
            records,
            canonical[-1],
            self._lied,
            self._disputed,
            self._disputed | {key[_HASH] for key in self._lost | self._supplied},
            [message for message in keys if message.key in self._supplied],
            threshold > 2 * self._depth,
            memory is not None,
            quorum,
        )

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _tracked(self) -> tuple[str, ...] | None:
        if self._chance(0.6):
            return None
        return tuple(self._random.sample(_TRACKABLE, self._random.randint(1, 5)))

    def _canonical(self) -> list[Payload]:
        """The chain in the end."""
        known = {payload.hash: payload for payload in self._mined}
        chain: list[bytes] = []
        for move in self._moves:
            del chain[len(chain) - len(move.removed) :]
            chain += [ref.hash for ref in move.added]
        return [known[block] for block in chain]

    # --- the topics ------------------------------------------------------------------------------------------

    def _records(self) -> list[Record]:
        """Some rounds of publishing; what was lost is repaired in a later round, by a node, or never."""
        self._lose()
        log = Log(self._partitions)
        rounds = self._random.randint(1, 3)
        cuts = sorted(self._random.randint(0, len(self._mined)) for _ in range(rounds - 1))
        names = [f"node{index}" for index in range(self._random.choice((1, 1, 2, 3, self._profile.producers)))]
        liars = set(names[: self._random.randint(1, 2)]) if len(names) > 1 and self._chance(0.3) else set()
        if self._memory is not None:
            liars = set()
        unsealed = [name for name in names if self._chance(0.2)]
        gone = self._lost | self._late | self._supplied
        for index, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(self._mined)], strict=True)):
            producers = {
                name: [self._said(payload, liar=name in liars) for payload in self._served(name, first, last)]
                for name in self._random.sample(names, len(names))
            }
            faults = Faults(self._random.getrandbits(32), self._faults())
            if any(producers.values()):
                published = faults.publish(producers, unsealed=unsealed)
                everything = (record for records in published.partitions.values() for record in records)
                log.take(r for r in sorted(everything, key=lambda r: r.timestamp_ms) if r.key not in gone)
            if index == 0 or self._chance(0.5):
                self._repair(log, last)
        self._repair(log, len(self._mined))
        return log.records

    def _cast(self, quorum: Quorum, *, lossy: bool) -> list[Record]:
        """What is published where a quorum decides; ``lossy``: whether some of it may have to be supplied."""
        if lossy and self._chance(0.2) and self._memory is None:
            self._supplied |= {message.key for message in lost_for_good(self._messages, self._random)}
        cast = Cast(quorum, self._messages, f"{self._profile.name}/{self._seed}")
        log = cast.publish(self._partitions, self._supplied)
        self._lied |= cast.lied
        return log.records

    def _served(self, name: str, first: int, last: int) -> list[Payload]:
        """What a producer publishes: everything, or, where others do, not every orphan (its node lagged)."""
        blocks = self._mined[first:last]
        if name == "node0":
            return blocks
        canonical = {payload.hash for payload in self._canonical()}
        return [block for block in blocks if block.hash in canonical or self._chance(0.7)]

    def _faults(self) -> FaultSettings:
        choose = self._random.choice
        return FaultSettings(
            partitions=self._partitions,
            in_flight=choose((1, 3, 6)),
            duplicates=choose((0.0, 0.05, 0.4)),
            failures=choose((0.0, 0.1, 0.4)),
            restarts=choose((0.0, 0.05, 0.2)),
        )

    def _lose(self) -> None:
        """Messages that no producer's log has."""
        if not self._chance(0.3):
            return
        for payload in self._random.sample(self._mined, self._random.randint(1, min(3, len(self._mined)))):
            messages = self._messages[payload.hash]
            fate = self._random.choice((self._lost, self._late, self._late, self._supplied))
            if fate is self._supplied and self._memory is not None:
                fate = self._late
            fate |= {message.key for message in self._random.sample(messages, self._random.randint(1, len(messages)))}

    def _repair(self, log: Log, known: int) -> None:
        """What came late is published after all, of blocks that are known by now."""
        for payload in self._mined[:known]:
            late = [message for message in self._messages[payload.hash] if message.key in self._late]
            self._late -= {message.key for message in late}
            log.append(late)

    # --- lies ------------------------------------------------------------------------------------------------

    def _said(self, payload: Payload, *, liar: bool) -> list[Routed]:
        messages = self._messages[payload.hash]
        if not liar or not self._chance(0.3):
            return messages
        lie = self._random.choice(_LIES)
        *content, batch = messages
        if lie == "value":
            said = [altered(message) if self._chance(0.4) else message for message in content]
            if said != content:
                self._lied.add(payload.hash)
            return [*said, batch]
        said = other_batch(messages, lie, self._random)
        if said != messages:
            self._lied.add(payload.hash)
            self._disputed |= {payload.hash} if lie != "inline" else set()
        return said


class _Lag:
    """The marks that a block carries: it finalizes the one so many numbers below it."""

    def __init__(self, lag: int) -> None:
        self._lag = lag

    def __call__(self, block: BlockHeader) -> Finality | None:
        number = block.number - self._lag
        return Finality(number, number) if number >= 0 else None
