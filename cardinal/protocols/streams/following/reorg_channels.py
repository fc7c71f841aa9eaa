"""Reorgs deeper than the threshold, through channels of their own (``schemas/SPEC.md``, section 2.6).

1. A Reorg on the default topic announces a channel: the topic ``<default>-re-<ancestor's hash>``, with one partition.
   The driver then reads that topic too, from its beginning, as long as :meth:`ReorgChannels.topics` names it.
2. An attempt of a producer opens with Reorg, has every message of every block above the ancestor, and ends with
   ReorgComplete. Attempts of several producers may be mixed; a producer that died may begin again.
3. At a ReorgComplete the blocks of its attempt that are complete and linked to the ancestor join the graph, and
   ordinary fork choice decides. A lighter chain stays, and may become heavier by later blocks.
4. A channel is closed when its chain is delivered, no attempt is in progress, and it was read to its end. It is
   abandoned, and reported, when it exceeds its bounds, or when it was read to its end, or cannot be read, and nothing
   came on it for a threshold of blocks completed elsewhere; not while older Batches are looked up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeAlias

from cardinal.protocols.streams.cursor import CHANNELS_MAX
from cardinal.protocols.streams.events import (
    Completed,
    Event,
    ForkBelowStart,
    Rejected,
    ReorgAbandoned,
    ReorgBegan,
    ReorgEnded,
)
from cardinal.protocols.streams.ordering.orderer import Orderer, Reach
from cardinal.protocols.streams.publishing.splitter import reorg_topic
from cardinal.protocols.streams.quorum.reassembler import Assembler
from cardinal.protocols.streams.types import BlockRef, Partition, Record, producer_of
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_DELETE_MSG
from cardinal.texts import Count

from .settings import FollowerSettings

_ATTEMPTS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Graft:
    """A channel's chain that is to join the graph: these blocks above the ancestor, parents first."""

    ancestor: BlockRef
    blocks: tuple[Completed, ...]


ChannelEvent: TypeAlias = Event | Graft


@dataclass(slots=True, eq=False)
class _Channel:
    """One channel.

    Attributes:
        blocks, size: its complete blocks, and their bytes.
        first: for every partition the offset of its first record.
        attempts: the blocks of every attempt in flight, by partition and producer.
        ready: the chain of an attempt that ended and did not join the graph yet.
        grafted: whether a chain of it joined the graph.
        counted, since: the complete blocks when it last made progress, and the blocks completed elsewhere by then.
        at: the reader's positions on it.

    """

    ancestor: BlockRef
    topic: str
    reassembler: Assembler
    blocks: dict[bytes, Completed] = field(default_factory=dict)
    size: int = 0
    first: dict[int, int] = field(default_factory=dict)
    attempts: dict[tuple[int, bytes], dict[bytes, None]] = field(default_factory=dict)
    ready: dict[bytes, Completed] = field(default_factory=dict)
    grafted: bool = False
    counted: int = 0
    since: int | None = None
    at: dict[Partition, int] = field(default_factory=dict)

    def linked(self, hashes: Iterable[bytes]) -> dict[bytes, Completed]:
        """The complete ones of these blocks that are linked to the ancestor, parents first."""
        children: dict[bytes, list[Completed]] = {}
        for block_hash in hashes:
            block = self.blocks.get(block_hash)
            if block is not None:
                children.setdefault(block.payload.parent, []).append(block)
        found: dict[bytes, Completed] = {}
        pending = [self.ancestor.hash]
        while pending:
            for block in children.pop(pending.pop(), ()):
                found[block.payload.hash] = block
                pending.append(block.payload.hash)
        return found

    def grown(self) -> bool:
        """True when blocks were completed since the last call; nothing else counts as progress."""
        before, self.counted = self.counted, len(self.blocks)
        return self.counted > before


