"""Blocks with their receipts and uncles from a node, alone by hash or many by number.

Rules:

1. Whatever belongs to one block is asked for together, on arrival: an orphan may be gone a moment later (facts on
   nodes, rule 5).
2. ``None`` is "the node does not have it now"; an empty list of receipts is a statement of the node. The two are
   never mixed.
3. What is fetched by number is put together again only where receipts name the block's hash: between two answers
   the chain may have moved. Otherwise the receipts are asked for by hash.
4. Nothing here judges a block: see :mod:`.gate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from cardinal.apps.evm.rpc.structures import RpcBlock, RpcHeader, RpcReceipt, RpcTransaction
from cardinal.errors import NodeAnswerError

from .headers import Header, header_of
from .rpc import NO_METHOD, Call, Outcome, RpcClient, is_null, parse
from .synced import lacks_bytes, with_bytes

if TYPE_CHECKING:
    from .evidence import Evidence

__all__ = ["Answer", "BlockFetcher", "Fetched", "Header", "Tag"]

Tag: TypeAlias = Literal["latest", "safe", "finalized"]


_Value = TypeVar("_Value")
_NO_UNCLES: Final = b'"uncles":[]'
"""As most nodes write it; what is written otherwise is read a little earlier, that is all."""
_LAST: Final = 4096
"""Bytes at the end of a block that are looked at first: most nodes sort its fields by name."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A block as the node gave it.

    ``size`` is the length of the answers in bytes. ``evidence`` is what was said of its state, where that was asked for
    together with it (:mod:`.evidence`).
    """

    header: Header
    block: RpcBlock
    receipts: list[RpcReceipt]
    uncles: list[RpcHeader]
    size: int
    evidence: Evidence | None = None


class Answer(NamedTuple):
    """What a node said of a block and of its receipts; None where it was not asked for those together."""

    block: Outcome
    receipts: Outcome | None

    @property
    def whole(self) -> bool:
        """Whether both are there, and neither is null."""
        return _is_there(self.block) and _is_there(self.receipts)

    @property
    def plain(self) -> bool:
        """Whether there is nothing to do but to read it, as far as its text shows: it names no uncles."""
        if not self.whole:
            return False
        text = memoryview(_got(self.block))
        return bytes(text[-_LAST:]).rfind(_NO_UNCLES) >= 0 or _NO_UNCLES in bytes(text)

    @property
    def size(self) -> int:
        """Bytes of both."""
        return sum(len(part) for part in self if isinstance(part, msgspec.Raw))

    @property
    def texts(self) -> tuple[bytes, bytes]:
        """Their JSON, where both are there."""
        return bytes(_got(self.block)), b"" if self.receipts is None else bytes(_got(self.receipts))


class BlockFetcher:
    """Asks a node for blocks, in the way that this node can: whole receipts, or one for each transaction."""

    def __init__(self, client: RpcClient) -> None:
        self._client = client
        self._whole_receipts = True

    async def header(self, named: int | Tag) -> Header | None:
        """The header under a number or tag of the node's chain; None where the node has none."""
        name = hex(named) if isinstance(named, int) else named
        return await self._client.read(Header, "eth_getBlockByNumber", name, False)  # noqa: FBT003 - JSON-RPC

    async def header_by_hash(self, block_hash: bytes) -> Header | None:
        """The header with this hash; None where the node has none."""
        name = _text(block_hash)
        return await self._client.read(Header, "eth_getBlockByHash", name, False)  # noqa: FBT003 - JSON-RPC

    async def headers(self, numbers: Iterable[int]) -> list[Header | None]:
        """The headers at these heights of the node's chain."""
        calls = [Call("eth_getBlockByNumber", (hex(number), False)) for number in numbers]
        return [parse(Header, _got(outcome), "eth_getBlockByNumber") for outcome in await self._batch(calls)]

    async def by_hash(self, block_hash: bytes) -> Fetched | None:
        """The block with this hash, canonical or not; None where the node lacks it or any part of it."""
        name = _text(block_hash)
        calls = [Call("eth_getBlockByHash", (name, True))]
        if self._whole_receipts:
            calls.append(Call("eth_getBlockReceipts", (name,)))
        outcomes = await self._batch(calls)
        return await self.assembled(Answer(outcomes[0], outcomes[1] if self._whole_receipts else None))

    async def answers(self, numbers: Sequence[int]) -> list[Answer]:
        """What the node says of the blocks at these heights, in order, unread."""
        calls = [Call("eth_getBlockByNumber", (hex(number), True)) for number in numbers]
        if self._whole_receipts:
            calls += [Call("eth_getBlockReceipts", (hex(number),)) for number in numbers]
        outcomes = await self._batch(calls)
        receipts: Sequence[Outcome | None] = outcomes[len(numbers) :] or [None] * len(numbers)
        return [Answer(*parts) for parts in zip(outcomes[: len(numbers)], receipts, strict=True)]

    async def added(self, answers: Sequence[Answer]) -> list[Answer | Fetched | None]:
        """Answers, and the blocks to which more had to be asked for; None where the node lacks one.

        Those to which nothing has to be added are left unread: :meth:`assembled` reads one when its turn has come. What
        is read long before it is checked has left the processor's cache by then (measured at 2 to 7 % of all the work).
        """
        blocks: list[Answer | Fetched | None] = list(answers)
        if lacking := [at for at, answer in enumerate(answers) if not answer.plain]:
            asked = await asyncio.gather(*(self.assembled(answers[at]) for at in lacking))
            for at, block in zip(lacking, asked, strict=True):
                blocks[at] = block
        return blocks

    async def call(self, kind: type[_Value], method: str, *params: object) -> _Value | None:
        """Any other method's result as a value of this type; None for null."""
        return await self._client.read(kind, method, *params)

    async def calls(self, calls: Sequence[tuple[str, tuple[object, ...]]]) -> list[msgspec.Raw]:
        """The results of many calls, unread; NodeAnswerError where one is refused."""
        return [_got(outcome) for outcome in await self._batch([Call(*one) for one in calls])]

    async def _batch(self, calls: Sequence[Call]) -> list[Outcome]:
        return await self._client.batch(calls)

    async def assembled(self, answer: Answer) -> Fetched | None:
        """A block and what belongs to it, from the answers that are there and those that are still missing."""
        return _together(answer) or await self._completed(answer)

    async def _completed(self, answer: Answer) -> Fetched | None:
        """A block of which something has to be asked for."""
        receipts = answer.receipts
        raw = _got(answer.block)
        block = parse(RpcBlock, raw, "eth_getBlockBy…")
        if block is None:
            return None
        block = await with_bytes(self, block)
        header = header_of(block)
        name = header.hash
        size = len(raw)
        if isinstance(receipts, NodeAnswerError) and receipts.code in NO_METHOD:
            self._whole_receipts, receipts = False, None
        if receipts is None:
            found = await self._receipts_each(name, block.transactions)
        else:
            raw = _got(receipts)
            size += len(raw)
            found = parse(list[RpcReceipt], raw, "eth_getBlockReceipts")
            if found is not None and not _all_of(found, name):
                found = await self._receipts_of(name)
        if found is None:
            return None
        uncles = await self._uncles(name, len(block.uncles))
        return None if uncles is None else Fetched(header, block, found, uncles, size)

    async def _receipts_of(self, name: str) -> list[RpcReceipt] | None:
        return await self._client.read(list[RpcReceipt], "eth_getBlockReceipts", name)

    async def _receipts_each(self, name: str, transactions: Sequence[RpcTransaction]) -> list[RpcReceipt] | None:
        """One receipt per transaction; None where one is missing or belongs to another block by now."""
        calls = [Call("eth_getTransactionReceipt", (transaction.hash,)) for transaction in transactions]
        receipts: list[RpcReceipt] = []
        for outcome in await self._batch(calls):
            receipt = parse(RpcReceipt, _got(outcome), "eth_getTransactionReceipt")
            if receipt is None or receipt.block_hash != name:
                return None
            receipts.append(receipt)
        return receipts

    async def _uncles(self, name: str, count: int) -> list[RpcHeader] | None:
        """The uncles' headers; None where one is not to be had."""
        if count == 0:
            return []
        calls = [Call("eth_getUncleByBlockHashAndIndex", (name, hex(index))) for index in range(count)]
        uncles = [
            parse(RpcHeader, _got(outcome), "eth_getUncleByBlockHashAndIndex") for outcome in await self._batch(calls)
        ]
        have = [uncle for uncle in uncles if uncle is not None]
        return have if len(have) == count else None


