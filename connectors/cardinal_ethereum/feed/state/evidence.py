"""Evidence of state changes from a node: traces, parents and proofs, requested for many blocks at once.

Rules:

1. Evidence is untrusted: :mod:`.delta` verifies it against the state roots of a block and its parent.
2. Consecutive blocks are requested together: one round for traces and parents, one for proofs. The state after a block
   and before its child needs one proof, not two.
3. Proofs are requested for what transactions changed according to their traces; on request also for what they only
   read: anvil stores an absent slot that is set to zero, which changes the root and appears in no trace.
4. A node that no longer has a block raises ``ChainMovedError``; a refusal is reported with the node's own message
   (:class:`~cardinal.errors.NodeAnswerError`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cardinal.errors import ApplicationError
from cardinal_ethereum import touched
from cardinal_ethereum.feed.chain.blocks import AccountProof, ChainMovedError, Evidence, Fetched
from cardinal_ethereum.feed.chain.fetch import BlockFetcher
from cardinal_ethereum.feed.rpc.outcomes import parse
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcHeader, RpcReceipt

TRACER: Final = {"tracer": "prestateTracer", "tracerConfig": {"diffMode": True}}

READING_TRACER: Final = {"tracer": "prestateTracer"}

_BRIEF: Final = (False,)
"""The parameter that requests a block without its transactions."""


class _Hint(NamedTuple):
    """Parts of a block that name possibly changed accounts and slots, unverified."""

    number: int
    rpc: RpcBlock
    receipts: list[RpcReceipt]


async def evidence(fetcher: BlockFetcher, blocks: Sequence[Fetched], *, read: bool = False) -> list[Evidence]:
    """Request the evidence for blocks, none of them the first of its chain, in their order.

    Arguments:
        fetcher: sends the requests.
        blocks: the fetched blocks.
        read: include what transactions only read.

    Raises:
        ChainMovedError: the node no longer has one of them, or its parent.
        NodeAnswerError: the node does not trace or prove.
        ApplicationError: a response is malformed.

    """
    traces = await _traces(fetcher, blocks, TRACER)
    if read:
        more = await _traces(fetcher, blocks, READING_TRACER)
        traces = [
            ([*changed, *map(_as_changed, every)], size + other)
            for (changed, size), (every, other) in zip(traces, more, strict=True)
        ]
    parents = await _parents(fetcher, blocks)
    to_prove = [_to_prove(traced, block) for (traced, _), block in zip(traces, blocks, strict=True)]
    proofs = await _proofs(fetcher, [one for block in to_prove for one in block])
    found: list[Evidence] = []
    for (traced, size), parent, accounts in zip(traces, parents, to_prove, strict=True):
        block_proofs = [proofs[at, address] for at, address, _ in accounts]
        total = size + sum(length for _, length in block_proofs)
        found.append(Evidence(traced, parent, [proof for proof, _ in block_proofs if proof is not None], total))
    return found


def _as_changed(trace: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Convert a trace of what a transaction touched to the form of a diff trace."""
    return {"result": {"pre": trace.get("result") if isinstance(trace, dict) else None, "post": {}}}


async def _traces(
    fetcher: BlockFetcher, blocks: Sequence[Fetched], tracer: Mapping[str, object]
) -> list[tuple[list[Any], int]]:
    answers = await fetcher.calls([("debug_traceBlockByHash", (block.header.hash, tracer)) for block in blocks])
    traces = []
    for block, answer in zip(blocks, answers, strict=True):
        traced = parse(list[Any], answer, "debug_traceBlockByHash")
        if traced is None:
            raise _moved(block)
        traces.append((traced, len(bytes(answer))))
    return traces


async def _parents(fetcher: BlockFetcher, blocks: Sequence[Fetched]) -> list[RpcHeader]:
    """Headers of the blocks' parents, most of which are among the blocks themselves."""
    have: dict[str, RpcHeader] = {block.header.hash: block.block for block in blocks}
    lacking = [block for block in blocks if block.header.parent_hash not in have]
    answers = await fetcher.calls([("eth_getBlockByHash", (block.header.parent_hash, *_BRIEF)) for block in lacking])
    for block, answer in zip(lacking, answers, strict=True):
        header = parse(RpcHeader, answer, "eth_getBlockByHash")
        if header is None:
            raise _moved(block)
        have[block.header.parent_hash] = header
    return [have[block.header.parent_hash] for block in blocks]


def _to_prove(traces: list[Any], fetched: Fetched) -> list[tuple[str, str, list[str]]]:
    """Proofs to request: block hash, address and slots of each."""
    header = fetched.header
    if len(fetched.receipts) != len(fetched.block.transactions):
        raise ApplicationError("a block has as many receipts as transactions", path="receipts")
    hint: Any = _Hint(header.height, fetched.block, fetched.receipts)
    slots = touched(traces, hint, fetched.uncles)
    return [(at, address, some) for address, some in slots.items() for at in (header.parent_hash, header.hash)]


async def _proofs(
    fetcher: BlockFetcher, wanted: Iterable[tuple[str, str, list[str]]]
) -> Mapping[tuple[str, str], tuple[AccountProof | None, int]]:
    """Proofs by block hash and address, with their size in bytes."""
    slots: dict[tuple[str, str], set[str]] = defaultdict(set)
    for at, address, some in wanted:
        slots[at, address].update(some)
    answers = await fetcher.calls(
        [("eth_getProof", (address, sorted(some), at)) for (at, address), some in slots.items()]
    )
    return {
        name: (parse(AccountProof, answer, "eth_getProof"), len(bytes(answer)))
        for name, answer in zip(slots, answers, strict=True)
    }


def _moved(block: Fetched) -> ChainMovedError:
    name = f"{block.header.height} ({block.header.hash})"
    return ChainMovedError(f"the node does not have block {name} with its parent any more")