class ReorgChannels:
    """The channels of one stream.

    Each may hold as many complete blocks as the stream remembers, and messages of four times as many. The orderer is
    queried for ancestors only; ``make`` makes the assembler of a channel.
    """

    def __init__(self, settings: FollowerSettings, orderer: Orderer, make: Callable[[], Assembler]) -> None:
        self._settings = settings
        self._orderer = orderer
        self._make = make
        self._channels: dict[str, _Channel] = {}
        self._unavailable: int | None = None
        self.used = False
        """True once a channel was open."""

    def is_channel(self, topic: str) -> bool:
        """True when a topic is a reorg channel of this stream."""
        default = self._settings.default_topic
        return default is not None and topic.startswith(f"{default}-re-")

    def topics(self) -> tuple[str, ...]:
        """The channels to read now."""
        return tuple(self._channels)

    def open(self) -> tuple[BlockRef, ...]:
        """The ancestors of the channels whose chain was not delivered."""
        return tuple(channel.ancestor for channel in self._channels.values() if not self._won(channel))

    def won(self) -> frozenset[BlockRef]:
        """The ancestors of the channels whose chain was delivered."""
        return frozenset(channel.ancestor for channel in self._channels.values() if self._won(channel))

    def positions(self) -> dict[Partition, int]:
        """The lowest offsets of the channels whose chain was not delivered."""
        return {
            (channel.topic, number): first
            for channel in self._channels.values()
            if not self._won(channel)
            for number, first in channel.first.items()
        }

    def holds(self, block_hash: bytes) -> bool:
        """True when a complete block waits in a channel."""
        return any(block_hash in channel.blocks for channel in self._channels.values())

    @property
    def needs_history(self) -> int | None:
        """The number of the lowest ancestor that the orderer does not remember, and could; None where there is none.

        After a look-up in vain (:meth:`recalled`) it is requested again when another channel's is the lowest.
        """
        forgotten = (
            channel.ancestor.number
            for channel in self._channels.values()
            if self._is_forgotten(channel) and self._orderer.history.recalls(channel.ancestor.number)
        )
        lowest = min(forgotten, default=None)
        return None if lowest == self._unavailable else lowest

    def recalled(self, parents: Mapping[bytes, bytes]) -> list[ChannelEvent]:
        """Take the parents of older blocks, as far down as they were found; returns what can join the graph now."""
        found = self._orderer.recall(parents)
        self._unavailable = None
        self._unavailable = self.needs_history
        return self.judge() if found else []

    # --- events ----------------------------------------------------------------------------------------------

    def announced(self, ancestor: BlockRef) -> list[ChannelEvent]:
        """Open the channel of a Reorg that was read on the default topic, or that a cursor names."""
        if self._settings.default_topic is None:
            return []
        topic = reorg_topic(self._settings.default_topic, ancestor.hash)
        if topic in self._channels:
            return []
        self.used = True
        start = self._orderer.start
        if start is not None and self._orderer.reach(ancestor) is Reach.BELOW_START:
            return [ForkBelowStart(ancestor, start)]
        out: list[ChannelEvent] = []
        if len(self._channels) >= CHANNELS_MAX:
            # An empty one is abandoned before one that holds blocks, and then the one without progress for longest.
            least = min(self._channels.values(), key=lambda channel: (bool(channel.blocks), channel.since or 0))
            out += self._abandon(least, f"{CHANNELS_MAX} newer reorg channels are open")
        self._channels[topic] = _Channel(ancestor, topic, self._make())
        return out

    def receive(self, records: Iterable[Record]) -> Iterator[ChannelEvent]:
        """Take records of channels, in order; those of a channel that is not open are skipped."""
        for (topic, *_), run in groupby(records, key=_run_of):
            channel = self._channels.get(topic)
            if channel is not None:
                yield from self._take(channel, list(run))

    def progress(
        self,
        completed: int,
        positions: Mapping[Partition, int],
        watermarks: Mapping[Partition, int] | None,
        *,
        patient: bool,
    ) -> list[ChannelEvent]:
        """Note the reading's positions, and abandon the channels on which nothing more comes.

        ``completed``: blocks completed on the main topics so far. ``patient``: the reader is still catching up, and the
        number of old blocks is no measure of time.
        """
        out: list[ChannelEvent] = []
        for channel in list(self._channels.values()):
            channel.at = {tp: at for tp, at in positions.items() if tp[0] == channel.topic}
            read = not channel.at or (
                watermarks is not None and all(at >= watermarks.get(tp, at) for tp, at in channel.at.items())
            )
            if read and self._done(channel):
                self._drop(channel)
            elif channel.since is None or channel.grown() or patient or self._is_looked_up(channel):
                channel.since = completed
            elif read and self._stalled(channel, completed):
                out += self._abandon(channel, self._reason(channel))
        return out

    def needs_watermarks(self, completed: int) -> bool:
        """True when watermarks would show that nothing is left to read on a channel."""
        return any(
            bool(channel.at) and (self._done(channel) or self._stalled(channel, completed))
            for channel in self._channels.values()
        )

    def judge(self) -> list[ChannelEvent]:
        """The chains that can join the graph after the delivered chain moved, or more of it is remembered."""
        out: list[ChannelEvent] = []
        for channel in list(self._channels.values()):
            reach = self._orderer.reach(channel.ancestor)
            if channel.ready and reach is Reach.FORGOTTEN:
                # An earlier reorg: the blocks delivered down to the ancestor came through this channel.
                self._orderer.recall({block.payload.hash: block.payload.parent for block in channel.ready.values()})
                reach = self._orderer.reach(channel.ancestor)
            if reach is Reach.BELOW_START and self._orderer.start is not None:
                self._drop(channel)
                out.append(ForkBelowStart(channel.ancestor, self._orderer.start))
            elif channel.ready and reach is Reach.ON_CHAIN:
                blocks, channel.ready, channel.grafted = channel.ready, {}, True
                out.append(Graft(channel.ancestor, tuple(blocks.values())))
        return out

    # --- inside ----------------------------------------------------------------------------------------------

    def _take(self, channel: _Channel, records: Sequence[Record]) -> Iterator[ChannelEvent]:
        """Take messages of blocks, or one other record."""
        for record in records:
            attempt = record.partition, producer_of(record.headers)
            channel.first.setdefault(record.partition, record.offset)
            if _is_content(record):
                channel.attempts.setdefault(attempt, {})[record.key[1:HASH_END]] = None
        for event in channel.reassembler.receive(records):
            if isinstance(event, Completed):
                channel.blocks[event.payload.hash] = event
                channel.size += event.size
            elif not isinstance(event, ReorgBegan | ReorgEnded):
                yield event
            elif event.ancestor.hash != channel.ancestor.hash:
                yield Rejected(event.position, record.key, "it names another ancestor than its channel")
            else:
                yield event
                if isinstance(event, ReorgEnded):
                    channel.ready |= channel.linked(channel.attempts.pop(attempt, ()))
                    yield from self.judge()
                else:
                    channel.attempts[attempt] = {}
        if excess := self._excess(channel):
            yield from self._abandon(channel, excess)
        while sum(one.size for one in self._channels.values()) > self._settings.max_bytes:
            largest = max(self._channels.values(), key=lambda one: one.size)
            yield from self._abandon(largest, "reorg channels are over their common bound, and it holds the most")

    def _excess(self, channel: _Channel) -> str:
        """The bound that a channel exceeds; empty for none."""
        if len(channel.attempts) > _ATTEMPTS_MAX:
            return "it has more attempts in flight than allowed"
        if sum(map(len, channel.attempts.values())) > 4 * self._settings.history:
            return "its messages name more blocks than allowed"
        return "it holds more blocks than allowed" if len(channel.blocks) > self._settings.history else ""

    def _is_forgotten(self, channel: _Channel) -> bool:
        return self._orderer.reach(channel.ancestor) is Reach.FORGOTTEN

    def _is_looked_up(self, channel: _Channel) -> bool:
        """True while a requested look-up, possibly in flight, may show what the channel stands on."""
        return self.needs_history is not None and self._is_forgotten(channel)

    def _done(self, channel: _Channel) -> bool:
        """True when the chain is delivered and no attempt is in progress; another one may follow."""
        return channel.grafted and not channel.attempts and self._won(channel)

    def _won(self, channel: _Channel) -> bool:
        """True when a block of this channel stands on the ancestor in the delivered chain."""
        above = channel.ancestor.number + 1
        return self._orderer.history.at(above) in channel.blocks

    def _stalled(self, channel: _Channel, completed: int) -> bool:
        return channel.since is not None and completed - channel.since >= self._settings.reorg_threshold

    def _reason(self, channel: _Channel) -> str:
        if channel.grafted:
            return "its chain did not become the heavier one"
        match self._orderer.reach(channel.ancestor):
            case Reach.OFF_CHAIN:
                return "its ancestor is not part of the delivered chain"
            case Reach.FORGOTTEN:
                return "its ancestor is below the remembered part of the delivered chain"
            case _:
                threshold = self._settings.reorg_threshold
                return f"nothing came on it for {Count(threshold, 'block')}, and no attempt is complete"

    def _abandon(self, channel: _Channel, reason: str) -> Iterator[ChannelEvent]:
        won = self._won(channel)
        self._drop(channel)
        if not won:
            yield ReorgAbandoned(channel.ancestor, reason)

    def _drop(self, channel: _Channel) -> None:
        self._channels.pop(channel.topic, None)  # a switch by its own records may have ended it
        self._orderer.settle(channel.ancestor)


def _run_of(record: Record) -> tuple[str, int]:
    """Messages of blocks are taken together, all others one by one."""
    return record.topic, -1 if _is_content(record) else record.offset


def _is_content(record: Record) -> bool:
    return len(record.key) >= HASH_END and record.key[0] <= BATCH_DELETE_MSG
