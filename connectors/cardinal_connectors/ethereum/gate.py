"""What stands between a node and the topics: a block that contradicts itself does not pass.

Rules:

1. Every block is checked whole: header hash, roots of transactions, receipts and withdrawals, bloom, log order
   (:func:`cardinal.apps.evm.verify`), and that it is the child of the block that its place asks for.
2. A block that fails is fetched again by hash, so often as the settings say, and then from each other node: one bad
   answer does not stop a stream. After that its :class:`~cardinal.errors.IntegrityError` is raised, and the block is
   never given.
3. A chain that does not satisfy a check leaves it out (its preset, or ``unchecked``). Its hash, and that it is the
   child of the block below it, a block has to show on every chain.
4. A node that lacks the block by then has moved on: :class:`.walk.ChainMovedError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cardinal.errors import FeedError, IntegrityError

from .deltas import delta_of
from .rules import Rules
from .walk import ChainMovedError

if TYPE_CHECKING:
    from cardinal.apps.evm import StateDelta
    from cardinal.apps.evm.rpc.block import EncodedBlock
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import Finality

    from .fetch import BlockFetcher, Fetched, Header
    from .settings import FeedSettings
    from .totals import Totals


class Admitted(NamedTuple):
    """A block that passed: its header, its total difficulty, and what is published of it."""

    header: Header
    total: int
    payload: Payload


class Blocks(Protocol):
    """A node that is asked for a block again, and for what proves its state."""

    fetcher: BlockFetcher

    async def by_hash(self, block_hash: bytes) -> Fetched | None:
        """The block with this hash; None where the node lacks it."""
        ...


class Gate:
    """Admits blocks of one node.

    Arguments:
        node: where a block that failed is fetched again.
        elsewhere: other nodes' blocks, asked after that.
        totals: what total difficulties are checked against.
        chain_id: whose paths the payloads have.
        settings: how often a block is fetched again, and the pause between.

    """

    def __init__(
        self,
        node: Blocks,
        totals: Totals,
        chain_id: int,
        settings: FeedSettings,
        *,
        elsewhere: Callable[[], Sequence[Blocks]] = lambda: (),
    ) -> None:
        self._node = node
        self._elsewhere = elsewhere
        self._rules = Rules.of(chain_id, settings)
        self._totals = totals
        self._settings = settings

    async def admit(self, fetched: Fetched, finality: Finality | None) -> Admitted:
        """The block with this hash, checked; it may be a later answer of the node than the one given here.

        Raises:
            IntegrityError: no answer of the node passed.
            ChainMovedError: the node does not have the block any more.

        """
        wanted, height = fetched.header.id, fetched.header.height
        failure: IntegrityError | None = None
        given_by = self._node
        sources: list[Blocks] = [self._node] * (self._settings.verifications - 1)
        for attempt, source in enumerate(chain(sources, self._others()), 1):
            try:
                return await self._admitted(fetched, given_by, wanted, finality)
            except IntegrityError as wrong:
                failure = wrong
            await asyncio.sleep(self._settings.rpc.pause(min(attempt, self._settings.verifications)))
            again = await self._again(source, wanted)
            if again is None and source is self._node:
                raise ChainMovedError(
                    f"The node does not have block {height} (0x{wanted.hex()}) any more."
                ) from failure
            if again is not None:
                fetched, given_by = again, source
        return await self._admitted(fetched, given_by, wanted, finality)

    async def _admitted(self, fetched: Fetched, given_by: Blocks, wanted: bytes, finality: Finality | None) -> Admitted:
        written = self._rules.checked(fetched.block, fetched.receipts, fetched.uncles, wanted)
        total = await self._totals.of(fetched.header)
        delta = await self._delta(written, fetched, given_by)
        return Admitted(fetched.header, total, self._rules.payload(written, total, finality, delta))

    async def _delta(self, written: EncodedBlock, fetched: Fetched, given_by: Blocks) -> StateDelta | None:
        """What the block did to the state. A node that stands by and cannot say it counts like one that lies."""
        if not self._settings.state:
            return None
        try:
            return await delta_of(given_by.fetcher, written, fetched, self._settings, self._rules.chain.chain_id)
        except FeedError as refused:
            if given_by is self._node or isinstance(refused, IntegrityError):
                raise
            raise IntegrityError(
                f"The state delta of block {written.number} cannot be proven elsewhere: {refused}",
                number=written.number,
                block_hash=written.hash,
                check="state",
            ) from refused

    def _others(self) -> Iterator[Blocks]:
        """The other nodes, looked up only when they are needed."""
        yield from self._elsewhere()

    async def _again(self, source: Blocks, wanted: bytes) -> Fetched | None:
        """The block again; another node that does not answer is no reason to stop."""
        try:
            return await source.by_hash(wanted)
        except FeedError:
            if source is self._node:
                raise
            return None
