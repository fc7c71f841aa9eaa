"""Fetching of blocks with receipts and uncles from a node, one by hash or many by number.

Rules:

1. All parts of a block are requested together on arrival: the node may drop an orphan soon (facts on nodes, rule 5).
2. ``None``: the node does not have the block now; an empty list of receipts is a result.
3. A block and receipts fetched by number are combined only if the receipts name the block's hash: the chain may have
   changed between the two responses. Otherwise the receipts are requested by hash.
4. Nothing is verified here: see :mod:`cardinal_connectors.ethereum.verify.verifier`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from cardinal.apps.evm.rpc.structures import RpcBlock, RpcHeader, RpcReceipt, RpcTransaction
from cardinal.errors import NodeAnswerError
from cardinal_connectors.ethereum.rpc.client import NO_METHOD, Outcome, RpcCall, RpcClient, is_null, parse

from .blocks import BlockHeader, Fetched, header_of

__all__ = ["Answer", "BlockFetcher", "Tag"]

Tag: TypeAlias = Literal["latest", "safe", "finalized"]


_Value = TypeVar("_Value")
_NO_UNCLES: Final = b'"uncles":[]'
"""The form of most nodes; a block in another form is parsed a little earlier."""
_LAST: Final = 4096
"""Bytes at the end of a block that are searched first: most nodes sort its fields by name."""


class Answer(NamedTuple):
    """Unparsed results for a block and its receipts; None where receipts were not requested with it."""

    block: Outcome
    receipts: Outcome | None

    @property
    def whole(self) -> bool:
        """True if both are results, and neither is null."""
        return _is_there(self.block) and _is_there(self.receipts)

    @property
    def plain(self) -> bool:
        """True if no further request is needed, judged by its text: it is complete and names no uncles."""
        if not self.whole:
            return False
        text = memoryview(_got(self.block))
        return bytes(text[-_LAST:]).rfind(_NO_UNCLES) >= 0 or _NO_UNCLES in bytes(text)

    @property
    def size(self) -> int:
        """Size of both in bytes."""
        return sum(len(part) for part in self if isinstance(part, msgspec.Raw))

    @property
    def texts(self) -> tuple[bytes, bytes]:
        """Their JSON; both must be results."""
        return bytes(_got(self.block)), b"" if self.receipts is None else bytes(_got(self.receipts))


class BlockFetcher:
    """Fetches blocks from a node: receipts by block, or one by one where the node lacks that method."""

    def __init__(self, client: RpcClient) -> None:
        self._client = client
        self._whole_receipts = True

    async def header(self, named: int | Tag) -> BlockHeader | None:
        """The header under a number or tag of the node's chain; None where the node has none."""
        name = hex(named) if isinstance(named, int) else named
        return await self._client.read(BlockHeader, "eth_getBlockByNumber", name, False)  # noqa: FBT003 - JSON-RPC

    async def header_by_hash(self, block_hash: bytes) -> BlockHeader | None:
        """The header with this hash; None where the node has none."""
        name = _text(block_hash)
        return await self._client.read(BlockHeader, "eth_getBlockByHash", name, False)  # noqa: FBT003 - JSON-RPC

    async def headers(self, numbers: Iterable[int]) -> list[BlockHeader | None]:
        """The headers at these heights of the node's chain."""
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), False)) for number in numbers]
        return [parse(BlockHeader, _got(outcome), "eth_getBlockByNumber") for outcome in await self._batch(calls)]

    async def by_hash(self, block_hash: bytes) -> Fetched | None:
        """The block with this hash, canonical or not; None where the node lacks it or any part of it."""
        name = _text(block_hash)
        calls = [RpcCall("eth_getBlockByHash", (name, True))]
        if self._whole_receipts:
            calls.append(RpcCall("eth_getBlockReceipts", (name,)))
        outcomes = await self._batch(calls)
        return await self.assembled(Answer(outcomes[0], outcomes[1] if self._whole_receipts else None))

    async def answers(self, numbers: Sequence[int]) -> list[Answer]:
        """Unparsed results for the blocks at these heights, in order."""
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), True)) for number in numbers]
        if self._whole_receipts:
            calls += [RpcCall("eth_getBlockReceipts", (hex(number),)) for number in numbers]
        outcomes = await self._batch(calls)
        receipts: Sequence[Outcome | None] = outcomes[len(numbers) :] or [None] * len(numbers)
        return [Answer(*parts) for parts in zip(outcomes[: len(numbers)], receipts, strict=True)]

    async def added(self, answers: Sequence[Answer]) -> list[Answer | Fetched | None]:
        """Complete the results that need further requests; None where the node lacks a block.

        The others stay unparsed: :meth:`assembled` parses each just before its verification, while it is in the
        processor's cache (measured at 2 to 7 % of all the work).
        """
        blocks: list[Answer | Fetched | None] = list(answers)
        if lacking := [at for at, answer in enumerate(answers) if not answer.plain]:
            assembled = await asyncio.gather(*(self.assembled(answers[at]) for at in lacking))
            for at, block in zip(lacking, assembled, strict=True):
                blocks[at] = block
        return blocks

    async def call(self, kind: type[_Value], method: str, *params: object) -> _Value | None:
        """Any other method's result as a value of this type; None for null."""
        return await self._client.read(kind, method, *params)

    async def calls(self, calls: Sequence[tuple[str, tuple[object, ...]]]) -> list[msgspec.Raw]:
        """Unparsed results of many calls; NodeAnswerError where one is refused."""
        return [_got(outcome) for outcome in await self._batch([RpcCall(*one) for one in calls])]

    async def _batch(self, calls: Sequence[RpcCall]) -> list[Outcome]:
        return await self._client.batch(calls)

    async def assembled(self, answer: Answer) -> Fetched | None:
        """Assemble a block from its results and further requests; None where the node lacks a part."""
        return _together(answer) or await self._completed(answer)

    async def _completed(self, answer: Answer) -> Fetched | None:
        """Assemble a block that needs further requests."""
        receipts = answer.receipts
        text = raw = _got(answer.block)
        block = parse(RpcBlock, raw, "eth_getBlockBy…")
        if block is None:
            return None
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
        return None if uncles is None else Fetched(header, block, found, uncles, size, text=text)

    async def _receipts_of(self, name: str) -> list[RpcReceipt] | None:
        return await self._client.read(list[RpcReceipt], "eth_getBlockReceipts", name)

    async def _receipts_each(self, name: str, transactions: Sequence[RpcTransaction]) -> list[RpcReceipt] | None:
        """One receipt per transaction; None where one is missing or belongs to another block by now."""
        calls = [RpcCall("eth_getTransactionReceipt", (transaction.hash,)) for transaction in transactions]
        receipts: list[RpcReceipt] = []
        for outcome in await self._batch(calls):
            receipt = parse(RpcReceipt, _got(outcome), "eth_getTransactionReceipt")
            if receipt is None or receipt.block_hash != name:
                return None
            receipts.append(receipt)
        return receipts

    async def _uncles(self, name: str, count: int) -> list[RpcHeader] | None:
        """The uncles' headers; None where the node lacks one."""
        if count == 0:
            return []
        calls = [RpcCall("eth_getUncleByBlockHashAndIndex", (name, hex(index))) for index in range(count)]
        uncles = [
            parse(RpcHeader, _got(outcome), "eth_getUncleByBlockHashAndIndex") for outcome in await self._batch(calls)
        ]
        have = [uncle for uncle in uncles if uncle is not None]
        return have if len(have) == count else None


