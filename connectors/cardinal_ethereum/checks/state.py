"""State deltas: the accounts, code and storage that a block changed, proven by its and its parent's state roots.

Rules:

1. A transaction tracer does not see every change (withdrawals, system contracts, rewards). So its result supplies code
   and a hint at what changed (:func:`touched`); every value comes from proofs (EIP-1186) at both blocks
   (``connectors/cardinal_ethereum/docs/nodes.md``, rule 9).
2. A delta is complete or refused: a change outside the hint makes the two state roots differ without a proof, which is
   an :class:`~cardinal.errors.IntegrityError` with ``check="state"``.
3. Paths and values are the reference's: accounts (slim, :mod:`cardinal_ethereum.model.account`) and code in the block's
   updates, storage in its sub batch, a removed account as a delete. A slot that became zero has an empty value.

The first block has no delta: its state is the chain's genesis, which has no proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cardinal.errors import ApplicationError, IntegrityError
from cardinal_ethereum import rlp
from cardinal_ethereum.from_rpc.block import EncodedBlock
from cardinal_ethereum.from_rpc.header import encode_header
from cardinal_ethereum.from_rpc.structures import JsonObject, RpcHeader, hexadecimal, raw
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.account import NO_CODE, Account
from cardinal_ethereum.model.state import StateDelta

from .proofs import UnknownChangeError, changes, nodes_by_hash
from .trie import EMPTY_ROOT

_ZERO: Final = b"\x80"
"""The RLP of zero: some nodes leave a cleared slot in the trie (seen on anvil 1.7.1)."""
_RING: Final = 8191
_BEACON_ROOTS: Final = "0x000f3df6d732807ef1319fb7b8bb8522d0beac02"
_HISTORY: Final = "0x0000f90827f1c53a10cb7a02335b175320002935"
_REQUESTS: Final = (
    "0x00000961ef480eb55e80d19ad83579a64c007002",  # withdrawals (EIP-7002)
    "0x0000bbddc7ce488642fb579f8b00f3a590007251",  # consolidations (EIP-7251)
)
_REQUEST_SLOTS: Final = 4
"""Excess, count, head and tail of a request queue, written by the system call after the transactions."""


def touched(
    traces: Sequence[JsonObject], block: EncodedBlock, uncles: Iterable[RpcHeader] = ()
) -> dict[str, list[str]]:
    """Addresses that a block may have changed, each with its slots: the arguments for ``eth_getProof``.

    Arguments:
        traces: ``debug_traceBlockByHash`` with the prestate tracer in diff mode.
        block: the block, as ``verify`` returns it.
        uncles: headers of its uncles, whose miners are rewarded.

    Raises:
        ApplicationError: the traces are of another tracer, or one of them failed.

    """
    hints: dict[str, set[int]] = {}
    with hexadecimal("the trace"):
        for address, trace in _accounts(traces):
            hints.setdefault(address.lower(), set()).update(int(slot, 16) for slot in trace.get("storage") or ())
        rpc = block.rpc
        miners = [miner for miner in (rpc.miner, *(uncle.miner for uncle in uncles)) if miner is not None]
        for address in (*miners, *_named(block)):
            hints.setdefault(address.lower(), set())
        time = int(rpc.timestamp, 16)
        hints.setdefault(_BEACON_ROOTS, set()).update((time % _RING, time % _RING + _RING))
        if block.number:
            hints.setdefault(_HISTORY, set()).add((block.number - 1) % _RING)
        for queue in _REQUESTS:
            hints.setdefault(queue, set()).update(range(_REQUEST_SLOTS))
    return {address: [f"0x{slot:064x}" for slot in sorted(slots)] for address, slots in sorted(hints.items())}


def _named(block: EncodedBlock) -> Iterator[str]:
    """Addresses in the block itself: tracers omit some, such as a contract that destroys itself at once."""
    for transaction, receipt in zip(block.rpc.transactions, block.receipts, strict=True):
        yield from (address for address in (transaction.from_, transaction.to, receipt.contract_address) if address)
    yield from (withdrawal.address for withdrawal in block.rpc.withdrawals or ())


def state_delta(
    traces: Sequence[JsonObject],
    proofs: Iterable[JsonObject],
    *,
    block: EncodedBlock,
    parent: RpcHeader | JsonObject,
    chain_id: int,
) -> StateDelta:
    """Compute the delta of a block whose header hash was verified.

    Arguments:
        traces: as for :func:`touched`; they supply only the code of new contracts.
        proofs: results of ``eth_getProof`` for the addresses and slots of :func:`touched`, each at the parent and at
            the block; in any order.
        block: the block, as ``verify`` returns it.
        parent: header of its parent.
        chain_id: the chain's id.

    Raises:
        IntegrityError: the proofs do not explain the state root, code is missing, or the parent is another block.
        ApplicationError: a result is malformed, or the block is the first.

    """
    if not block.number:
        raise ApplicationError("the first block has no state delta: its state is the chain's genesis", path="state")
    header = encode_header(parent)
    with hexadecimal("a proof"):
        if keccak(header) != raw(block.rpc.parent_hash):
            raise _unproven(block, "the parent's header is another block's")
        nodes = nodes_by_hash(_nodes(proofs))
        codes = {keccak(code): code for code in _codes(traces)}
        before = rlp.decode_list(header)[3]
        if not isinstance(before, bytes):  # pragma: no cover -- a written header has bytes there
            raise ApplicationError("the parent's state root is no hash")
        try:
            return _delta(f"c/{chain_id:x}", before, raw(block.rpc.state_root), nodes, codes)
        except UnknownChangeError as unknown:
            raise _unproven(block, f"something else changed, below {unknown or 'the root'}") from None
        except KeyError as missing:
            raise _unproven(block, f"code {missing} is missing from the trace") from None


def _delta(
    root: str, before: bytes, after: bytes, nodes: Mapping[bytes, bytes], codes: Mapping[bytes, bytes]
) -> StateDelta:
    updates: dict[str, bytes] = {}
    deletes: set[str] = set()
    storage: dict[str, bytes] = {}
    for key, was, now in changes(before, after, nodes):
        account = f"{root}/a/{key.hex()}"
        if now is None:
            deletes.add(account)
            continue
        written = _leaf(now)
        updates[f"{account}/d"] = written.slim()
        old_slots, old_code = (EMPTY_ROOT, NO_CODE) if was is None else _roots(_leaf(was))
        new_slots, new_code = _roots(written)
        if new_code not in (old_code, NO_CODE):
            if new_code not in codes:
                raise KeyError(new_code.hex())
            updates[f"{root}/c/{new_code.hex()}"] = codes[new_code]
        for slot, _, value in changes(old_slots, new_slots, nodes):
            storage[f"{account}/s/{slot.hex()}"] = b"" if value is None or value == _ZERO else value
    return StateDelta(updates, frozenset(deletes), storage)


def _leaf(value: bytes) -> Account:
    """Account of a proof, whose leaf must be what it is written as: the state root covers exactly these bytes."""
    account = Account.decode(value)
    if account.leaf() != value:
        raise ApplicationError("a state proof holds an account of another form")
    return account


def _roots(account: Account) -> tuple[bytes, bytes]:
    return account.storage_root, account.code_hash


def _accounts(traces: Sequence[JsonObject]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every account in a trace, before and after each transaction."""
    for trace in traces:
        result = trace.get("result", trace)
        if not isinstance(result, Mapping) or not isinstance(result.get("pre"), Mapping):
            raise ApplicationError(
                "the trace is not from the prestate tracer in diff mode, or the node failed to make it", path="state"
            )
        for side in ("pre", "post"):
            yield from (result.get(side) or {}).items()


def _codes(traces: Sequence[JsonObject]) -> Iterator[bytes]:
    return (raw(trace["code"]) for _, trace in _accounts(traces) if trace.get("code"))


def _nodes(proofs: Iterable[JsonObject]) -> Iterator[bytes]:
    for proof in proofs:
        yield from (raw(node) for node in proof.get("accountProof") or ())
        for slot in proof.get("storageProof") or ():
            yield from (raw(node) for node in slot.get("proof") or ())


def _unproven(block: EncodedBlock, why: str) -> IntegrityError:
    return IntegrityError(
        f"the state delta of block {block.number} (0x{block.hash.hex()}) is incomplete: {why}; use another node, "
        "or publish without state",
        number=block.number,
        block_hash=block.hash,
        check="state",
    )
