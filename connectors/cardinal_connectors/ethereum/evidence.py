"""What a node says of the state that blocks left behind: traces, parents and proofs, asked for many blocks at once.

Rules:

1. Nothing here is believed: :mod:`.deltas` holds it to the state roots of a block and its parent.
2. Blocks beside each other are asked for together: one round for traces and parents, one for proofs. What a block
   left behind and its child found is one proof, not two.
3. What is asked for is what traces say that transactions changed; on request also what they only read or left as it
   was: anvil writes a slot down that was set to zero where nothing was, which is a change of the root and of no trace.
4. A node that does not have a block any more is :class:`.walk.ChainMovedError`; one that refuses is told with its own
   words (:class:`~cardinal.errors.NodeAnswerError`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from cardinal.apps.evm import touched
from cardinal.apps.evm.rpc.structures import RpcBlock, RpcHeader, RpcReceipt
from cardinal.errors import ApplicationError

from .fetch import BlockFetcher, Fetched
from .rpc import parse
from .walk import ChainMovedError

TRACER: Final = {"tracer": "prestateTracer", "tracerConfig": {"diffMode": True}}

READING_TRACER: Final = {"tracer": "prestateTracer"}

_BRIEF: Final = (False,)
"""The parameter that asks for a block without its transactions."""


class _Slot(TypedDict, total=False):
    proof: list[str]


class _Proof(TypedDict, total=False):
    accountProof: list[str]
    storageProof: list[_Slot] | None


class Evidence(NamedTuple):
    """What was said of one block.

    Attributes:
        traces: of its transactions.
        parent: the header of its parent.
        proofs: of what it may have changed, before and after it.
        size: the length of the answers in bytes.

    """

    traces: list[Any]
    parent: RpcHeader
    proofs: list[_Proof]
    size: int


class _Hint(NamedTuple):
    """As much of a block as tells what it may have changed. Nothing of it is checked yet."""

    number: int
    shown: RpcBlock
    receipts: list[RpcReceipt]


async def evidence(fetcher: BlockFetcher, blocks: Sequence[Fetched], *, read: bool = False) -> list[Evidence]:
    """What a node says of these blocks, none of which is the first of its chain, in their order.

    Arguments:
        fetcher: the node.
        blocks: what it gave.
        read: ask also for what was only read.

    Raises:
        ChainMovedError: the node does not have one of them, or its parent, any more.
        NodeAnswerError: it does not trace or prove.
        ApplicationError: its answers are of another form.

    """
    traces = await _traces(fetcher, blocks, TRACER)
    if read:
        more = await _traces(fetcher, blocks, READING_TRACER)
        traces = [
            ([*changed, *map(_as_changed, every)], size + other)
            for (changed, size), (every, other) in zip(traces, more, strict=True)
        ]
    parents = await _parents(fetcher, blocks)
    wanted = [_wanted(traced, block) for (traced, _), block in zip(traces, blocks, strict=True)]
    proofs = await _proofs(fetcher, [one for block in wanted for one in block])
    found: list[Evidence] = []
    for (traced, size), parent, asked in zip(traces, parents, wanted, strict=True):
        shown = [proofs[at, address] for at, address, _ in asked]
        whole = size + sum(length for _, length in shown)
        found.append(Evidence(traced, parent, [proof for proof, _ in shown if proof is not None], whole))
    return found


def _as_changed(trace: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A trace of all that a transaction touched, as one that changed it."""
    return {"result": {"pre": trace.get("result") if isinstance(trace, dict) else None, "post": {}}}


async def _traces(
    fetcher: BlockFetcher, blocks: Sequence[Fetched], tracer: Mapping[str, object]
) -> list[tuple[list[Any], int]]:
    answers = await fetcher.calls([("debug_traceBlockByHash", (block.header.hash, tracer)) for block in blocks])
    found = []
    for block, answer in zip(blocks, answers, strict=True):
        traced = parse(list[Any], answer, "debug_traceBlockByHash")
        if traced is None:
            raise _gone(block)
        found.append((traced, len(bytes(answer))))
    return found


async def _parents(fetcher: BlockFetcher, blocks: Sequence[Fetched]) -> list[RpcHeader]:
    """Their parents' headers: most are among the blocks themselves."""
    have: dict[str, RpcHeader] = {block.header.hash: block.block for block in blocks}
    lacking = [block for block in blocks if block.header.parent_hash not in have]
    answers = await fetcher.calls([("eth_getBlockByHash", (block.header.parent_hash, *_BRIEF)) for block in lacking])
    for block, answer in zip(lacking, answers, strict=True):
        header = parse(RpcHeader, answer, "eth_getBlockByHash")
        if header is None:
            raise _gone(block)
        have[block.header.parent_hash] = header
    return [have[block.header.parent_hash] for block in blocks]


def _wanted(traces: list[Any], fetched: Fetched) -> list[tuple[str, str, list[str]]]:
    """What is to be proven: at which block, of whom, and which slots."""
    header = fetched.header
    if len(fetched.receipts) != len(fetched.block.transactions):
        raise ApplicationError("a block has as many receipts as transactions", path="receipts")
    hint: Any = _Hint(header.height, fetched.block, fetched.receipts)
    slots = touched(traces, hint, fetched.uncles)
    return [(at, address, some) for address, some in slots.items() for at in (header.parent_hash, header.hash)]


async def _proofs(
    fetcher: BlockFetcher, wanted: Iterable[tuple[str, str, list[str]]]
) -> Mapping[tuple[str, str], tuple[_Proof | None, int]]:
    """The proofs by block and address, with their length in bytes."""
    slots: dict[tuple[str, str], set[str]] = defaultdict(set)
    for at, address, some in wanted:
        slots[at, address].update(some)
    answers = await fetcher.calls(
        [("eth_getProof", (address, sorted(some), at)) for (at, address), some in slots.items()]
    )
    return {
        name: (parse(_Proof, answer, "eth_getProof"), len(bytes(answer)))
        for name, answer in zip(slots, answers, strict=True)
    }


def _gone(block: Fetched) -> ChainMovedError:
    name = f"{block.header.height} ({block.header.hash})"
    return ChainMovedError(f"The node does not have block {name} with its parent any more.")