def _together(answer: Answer) -> Fetched | None:
    """A block from what there is, where nothing more has to be asked for; NodeAnswerError where it is no block."""
    written, receipts = answer
    if isinstance(written, NodeAnswerError) or receipts is None or isinstance(receipts, NodeAnswerError):
        return None
    found = parse(list[RpcReceipt], receipts, "eth_getBlockReceipts")
    block = parse(RpcBlock, written, "eth_getBlockBy…")
    if block is None or found is None or block.uncles or lacks_bytes(block):
        return None
    header = header_of(block)
    return Fetched(header, block, found, [], len(written) + len(receipts)) if _all_of(found, header.hash) else None


def _is_there(outcome: Outcome | None) -> bool:
    """Whether it is an answer, and not null."""
    return isinstance(outcome, msgspec.Raw) and not is_null(outcome)


def _all_of(receipts: Sequence[RpcReceipt], name: str) -> bool:
    """Whether receipts are of the block with this hash."""
    return [receipt.block_hash for receipt in receipts] == [name] * len(receipts)


def _got(outcome: Outcome) -> msgspec.Raw:
    """The result; the node's error is raised."""
    if isinstance(outcome, NodeAnswerError):
        raise outcome
    return outcome


def _text(block_hash: bytes) -> str:
    return "0x" + block_hash.hex()
