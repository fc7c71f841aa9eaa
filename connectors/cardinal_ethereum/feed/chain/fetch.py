"""Fetching of blocks with receipts and uncles from a node, one by hash or many by number.

Rules:

1. All parts of a block are requested together on arrival: the node may drop an orphan soon
   (``connectors/cardinal_ethereum/docs/nodes.md``, rule 5).
2. ``None``: the node does not have the block now; an empty list of receipts is a result.
3. Receipts are combined with a block only if they name its hash: the chain may have changed between two responses.
   Otherwise, and where the node refuses the method, they are requested in the next way: of the block's hash, of its
   number, one by one. A way that the node refuses is not tried again.
4. A response that is not the requested block (null, of another number or hash, malformed) is requested again, at first
   at once: behind one address there may be several nodes.
5. Nothing is verified here: see :mod:`cardinal_ethereum.feed.verify.verifier`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from cardinal.errors import NodeAnswerError
from cardinal_ethereum.feed.rpc.client import RpcClient
from cardinal_ethereum.feed.rpc.faults import CallRefusedError, Fault, MalformedResultError
from cardinal_ethereum.feed.rpc.outcomes import Outcome, RpcCall, is_null, parse, result_of
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcHeader, RpcReceipt, RpcTransaction

from .blocks import BlockHeader, Fetched, header_of

__all__ = ["Answer", "BlockFetcher", "Tag"]

Tag: TypeAlias = Literal["latest", "safe", "finalized"]


_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")
_Value = TypeVar("_Value")
_RECEIPTS: Final = "eth_getBlockReceipts"
_REFUSED: Final = frozenset({Fault.METHOD, Fault.PARAMETERS, Fault.SIZE})
"""Subjects of refusals after which receipts are requested in another way."""

_REQUESTS: Final = 4
"""Requests of a block or header until the node returns it."""
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
        text = memoryview(result_of(self.block))
        return bytes(text[-_LAST:]).rfind(_NO_UNCLES) >= 0 or _NO_UNCLES in bytes(text)

    @property
    def size(self) -> int:
        """Size of both in bytes."""
        return sum(len(part) for part in self if isinstance(part, msgspec.Raw))

    @property
    def texts(self) -> tuple[bytes, bytes]:
        """Their JSON; both must be results."""
        return bytes(result_of(self.block)), b"" if self.receipts is None else bytes(result_of(self.receipts))


class BlockFetcher:
    """Fetches blocks from a node: receipts by block, or one by one where the node refuses that.

    Attributes:
        faults: the client's number of failures by subject; wrong responses are added.

    """

    def __init__(self, client: RpcClient) -> None:
        self._client = client
        self._refused: set[type[str | int]] = set()
        self.faults: Counter[str] = client.faults

    async def header(self, named: int | Tag, *, optional: bool = False) -> BlockHeader | None:
        """The header under a number or tag of the node's chain; None where the node has none.

        Arguments:
            named: the number or tag.
            optional: the node's refusal is raised at once.

        """
        name = hex(named) if isinstance(named, int) else named
        call = RpcCall("eth_getBlockByNumber", (name, False), optional)
        if isinstance(named, int):
            return await self._header(call, lambda header: header.height == named)
        return await self._header(call, lambda _: True)

    async def header_by_hash(self, block_hash: bytes) -> BlockHeader | None:
        """The header with this hash; None where the node has none."""
        call = RpcCall("eth_getBlockByHash", (_text(block_hash), False))
        return await self._header(call, lambda header: header.id == block_hash)

    async def _header(self, call: RpcCall, is_wanted: Callable[[BlockHeader], bool]) -> BlockHeader | None:
        """A header that is the requested one; None where the node has none, as far as two of its answers say."""
        failure: NodeAnswerError | None = None
        for attempt in range(_REQUESTS):
            await self._client.rest(attempt)
            (outcome,) = await self._client.batch([call])
            try:
                header = parse(BlockHeader, result_of(outcome), call.method)
            except MalformedResultError as malformed:
                failure = malformed
            else:
                if header is None and (attempt or call.optional):
                    return None
                if header is not None and is_wanted(header):
                    return header
                failure = NodeAnswerError(f"the node returns another block than {call.params[0]}: use another node")
            self.faults[Fault.WRONG] += 1
        raise failure or AssertionError

    async def headers(self, numbers: Iterable[int]) -> list[BlockHeader | None]:
        """The headers at these heights of the node's chain."""
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), False)) for number in numbers]
        return [
            parse(BlockHeader, result_of(outcome), "eth_getBlockByNumber")
            for outcome in await self._client.batch(calls)
        ]

    async def by_hash(self, block_hash: bytes) -> Fetched | None:
        """The block with this hash, canonical or not; None where the node lacks it or any part of it."""
        name = _text(block_hash)
        return await self._wanted(lambda: self._by_hash(name), lambda block: block.header.hash == name)

    async def _by_hash(self, name: str) -> Answer:
        calls = [RpcCall("eth_getBlockByHash", (name, True))]
        if str not in self._refused:
            calls.append(RpcCall(_RECEIPTS, (name,)))
        outcomes = await self._client.batch(calls)
        self._learn(str, outcomes[1:])
        return Answer(outcomes[0], outcomes[1] if len(outcomes) > 1 else None)

    async def at(self, number: int, answer: Answer | None = None) -> Fetched | None:
        """The block at a height, from an answer or further requests; None where the node lacks it."""
        given = [answer] if answer is not None else []

        async def requested() -> Answer:
            return given.pop() if given else (await self.answers([number]))[0]

        return await self._wanted(requested, lambda block: block.header.height == number)

    async def _wanted(
        self, request: Callable[[], Awaitable[Answer]], is_wanted: Callable[[Fetched], bool]
    ) -> Fetched | None:
        """A block that is the requested one; None where the node has none, as far as two of its answers say.

        What is not the requested one is returned after the last request: the verification names what is wrong.
        """
        block, failure = None, None
        for attempt in range(_REQUESTS):
            await self._client.rest(attempt)
            try:
                block, failure = await self.assembled(await request()), None
            except MalformedResultError as malformed:
                failure = malformed
            else:
                if block is None and attempt:
                    return None
                if block is not None and is_wanted(block):
                    return block
            self.faults[Fault.WRONG] += 1
        if failure is not None:
            raise failure
        return block

    async def answers(self, numbers: Sequence[int]) -> list[Answer]:
        """Unparsed results for the blocks at these heights, in order."""
        calls = [RpcCall("eth_getBlockByNumber", (hex(number), True)) for number in numbers]
        if int not in self._refused:
            calls += [RpcCall(_RECEIPTS, (hex(number),)) for number in numbers]
        outcomes = await self._client.batch(calls)
        self._learn(int, outcomes[len(numbers) :])
        receipts: Sequence[Outcome | None] = outcomes[len(numbers) :] or [None] * len(numbers)
        return [Answer(*parts) for parts in zip(outcomes[: len(numbers)], receipts, strict=True)]

    async def added(self, numbers: Sequence[int], answers: Sequence[Answer]) -> list[Answer | Fetched | None]:
        """Complete the results that need further requests; None where the node lacks a block.

        The others stay unparsed: :meth:`at` parses each just before its verification, while it is in the processor's
        cache (measured at 2 to 7 % of all the work).
        """
        blocks: list[Answer | Fetched | None] = list(answers)
        if lacking := [place for place, answer in enumerate(answers) if not answer.plain]:
            completed = await asyncio.gather(*(self.at(numbers[place], answers[place]) for place in lacking))
            for place, block in zip(lacking, completed, strict=True):
                blocks[place] = block
        return blocks

    async def call(self, kind: type[_Value], method: str, *params: object) -> _Value | None:
        """Any other method's result as a value of this type; None for null."""
        return await self._client.read(kind, method, *params)

    async def calls(self, calls: Sequence[tuple[str, tuple[object, ...]]]) -> list[msgspec.Raw]:
        """Unparsed results of many calls; NodeAnswerError where one is refused."""
        return [result_of(outcome) for outcome in await self._client.batch([RpcCall(*one) for one in calls])]

    async def assembled(self, answer: Answer) -> Fetched | None:
        """Assemble a block from its results and further requests; None where the node lacks a part."""
        return _together(answer) or await self._completed(answer)

    async def _completed(self, answer: Answer) -> Fetched | None:
        """Assemble a block that needs further requests."""
        raw = result_of(answer.block)
        block = parse(RpcBlock, raw, "eth_getBlockBy…")
        if block is None:
            return None
        header = header_of(block)
        found = await self._receipts(header, block.transactions, answer.receipts)
        if found is None:
            return None
        uncles = await self._uncles(header.hash, len(block.uncles))
        size = len(raw) + (len(answer.receipts) if isinstance(answer.receipts, msgspec.Raw) else 0)
        return None if uncles is None else Fetched(header, block, found, uncles, size, text=raw)

    async def _receipts(
        self, header: BlockHeader, transactions: Sequence[RpcTransaction], outcome: Outcome | None
    ) -> list[RpcReceipt] | None:
        """Receipts of a block, in the first way that yields them; None where the node lacks one.

        ``outcome`` is what was requested together with the block, by its number or hash; None for nothing.
        """
        if outcome is not None and (found := self._read(header, outcome)) is not None:
            return found
        for named, kind in ((header.hash, str), (hex(header.height), int)):
            if kind not in self._refused:
                (outcome,) = await self._client.batch([RpcCall(_RECEIPTS, (named,))])
                self._learn(kind, [outcome])
                if (found := self._read(header, outcome)) is not None:
                    return found
        return await self._receipts_each(header.hash, transactions)

    def _read(self, header: BlockHeader, outcome: Outcome) -> list[RpcReceipt] | None:
        """Receipts of this block in a response; None if it has others or none, or the node refuses this way."""
        if isinstance(outcome, CallRefusedError) and outcome.fault in _REFUSED:
            return None
        try:
            found = parse(list[RpcReceipt], result_of(outcome), _RECEIPTS)
        except MalformedResultError:
            found = None
        if found is not None and _all_of(found, header.hash):
            return found
        self.faults[Fault.WRONG] += 1
        return None

    def _learn(self, kind: type[str | int], outcomes: Sequence[Outcome]) -> None:
        """Remember that the node refuses all receipts by hash (str) or by number (int).

        Too many receipts for one response are no such refusal: another block has fewer.
        """
        refused = [one for one in outcomes if isinstance(one, CallRefusedError) and one.fault in _REFUSED]
        if kind in self._refused or not refused or len(refused) < len(outcomes):
            return
        if (last := refused[-1]).fault is not Fault.SIZE:
            self._refused.add(kind)
            by = "hash" if kind is str else "number"
            _LOG.warning("%s; receipts are not requested by %s any more", last, by)

    async def _receipts_each(self, name: str, transactions: Sequence[RpcTransaction]) -> list[RpcReceipt] | None:
        """One receipt per transaction; None where one is missing or belongs to another block by now."""
        calls = [RpcCall("eth_getTransactionReceipt", (transaction.hash,)) for transaction in transactions]
        receipts: list[RpcReceipt] = []
        for outcome in await self._client.batch(calls):
            receipt = parse(RpcReceipt, result_of(outcome), "eth_getTransactionReceipt")
            if receipt is None or receipt.block_hash != name:
                return None
            receipts.append(receipt)
        return receipts

    async def _uncles(self, name: str, count: int) -> list[RpcHeader] | None:
        """The uncles' headers; None where the node lacks one."""
        if count == 0:
            return []
        method = "eth_getUncleByBlockHashAndIndex"
        outcomes = await self._client.batch([RpcCall(method, (name, hex(index))) for index in range(count)])
        uncles = [parse(RpcHeader, result_of(outcome), method) for outcome in outcomes]
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


def _text(block_hash: bytes) -> str:
    return "0x" + block_hash.hex()