def _together(answer: Answer) -> Fetched | None:
    """Assemble a block that needs no further request, else None; NodeAnswerError where it is malformed."""
    written, receipts = answer
    if isinstance(written, NodeAnswerError) or receipts is None or isinstance(receipts, NodeAnswerError):
        return None
    parsed = parse(list[RpcReceipt], receipts, "eth_getBlockReceipts")
    block = parse(RpcBlock, written, "eth_getBlockBy…")
    if block is None or parsed is None or block.uncles:
        return None
    header = header_of(block)
    if not _all_of(parsed, header.hash):
        return None
    return Fetched(header, block, parsed, [], len(written) + len(receipts), text=written)


def _is_there(outcome: Outcome | None) -> bool:
    """True for a result other than null."""
    return isinstance(outcome, msgspec.Raw) and not is_null(outcome)


def _all_of(receipts: Sequence[RpcReceipt], name: str) -> bool:
    """True if all receipts name the block with this hash."""
    return [receipt.block_hash for receipt in receipts] == [name] * len(receipts)


def _got(outcome: Outcome) -> msgspec.Raw:
    """Return the result, or raise the node's error."""
    if isinstance(outcome, NodeAnswerError):
        raise outcome
    return outcome


def _text(block_hash: bytes) -> str:
    return "0x" + block_hash.hex()
