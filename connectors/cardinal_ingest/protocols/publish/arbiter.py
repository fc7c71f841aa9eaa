"""Arbiter: one node's side of the protocol, for any number of publishers.

One copy of each block wins, the others are skipped; a copy that fails is requested from the others; a block is
acknowledged when it and all before it are verified and durable. Rules are cited by their number (P4 … P47;
``connectors/cardinal_ingest/docs/publish.md``), and the methods are in their order. The arbiter holds no item: it
passes them on as effects. It reads no clock and waits for nothing: every input carries ``now`` (seconds, rising), and
:meth:`Arbiter.tick` runs the clock rules.

Without ``reorg_threshold`` a block is its number, and there is one branch. With it a block is number and hash, and a
number in a response means the block of the receiver's branch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Final

from .blocks import Block, Line, Link, State, Tree
from .effects import (
    Acknowledged,
    BranchRefused,
    CatchUp,
    CatchUpStuck,
    Complete,
    Discard,
    Effect,
    Items,
    NodeError,
    Send,
    SourceError,
    Start,
)
from .items import Header, ItemSet, read_set
from .settings import ArbiterSettings
from .types import (
    NONE,
    Acknowledgement,
    BehindPublisher,
    BlockEnd,
    BlockId,
    BlockItemSet,
    EndCode,
    EndOfStream,
    EndStream,
    Failure,
    Request,
    ResendBlock,
    Response,
    SkipBlock,
    Status,
)

_HASH_SIZE: Final = 32
_FIRST_HEADERS_TO_BE_STUCK: Final = 3
_ORDERLY: Final = {EndCode.RESET, EndCode.TIMEOUT, EndCode.TOO_FAR_BEHIND}


class Arbiter:
    """See the module. ``acknowledged`` are a tree's blocks at start-up, with the hashes of their parents (P48)."""

    def __init__(
        self, settings: ArbiterSettings, acknowledged: Mapping[BlockId, bytes] | None = None, now: float = 0.0
    ) -> None:
        self._settings = settings
        self._forks = settings.reorg_threshold is not None
        self._tree: Tree | None = None
        if settings.reorg_threshold is not None:
            self._tree = Tree(settings.first, acknowledged or {}, settings.reorg_threshold)
        self._chain: Line = self._tree or Line(settings.first, settings.last_stored)
        self._links: dict[Hashable, Link] = {}
        self._attempts: defaultdict[int, int] = defaultdict(int)
        self._effects: list[Effect] = []
        self._now = now
        self._target = -1
        self._distance: int | None = None
        self._not_closer = 0
        self._alone_since = now
        self._notified = False
        self.ignored = 0
        """Sets and block ends without a block in progress (P15)."""

    # --- queries ------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int | None:
        """The highest acknowledged block; None while there is none."""
        return None if self._chain.empty else self._chain.last

    @property
    def open_blocks(self) -> int:
        """Blocks that are not acknowledged."""
        return len(self._chain.sorted(State.STREAMING, State.COMPLETE, State.WANTED, State.STORED))

    @property
    def floor(self) -> int:
        """The highest number of which nothing is accepted any more; -1 while there is none."""
        return self._chain.floor

    def lacks(self, block: BlockId) -> bool:
        """Return True for a block that :meth:`stored` would be news of."""
        known = self._chain.open.get(block)
        return block.number > self._chain.floor and (
            known is None or not (known.kept or known.state is State.ACKNOWLEDGED)
        )

    def joins(self, block: BlockId, parent: BlockId) -> bool:
        """Return True for a block that would be acknowledged as soon as it is stored."""
        return self._chain.joins(block, parent)

    def unlinked(self, block: BlockId) -> bool:
        """Return True for a block that came as stored and waits for an ancestor."""
        known = self._chain.open.get(block)
        return known is not None and known.state is State.STORED

    def must_wait(self, connection: Hashable) -> bool:
        """Return True while the next block of a publisher could not be accepted, for too many are open (P13, P47).

        Its stream is not read: Behind would say that a block is lacking. A block that is wanted is read from any.
        """
        link, chain, most = self._links.get(connection), self._chain, self._settings.max_open_blocks
        if link is None or link.block is not None or chain.sorted(State.WANTED):
            return False
        if self._tree is None:
            return chain.next > chain.last + most
        if link.at is None or (base := self._tree.base(link.at)) is None:
            return False
        return self._too_many(link, link.at.number + 1, base)

    # --- inputs -------------------------------------------------------------------------------------------------

    def connect(self, connection: Hashable, identity: str, now: float) -> list[Effect]:
        """A publisher opened a stream."""
        self._now = now
        former = self._links.get(connection)
        if former is not None:
            self._leave(former)
        self._links[connection] = Link(connection, identity)
        self._notified = False
        return self._taken()

    def receive(self, connection: Hashable, request: Request | None, now: float) -> list[Effect]:
        """A message came; None: one that is no request. What comes after the end is ignored."""
        self._now = now
        link = self._links.get(connection)
        if link is not None:
            match request:
                case BlockItemSet(items):
                    self._set(link, items)
                case BlockEnd(number):
                    self._block_end(link, number)
                case EndStream():
                    self._end_stream(link, request)
                case _:
                    self._invalid(link)
        return self._taken()

    def disconnect(self, connection: Hashable, now: float) -> list[Effect]:
        """A stream was lost."""
        self._now = now
        link = self._links.get(connection)
        if link is not None:
            self._leave(link)
            self._perhaps_source_error()
        return self._taken()

    def end(self, connection: Hashable, status: Status, now: float) -> list[Effect]:
        """End a stream for a reason of the service: the node cannot serve publishers now."""
        self._now = now
        link = self._links.get(connection)
        if link is not None:
            self._close(link, status, link.block.number if link.block else 0)
            self._leave(link)
        return self._taken()

    def verified(self, block: BlockId, attempt: int, now: float) -> list[Effect]:
        """A complete copy passed verification."""
        self._now = now
        found = self._current(block, attempt, State.COMPLETE)
        if found is not None:
            found.verified = True
            self._acknowledge(found)
        return self._taken()

    def persisted(self, block: BlockId, attempt: int, now: float) -> list[Effect]:
        """A complete copy is durable."""
        self._now = now
        found = self._current(block, attempt, State.COMPLETE)
        if found is not None:
            found.persisted = True
            self._acknowledge(found)
        return self._taken()

    def failed(self, block: BlockId, attempt: int, why: Failure, now: float) -> list[Effect]:
        """A copy failed."""
        self._now = now
        states = (State.COMPLETE,) if why is Failure.PERSISTENCE else (State.COMPLETE, State.STREAMING)
        found = self._current(block, attempt, *states)
        if found is not None:
            if why is Failure.BAD:
                self._bad(found)
            elif why is Failure.UNDECIDED:
                self._want(found)
            else:
                self._persistence_failed(found)
        return self._taken()

    def stored(self, block: BlockId, parent: bytes, now: float) -> list[Effect]:
        """A block is here, verified and durable, from another source; ``parent`` is empty without forks."""
        self._now = now
        self._stored(block, BlockId(block.number - 1, parent))
        return self._taken()

    def tick(self, now: float) -> list[Effect]:
        """Run the clock rules: P18, P30, P23, P31."""
        self._now = now
        settings = self._settings
        for block in self._chain.sorted(State.STREAMING):
            if block.proven and now - block.heard >= settings.proof_grace:
                self._complete(block)
        for block in self._chain.sorted(State.STREAMING):
            idle, age = now - block.heard, now - block.began
            if block.state is State.STREAMING and (idle >= settings.idle_timeout or age >= settings.block_timeout):
                self._time_out(block)
        for block in self._chain.sorted(State.WANTED):
            if block.id in self._chain.open and now - block.began >= settings.resend_grace:
                self._request_from_all(block)
        if not self._links and now - self._alone_since >= settings.unavailable_after:
            self._source_error()
        return self._taken()

    def shutdown(self, now: float) -> list[Effect]:
        """End all streams in good order (P32)."""
        self._now = now
        for link in list(self._links.values()):
            self._close(link, Status.SUCCESS, link.at.number if link.at else 0)
        for block in self._chain.sorted(State.STREAMING):
            del self._chain.open[block.id]
        return self._taken()

    # --- sets (P3 to P5, P15 to P19) ----------------------------------------------------------------------------

    def _set(self, link: Link, items: tuple[bytes, ...]) -> None:
        seen = read_set(items)
        if seen is None or (seen.header is None and seen.content and link.block is not None and link.block.proven):
            self._invalid(link)
            return
        if seen.header is not None:
            self._header(link, seen.header)
        elif link.block is None:
            self.ignored += 1
        if link.block is not None:
            self._take_items(link, link.block, seen, items)

    def _take_items(self, link: Link, block: Block, seen: ItemSet, items: tuple[bytes, ...]) -> None:
        block.size += seen.size
        block.items += len(items)
        if block.size > self._settings.max_block_bytes or block.items > self._settings.max_block_items:
            self._invalid(link)  # P16
            return
        block.heard = self._now
        block.proven = seen.proven
        self._effects.append(Items(block.id, block.attempt, items))

    def _block_end(self, link: Link, number: int) -> None:
        block = link.block
        if block is None:
            self.ignored += 1
        elif block.proven and block.number == number:
            self._complete(block)
        else:
            self._invalid(link)

    def _invalid(self, link: Link) -> None:
        """P4: the block in progress is dropped even if it is proven."""
        block = link.block
        self._close(link, Status.INVALID_REQUEST, block.number if block else 0)
        if block is not None:
            self._drop(block)

    def _header(self, link: Link, header: Header) -> None:
        """Judge a header: first what becomes of the block in progress, then the rows."""
        block, parent = BlockId(header.number, header.hash), BlockId(header.number - 1, header.parent)
        if not self._forks:
            block, parent = BlockId(block.number), BlockId(parent.number)
        known = self._chain.open.get(block)
        if self._forks and (
            not len(block.hash) == len(parent.hash) == _HASH_SIZE
            or (known is not None and known.state is State.ACKNOWLEDGED and known.parent != parent)
        ):
            self._invalid(link)
            return
        self._chain.begin(block.number)
        turn = self._forks and link.offered not in (None, parent)
        first, link.offered = link.offered is None, block
        if turn:
            self._send(link, Acknowledgement(NONE))
            link.acknowledged = link.at = None
            link.run = []
        current = link.block
        if current is not None and current.proven:
            self._complete(current)
        elif current is not None and not self._restarts(current, block, parent):
            self._leave_block(link, current, block, parent)
        link.requested.discard(block)
        if self._tree is None:
            self._judge_number(link, block, first=first)
        else:
            self._judge_branch(self._tree, link, block, parent, turn=turn)

    def _restarts(self, current: Block, block: BlockId, parent: BlockId) -> bool:
        """P19: the header of the block in progress again; a branch that was cut off cannot be gone on with."""
        attached = self._tree is None or self._tree.base(parent) is not None
        return (current.id, current.parent) == (block, parent) and attached

    def _leave_block(self, link: Link, current: Block, block: BlockId, parent: BlockId) -> None:
        """P19: another header in mid-block. A publisher that obeys or changes branches did not fail."""
        obeyed = block.number < current.number and block in link.requested
        on_branch = self._chain.holds(current.id, block) or self._chain.holds(parent, current.id)
        if obeyed or not on_branch:
            self._want(current, request=False)
        else:
            self._drop(current)

    # --- rows of a header (P6 to P14, P43 to P47) ----------------------------------------------------------------

    def _judge_number(self, link: Link, block: BlockId, *, first: bool) -> None:
        chain, settings = self._chain, self._settings
        number, last = block.number, chain.last
        known = chain.open.get(block)
        if number <= last:
            if chain.empty:  # P8
                self._skip(link, block)
            elif last - number <= settings.duplicate_window:  # P9
                self._skip(link, block)
                self._send_acknowledgement(link, last)
            else:  # P10
                self._close(link, Status.DUPLICATE_BLOCK, number)
        elif known is not None:
            self._judge_known(link, known)
        elif number > chain.next:
            self._send(link, BehindPublisher(last & NONE))
            self._catch_up(chain.next, number - 1)
            if first:
                self._first_header(number - last)
        elif number > last + settings.max_open_blocks:  # P13
            self._send(link, BehindPublisher(last & NONE))
        else:  # P12
            self._accept(link, Block(block, BlockId(number - 1)))

    def _judge_branch(self, tree: Tree, link: Link, block: BlockId, parent: BlockId, *, turn: bool) -> None:
        """P43: below the floor, with two parents, of an unknown parent, or attached."""
        known = tree.open.get(block)
        number = block.number
        if number <= tree.floor:
            if tree.start is not None and number < tree.start:
                self._skip(link, block)
            else:
                self._close(link, Status.DUPLICATE_BLOCK, number)
            return
        if known is not None and known.parent != parent and known.state is not State.WANTED:
            link.at = None
            self._send(link, BehindPublisher((number - 1) & NONE))
            return
        base = tree.base(parent)
        if base is None:
            self._lead_back(tree, link, block)
            return
        link.led, link.step = None, 1
        self._judge_attached(tree, link, block, parent, base, turn=turn)

    def _judge_attached(
        self, tree: Tree, link: Link, block: BlockId, parent: BlockId, base: BlockId, *, turn: bool
    ) -> None:
        """P9, P6, P7, P11 to P13: a header whose parent is acknowledged, or open above an acknowledged block."""
        known = tree.open.get(block)
        begins = not link.run
        if begins:
            link.run = [parent]
        if tree.acknowledged(block):
            link.extend(block, parent)
            self._skip(link, block)
            self._send_acknowledgement(link, block.number)
            return
        if begins and tree.acknowledged(parent):
            if turn:
                self._send_acknowledgement(link, parent.number)
            else:
                link.acknowledged = parent.number
        if known is None and self._full_for(link, block.number, base):
            link.at = parent
            self._send(link, BehindPublisher(base.number & NONE))
            return
        link.extend(block, parent)
        if known is None:
            self._accept(link, Block(block, parent))
        else:
            known.parent = parent
            self._judge_known(link, known)

    def _judge_known(self, link: Link, block: Block) -> None:
        """P6, P7, P11, P19: a block that has a state."""
        if link.block is block or (block.state is State.WANTED and self._eligible(link, block)):
            self._accept(link, block)
        else:
            self._skip(link, block.id)

    def _full_for(self, link: Link, number: int, base: BlockId) -> bool:
        """P47: a branch, an identity and a number are bounded."""
        own = [block for block in self._chain.open.values() if block.identity == link.identity]
        return (
            self._too_many(link, number, base)
            or sum(block.number == number for block in own) >= self._settings.side_branches
        )

    def _too_many(self, link: Link, number: int, base: BlockId) -> bool:
        most, own = self._settings.max_open_blocks, self._chain.sorted(State.STREAMING, State.COMPLETE, State.WANTED)
        return number > base.number + most or sum(block.identity == link.identity for block in own) >= most

    def _lead_back(self, tree: Tree, link: Link, block: BlockId) -> None:
        """P45: the parent is unknown; lead the publisher back, further each time that it obeyed."""
        number, last, floor = block.number, tree.last, tree.floor
        link.at = None
        if number == floor + 1:
            self._effects.append(BranchRefused(block, link.name))
            self._close(link, Status.ERROR, number, floor & NONE)
            return
        if link.led is None:
            link.led = min(number - 2, last)
        elif number <= link.led + 1:
            link.led = min(link.led, number - 1) - link.step
            link.step *= 2
        link.led = max(link.led, floor)
        self._send(link, BehindPublisher(link.led & NONE))
        if number - 1 > last:
            self._catch_up(last + 1, number - 1)

    def _accept(self, link: Link, block: Block) -> None:
        restart = link.block is block
        if restart:
            self._effects.append(Discard(block.id, block.attempt))
        self._chain.open[block.id] = block
        self._attempts[block.number] += 1
        block.state, block.attempt = State.STREAMING, self._attempts[block.number]
        block.sender, block.identity = link, link.identity
        block.verified = block.persisted = block.proven = False
        block.size = block.items = 0
        block.heard = self._now
        if not restart:
            block.began = self._now
        block.surpassed = max(
            (
                other.number
                for other in self._chain.open.values()
                if other.state is State.COMPLETE and self._chain.holds(other.id, block.id)
            ),
            default=-1,
        )
        link.block, link.at = block, block.id
        self._effects.append(Start(block.id, block.attempt, link.name, block.parent))

    def _skip(self, link: Link, block: BlockId) -> None:
        link.at = block
        self._send(link, SkipBlock(block.number))

    def _first_header(self, distance: int) -> None:
        """P14: report a catch-up that publishers' first headers do not get closer to."""
        if self._distance is not None and distance >= self._distance:
            self._not_closer += 1
        else:
            self._not_closer = 0
        self._distance = distance
        if self._not_closer == _FIRST_HEADERS_TO_BE_STUCK:
            self._not_closer = 0
            self._effects.append(CatchUpStuck(self._target))

    def _catch_up(self, first: int, last: int) -> None:
        if last > self._target:
            self._target = last
            self._effects.append(CatchUp(first, last))

    # --- the end of a copy (P17, P18, P20 to P26) ----------------------------------------------------------------

    def _complete(self, block: Block) -> None:
        """P17, P18; then P29 and P23."""
        link = block.sender
        assert link is not None  # noqa: S101 - a streaming block has a sender
        block.state, link.block = State.COMPLETE, None
        self._effects.append(Complete(block.id, block.attempt, link.name))
        for slow in self._chain.sorted(State.STREAMING):
            limit = max(slow.number, slow.surpassed) + self._settings.stall_distance
            if not slow.proven and block.number > limit and self._chain.holds(block.id, slow.id):
                self._time_out(slow)
        if self._links.get(link.name) is link:
            for wanted in self._chain.sorted(State.WANTED):
                if (
                    wanted.number < block.number
                    and wanted.id not in link.requested
                    and self._chain.holds(block.id, wanted.id)
                    and self._eligible(link, wanted)
                ):
                    self._request(link, wanted)
                    break

    def _end_stream(self, link: Link, end: EndStream) -> None:
        self._leave(link)
        earliest, latest = end.earliest_block_number, end.latest_block_number
        if end.end_code == EndCode.TOO_FAR_BEHIND and earliest <= latest < NONE and self._chain.start is not None:
            first = self._chain.next
            if latest >= first:
                self._catch_up(first, latest)
        if end.end_code not in _ORDERLY:
            self._perhaps_source_error()

    def _leave(self, link: Link) -> None:
        """P20: the connection is gone, and what it sent is complete or dropped."""
        self._gone(link)
        block = link.block
        if block is None:
            return
        if block.proven:
            self._complete(block)
        else:
            self._drop(block)

    def _drop(self, block: Block) -> None:
        """P21: the copy failed by its publisher's fault."""
        assert block.identity is not None  # noqa: S101 - a copy has a sender
        block.excluded.add(block.identity)
        self._want(block)

    def _want(self, block: Block, *, request: bool = True) -> None:
        """P21, P22: a copy is dropped; those that have passed the block are requested at once."""
        self._discard(block)
        block.state = State.WANTED
        block.began = self._now
        for link in self._links.values():
            link.requested.discard(block.id)
        if request:
            for link in self._links.values():
                if self._chain.holds(link.at, block.id) and self._eligible(link, block):
                    self._request(link, block)

    def _discard(self, block: Block) -> None:
        self._effects.append(Discard(block.id, block.attempt))
        if block.sender is not None and block.sender.block is block:
            block.sender.block = None

    def _request(self, link: Link, block: Block) -> None:
        link.requested.add(block.id)
        self._send(link, ResendBlock(block.number))

    def _request_from_all(self, block: Block) -> None:
        """P23, P47: nobody took it in time; a branch that nobody continues is forgotten."""
        passed = [link for link in self._links.values() if self._chain.holds(link.at, block.id)]
        if self._tree is not None and not passed:
            above = self._tree.descendants(block.id)
            del self._chain.open[block.id]
            for node in above:
                if node.state is not State.STORED:
                    self._forget(node)
            return
        block.excluded.clear()
        block.began = self._now
        self._effects.append(CatchUp(block.number, block.number))
        for link in passed:
            self._request(link, block)

    def _forget(self, block: Block) -> None:
        """P47: drop a block that its branch cannot need any more."""
        self._chain.open.pop(block.id, None)
        if block.state is State.STREAMING:
            assert block.sender is not None  # noqa: S101 - a streaming block has a sender
            self._send(block.sender, SkipBlock(block.number))
        if block.state in (State.STREAMING, State.COMPLETE):
            self._discard(block)

    def _eligible(self, link: Link, block: Block) -> bool:
        """P21: not excluded, or all who can supply the block are."""
        return link.identity not in block.excluded or all(
            other.identity in block.excluded
            for other in self._links.values()
            if other.at is None or self._chain.holds(other.at, block.id) or self._chain.holds(block.id, other.at)
        )

    def _bad(self, block: Block) -> None:
        """P24: verification failed."""
        link = block.sender
        assert link is not None  # noqa: S101 - a copy has a sender
        if self._links.get(link.name) is link:
            self._close(link, Status.BAD_BLOCK_PROOF, block.number)
        self._drop(block)
        self._leave(link)

    def _persistence_failed(self, block: Block) -> None:
        """P26: this node failed; everybody leaves, and only what is durable stays."""
        for link in list(self._links.values()):
            self._close(link, Status.PERSISTENCE_FAILED, block.number)
        for node in self._chain.sorted(State.STREAMING, State.COMPLETE, State.WANTED):
            node.excluded.clear()
            if not node.kept:
                del self._chain.open[node.id]
                if node.state is not State.WANTED:
                    self._discard(node)
        self._notified = True
        self._effects.append(NodeError())

    def _time_out(self, block: Block) -> None:
        """P29, P30: its publisher is too slow."""
        link = block.sender
        assert link is not None  # noqa: S101 - a streaming block has a sender
        self._close(link, Status.TIMEOUT, block.number)
        self._drop(block)

    # --- acknowledging (P27, P28, P46, P47) ----------------------------------------------------------------------

    def _current(self, block: BlockId, attempt: int, *states: State) -> Block | None:
        found = self._chain.open.get(block)
        return found if found is not None and found.attempt == attempt and found.state in states else None

    def _stored(self, block: BlockId, parent: BlockId) -> None:
        chain = self._chain
        chain.begin(block.number)
        known = chain.open.get(block)
        if block.number <= chain.floor or (known is not None and known.state is State.ACKNOWLEDGED):
            return
        if known is None:
            known = chain.open[block] = Block(block, parent)
        elif known.kept:
            return
        if known.state is State.STREAMING:
            assert known.sender is not None  # noqa: S101 - a streaming block has a sender
            self._send(known.sender, SkipBlock(block.number))
        if known.state in (State.STREAMING, State.COMPLETE):
            self._discard(known)
        known.state, known.parent, known.identity = State.STORED, parent, None
        self._acknowledge(known)

    def _acknowledge(self, block: Block) -> None:
        """P27: acknowledge what follows, once to each connection."""
        chain = self._chain
        new = chain.acknowledge(block)
        if not new:
            return
        self._effects += [Acknowledged(node.id, node.parent) for node in new]
        if chain.last >= self._target:
            self._not_closer = 0
        for link in self._links.values():
            oldest = chain.last - self._settings.max_open_blocks
            link.requested = {one for one in link.requested if one.number > oldest}
            number = self._acknowledged_for(link)
            if number is not None:
                self._send_acknowledgement(link, number)
        for node in chain.expired():
            self._forget(node)
        for number in [number for number in self._attempts if number <= chain.floor]:
            del self._attempts[number]

    def _acknowledged_for(self, link: Link) -> int | None:
        """P46: the highest acknowledged block of the run, or the parent of its first header."""
        if self._tree is None:
            return self._chain.last
        for i in range(len(link.run) - 1, -1, -1):
            if self._tree.acknowledged(link.run[i]):
                number = link.run[i].number
                del link.run[:i]
                return number
        return None

    def _send_acknowledgement(self, link: Link, number: int) -> None:
        if link.acknowledged is None or number > link.acknowledged:
            link.acknowledged = number
            self._send(link, Acknowledgement(number))

    # --- sending -------------------------------------------------------------------------------------------------

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _send(self, link: Link, response: Response) -> None:
        self._effects.append(Send(link.name, response))

    def _close(self, link: Link, status: Status, proximate: int, number: int | None = None) -> None:
        """Send the last response of a stream; the connection is gone."""
        if number is None:
            number = NONE if self._chain.empty else self._chain.last
            if self._forks and not self._chain.empty:
                number = self._chain.floor & NONE if link.acknowledged is None else link.acknowledged
        self._send(link, EndOfStream(status, number, proximate))
        self._gone(link)

    def _gone(self, link: Link) -> None:
        if self._links.get(link.name) is link:
            del self._links[link.name]
            if not self._links:
                self._alone_since = self._now

    def _perhaps_source_error(self) -> None:
        if not self._links:
            self._source_error()

    def _source_error(self) -> None:
        if not self._notified:
            self._notified = True
            self._effects.append(SourceError())
