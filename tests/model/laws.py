"""What has to hold after every step of a schedule, whatever happened (``schemas/SPEC.md``, sections 6 to 8).

1. Updates: the numbers go on without a gap; what is removed is what was delivered; what is added stands on the head and
   is what the model makes of the same records; where nobody lied, and where a quorum decides, it is what was published.
2. The head is a heaviest block of the model's; where there is one heaviest, the whole chain is the model's.
3. Every copy that contradicts the one that counts is reported, and nothing else is.
4. ``explain`` says what the model says is missing.
5. Nothing is held that the threshold has left behind.
6. A block is passed over only when the model lacks some of it, and only below one that is whole.
7. Everything read, the head is the heaviest block of all, unless a whitelist, finality, a loss or a start says other;
   lies are no excuse where a quorum decides.
8. With little memory, what is held stays within its bounds, and every eviction is reported with its positions. Laws 2
   to 4 need everything in memory; they hold in the end, when what was evicted is re-read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from cardinal.protocols.streams.events import (
    BlockHeader,
    ChainUpdate,
    Divergence,
    Event,
    ForkBelowStart,
    Incomplete,
    Overflow,
    Quarantined,
    Rejected,
    Superseded,
    Surplus,
)
from cardinal.protocols.streams.following.follower import Follower
from cardinal.protocols.streams.payload import AnyPayload, MissingPayload, Payload
from cardinal.protocols.streams.types import BlockRef, FinalityViolated, Partition, Record

from .block_laws import BlockLaws, name
from .block_model import Model
from .scenario import Scenario

_VOTE_BYTES: Final = 2_000
"""At most, for a vote of a quorum (:attr:`~cardinal.protocols.streams.assembly.window.Bounds.votes`)."""


class LawBrokenError(AssertionError):
    """Core and model differ, or a law does not hold: one line with the seed, the step and what differs."""


class Told(NamedTuple):
    """What the core gave back; ``released``: a resumed reading has caught up; ``rest``: the step is over."""

    items: Sequence[ChainUpdate | Event]
    released: bool = False
    rest: bool = False


class Saved(NamedTuple):
    """A place to begin again from: an update, and what was delivered up to it."""

    update: ChainUpdate
    chain: tuple[AnyPayload, ...]


@dataclass(slots=True)
class _Story:
    """What outlives a restart: what a reader of the stream has in hand."""

    chain: list[AnyPayload]
    seq: int
    saved: list[Saved]
    headers: dict[bytes, BlockHeader]
    root: BlockRef | None
    finalized: int | None
    below_start: bool = False
    violated: bool = False


class Laws:
    """One session of a consumer beside its model.

    Arguments:
        scenario: what is published.
        follower: the core.
        model: the reference.
        began: where the session began to read.

    """

    def __init__(
        self,
        scenario: Scenario,
        follower: Follower,
        model: Model,
        began: Mapping[Partition, int],
        story: _Story | None = None,
    ) -> None:
        self.step = 0
        self._scenario = scenario
        self._follower = follower
        self._model = model
        self._story = story or _Story([], 0, [], {}, scenario.settings.start, None)
        self._starts: set[bytes] = set()
        self._ahead: list[AnyPayload] = []
        self._given_up: set[bytes] = set()
        self._were_complete: set[bytes] = set()
        self._reported: set[tuple[bytes, bytes, bytes]] = set()
        self._values: dict[bytes, set[bytes]] = {}
        self._blocks = BlockLaws(scenario, follower, model, began)

    def resumed(self, follower: Follower, model: Model, began: Mapping[Partition, int]) -> Laws:
        """The next session, begun with a cursor of this one."""
        story = self._story
        chain = [story.headers[block.hash] for block in story.chain]
        if chain:
            model.chain.resume(chain, story.root, story.finalized)
        elif self._scenario.settings.start is None:
            story.root = None
        laws = Laws(self._scenario, follower, model, began, story)
        laws.step = self.step
        return laws

    @property
    def saved(self) -> list[Saved]:
        """Places to begin again from, oldest first."""
        return self._story.saved

    def back_to(self, point: Saved) -> None:
        """The reader's store is as it was after an earlier update."""
        story = self._story
        del story.saved[story.saved.index(point) + 1 :]
        story.chain, story.seq = list(point.chain), point.update.seq
        finality = point.update.finality
        story.finalized = None if finality is None else finality.finalized

    def lacks(self, block_hash: bytes) -> bool:
        """Whether the consumer waits for something of this block."""
        block = self._model.blocks.get(block_hash)
        return block is None or block.payload is None

    def broken(self, what: str) -> LawBrokenError:
        """The failure, with the line that repeats it."""
        first = f"python -m tests.model --seeds 1 --first {self._scenario.seed}{self._scenario.command}"
        return LawBrokenError(f"{first}: step {self.step}: {what}")

    # --- what happens ----------------------------------------------------------------------------------------

    def reading(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        """The core is about to be given these; they come back in the pieces in which it should get them.

        A piece ends where it matters when the core did something: where a block became complete before there is a
        start, and where another Batch than the first may be delivered.
        """
        self._were_complete = set(self._model.complete)
        piece: list[Record] = []
        for record in records:
            piece.append(record)
            self._values.setdefault(record.key, set()).add(record.value)
            completed = self._model.receive(record)
            if completed and self._model.chain.root is None:
                self._starts |= self._model.chain.starts()
                yield piece
                piece = []
            elif self._scenario.disputed and (completed or record.key[1:33] in self._scenario.disputed):
                yield piece
                piece = []
        yield piece

    def told(self, told: Told) -> None:
        """What came of it."""
        if told.released:
            self._model.chain.release()
        self._ahead = [block for item in told.items if isinstance(item, ChainUpdate) for block in item.added]
        for item in told.items:
            self._take(item)
        if told.rest and self._scenario.little_memory:
            self._within_bounds()
        elif told.rest:
            self._compare()
            if wrong := self._blocks.look(self._story.chain, self._floor, self._given_up):
                raise self.broken(wrong)

    def _take(self, item: ChainUpdate | Event) -> None:  # noqa: C901 - one line an event
        match item:
            case ChainUpdate():
                self._apply(item)
            case Divergence():
                self._divergence(item)
            case Superseded():
                self._supersede(item)
            case Quarantined(header=header) if header is not None:
                self._passed_over(header)
            case Surplus() if item.block not in self._scenario.lied:
                raise self.broken(f"{name(item.block)}: surplus {_key(item.key)}, though nobody lied")
            case Overflow() if self._scenario.little_memory:
                self._dropped(item)
            case Rejected() | Overflow():
                raise self.broken(f"{item} of messages that are all in order")
            case Incomplete(explanation=explanation) if explanation.state == "open":
                number = explanation.number or self._number(explanation.block)
                if explanation.block in self._were_complete and number >= self._floor:
                    raise self.broken(f"{name(explanation.block)} is called incomplete: {explanation}")
            case ForkBelowStart():
                self._story.below_start = True
            case FinalityViolated():
                self._story.violated = True
            case _:
                pass

    def end_of_session(self) -> None:
        """The consumer reads no more: everything that had to be reported has been (law 3)."""
        if self._scenario.little_memory:
            return  # what was evicted is compared with nothing
        for differing in self._model.differing:
            if differing not in self._reported and differing.block not in self._given_up:
                who = name(differing.block)
                raise self.broken(f"{who}: nobody reported that {_key(differing.key)} is also {differing.seen[:32]!r}")

    def end(self) -> None:
        """Everything was read (law 7)."""
        scenario, story = self._scenario, self._story
        if scenario.little_memory:
            self._compare()
        free = scenario.roomy and not (scenario.misled or scenario.doubtful)
        pinned = scenario.settings.whitelist
        head = story.chain[-1].hash if story.chain else None
        if not free or story.violated or pinned or scenario.settings.finality_of is not None:
            return
        if head not in (scenario.heaviest.hash, None) and not story.below_start:
            raise self.broken(f"the head is {name(head)} in the end, the heaviest is {name(scenario.heaviest.hash)}")
        if head is None and scenario.heaviest.ref != scenario.settings.start:
            raise self.broken("nothing was delivered at all")

    # --- updates ---------------------------------------------------------------------------------------------

    def _apply(self, update: ChainUpdate) -> None:
        story = self._story
        if update.first_seq != story.seq + 1:
            raise self.broken(f"{update} begins with {update.first_seq} after {story.seq}")
        for block in update.removed:
            if not story.chain or story.chain[-1].hash != block.hash:
                raise self.broken(f"{update} removes {name(block.hash)}, which is not the head")
            self._same_as_delivered(story.chain.pop(), block)
        if update.added and self._model.chain.root is None:
            self._start(update.added[0])
        for block in update.added:
            self._add(block)
        story.seq = update.seq
        story.finalized = None if update.finality is None else update.finality.finalized
        story.saved.append(Saved(update, tuple(story.chain)))

    def _start(self, first: AnyPayload) -> None:
        if first.hash not in self._starts | self._model.chain.starts():
            raise self.broken(f"the stream starts with {name(first.hash)}, which is not the lowest of a heaviest chain")
        header = self._model.complete[first.hash]
        self._model.chain.begin(header)
        self._story.root = self._model.chain.root

    def _same_as_delivered(self, delivered: AnyPayload, removed: AnyPayload) -> None:
        if isinstance(removed, MissingPayload):
            excused = isinstance(delivered, MissingPayload) or removed.hash in self._scenario.doubtful
            if not excused:
                raise self.broken(f"{name(removed.hash)} is removed without its content")
        elif isinstance(delivered, Payload) and (difference := _difference(removed, delivered)):
            raise self.broken(f"{name(removed.hash)} is removed with other {difference} than it was delivered with")

    def _add(self, block: AnyPayload) -> None:
        story, who = self._story, name(block.hash)
        if isinstance(block, MissingPayload):
            header = story.headers.get(block.hash)
            if header is None:
                raise self.broken(f"{who} is delivered without its content, and nobody gave it up")
        else:
            header = block
            known = self._model.complete.get(block.hash)
            if known is None:
                raise self.broken(f"{who} is delivered, but it is not complete: {self._blocks.lacking(block.hash)}")
            if difference := _difference(block, known):
                raise self.broken(f"{who} is delivered with other {difference} than the model has")
            self._published(block)
        below = story.chain[-1].hash if story.chain else getattr(self._model.chain.root, "hash", header.parent)
        if header.parent != below:
            raise self.broken(f"{who} is delivered on {name(below)}, its parent is {name(header.parent)}")
        story.headers[block.hash] = replace(header, updates={}) if isinstance(header, Payload) else header
        story.chain.append(block)

    def _published(self, block: Payload) -> None:
        honest = self._scenario.payloads[block.hash]
        if block.hash in self._scenario.misled:
            return
        if self._scenario.settings.tracked is None:
            if difference := _difference(block, honest):
                raise self.broken(f"{name(block.hash)} is delivered with other {difference} than were published")
        elif not (block.updates.items() <= honest.updates.items() and block.deletes <= honest.deletes):
            raise self.broken(f"{name(block.hash)} is delivered with content that nobody published")

    # --- reports ---------------------------------------------------------------------------------------------

    def _divergence(self, event: Divergence) -> None:
        there = self._values.get(event.key, set())
        released = None in event.positions and self._scenario.little_memory  # only digests are left
        if event.kept == event.seen or not (released or {event.kept, event.seen} <= there):
            raise self.broken(f"{name(event.block)}: a divergence at {_key(event.key)} that is none")
        if event.block not in self._scenario.lied:
            raise self.broken(f"{name(event.block)}: a divergence at {_key(event.key)}, though nobody lied")
        self._reported |= {(event.block, event.key, event.seen), (event.block, event.key, event.kept)}

    def _supersede(self, event: Superseded) -> None:
        if event.block in self._model.complete and not self._model.chain.within_window(event.number):
            return  # it was complete before, and has been forgotten since
        try:
            self._model.supersede(event.block, event.delivered)
        except (ValueError, KeyError, StopIteration) as error:
            raise self.broken(f"{name(event.block)} is superseded wrongly: {error}") from None

    def _passed_over(self, header: BlockHeader) -> None:
        self._given_up.add(header.hash)
        head = max((block.number for block in [*self._story.chain[-1:], *self._ahead]), default=0)
        below = header.number < head - self._scenario.settings.reorg_threshold
        if below and header.hash not in (block.hash for block in self._ahead):
            return  # forgotten, not passed over
        if header.hash in self._model.complete:
            raise self.broken(f"{name(header.hash)} is given up, and it is complete")
        self._story.headers[header.hash] = header
        self._model.chain.give_up(header)

    # --- comparing -------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Law 2."""
        model, story = self._model.chain, self._story
        if self._follower.resuming or model.held:
            return
        if model.root is None:
            if self._follower.caught_up and model.starts():
                raise self.broken("everything is read, and nothing was delivered")
            return
        best = model.heaviest()
        if model.halted or not best:
            return
        head = story.chain[-1].hash if story.chain else model.root.hash
        if head not in best:
            if model.ambiguous:
                return  # who came first decided what was left behind
            raise self.broken(f"the head is {name(head)}, the heaviest are {', '.join(sorted(map(name, best)))}")
        if model.chain[-1].hash != head:
            model.adopt(head)
            model.ambiguous = True
        chain = [header.hash for header in model.chain]
        delivered = [block.hash for block in story.chain]
        if delivered[-len(chain) :] != chain[-len(delivered) :]:
            raise self.broken(f"the chain is {' '.join(map(name, delivered))}, not {' '.join(map(name, chain))}")

    def _dropped(self, event: Overflow) -> None:
        """Law 8."""
        if not event.positions:
            raise self.broken(f"{name(event.block)} is evicted, and nobody says where it begins")

    def _within_bounds(self) -> None:
        """Law 8."""
        settings, follower = self._scenario.settings, self._follower
        bounds, held = settings.bounds, follower.reassembler.held_bytes
        if held > bounds.open_bytes + bounds.finished_bytes + _VOTE_BYTES * bounds.votes:
            raise self.broken(f"{held} bytes are held under {bounds}")
        if follower.fullness > 1:
            raise self.broken(f"{follower.fullness:.0%} of the memory is taken")

    @property
    def _floor(self) -> int:
        """Blocks with a lower number may be forgotten."""
        chain = self._story.chain
        return chain[-1].number - self._scenario.settings.reorg_threshold if chain else -1

    def _number(self, block_hash: bytes) -> int:
        payload = self._scenario.payloads.get(block_hash)
        return 0 if payload is None else payload.number


def _difference(one: Payload, other: Payload) -> str | None:
    """What differs between two payloads, by name."""
    parts: dict[str, Callable[[Payload], object]] = {
        "identity": lambda block: (block.number, block.hash, block.parent, block.weight),
        "updates": lambda block: dict(block.updates),
        "deletes": lambda block: block.deletes,
    }
    return next((name for name, of in parts.items() if of(one) != of(other)), None)


def _key(key: bytes) -> str:
    """A key without its block's hash: the type and the rest."""
    return f"type {key[0]} {key[33:]!r}"
