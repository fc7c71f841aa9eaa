"""Strategies of Ethereum-like blocks: for every chain with presets those that it can have, as JSON-RPC shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coincurve import PrivateKey
from hypothesis import strategies as st

from cardinal_ethereum.chains import Chain
from cardinal_ethereum.keccak import keccak
from evm_blocks import (
    AMOUNTS,
    DEPOSIT,
    LATER,
    NO_UNCLES,
    ZERO_ADDRESS,
    Json,
    bloom,
    canonical,
    data,
    receipts_of,
    sealed,
    signed,
    state_sync,
    text,
)
from evm_families import KINDS, family_transactions

NEVER_MERGED = frozenset({137, 80_002, 56, 42_161, 421_614, 534_352})
"""Chains none of whose blocks come after the merge."""
ALL_FORKS = frozenset({56})
"""Those of them whose headers have the fields of later forks too."""
AUTHORITIES = frozenset({100})
KEYS = tuple(PrivateKey(bytes((byte,)) * 32) for byte in (0x46, 0x47, 0x48))
ZERO = "0x" + "00" * 32

amounts = st.one_of(st.integers(0, 300), st.integers(0, 2**256 - 1)).map(hex)
totals = st.one_of(st.integers(1, 300), st.integers(1, 2**192 - 1)).map(hex)
longs = st.integers(0, 2**40).map(hex)
times = st.integers(0, 2**32).map(hex)
addresses = st.binary(min_size=20, max_size=20).map(text)
hashes = st.binary(min_size=32, max_size=32).map(text)
datas = st.binary(max_size=70).map(text)
accesses = st.lists(
    st.fixed_dictionaries({"address": addresses, "storageKeys": st.lists(hashes, max_size=2)}), max_size=2
)
wishes = st.fixed_dictionaries(
    {"chainId": amounts, "address": addresses, "nonce": longs, "r": amounts, "s": amounts}
    | {"yParity": st.sampled_from(["0x0", "0x1"])}
)
logs = st.lists(
    st.fixed_dictionaries({"address": addresses, "topics": st.lists(hashes, max_size=4), "data": datas}), max_size=3
)
withdrawals = st.lists(
    st.fixed_dictionaries({"index": longs, "validatorIndex": longs, "address": addresses, "amount": longs}), max_size=3
)


@dataclass(frozen=True)
class Shown:
    """A block as its node shows it.

    Attributes:
        block: with full transactions, as ``receipts`` and ``uncles``.
        merged: whether it comes after the merge.
        derived: how many transactions, and receipts, at the end no root covers.

    """

    block: Json
    receipts: list[Json]
    uncles: list[Json] = field(default_factory=list)
    merged: bool = False
    derived: int = 0


@st.composite
def signed_transactions(draw: st.DrawFn, chain_id: int) -> Json:
    """A transaction of type 0 to 4, really signed; a legacy one of any chain, or of this one."""
    kind = draw(st.integers(0, 4))
    shown: Json = {"type": hex(kind), "nonce": draw(longs), "gas": draw(longs), "value": draw(amounts)}
    shown |= {"to": draw(st.none() | addresses) if kind < 3 else draw(addresses), "input": draw(datas)}
    if kind:
        shown |= {"chainId": hex(chain_id), "accessList": draw(accesses)}
    if kind < 2:
        shown["gasPrice"] = draw(amounts)
    else:
        shown |= {"maxPriorityFeePerGas": draw(amounts), "maxFeePerGas": draw(amounts)}
    if kind == 3:
        shown |= {"maxFeePerBlobGas": draw(amounts), "blobVersionedHashes": draw(st.lists(hashes, max_size=2))}
    if kind == 4:
        shown["authorizationList"] = draw(st.lists(wishes, max_size=2))
    return signed(shown, draw(st.sampled_from(KEYS)), draw(st.sampled_from([chain_id, None])))


@st.composite
def deposits(draw: st.DrawFn) -> Json:
    """A deposit from the chain below (OP Stack)."""
    shown: Json = {"type": hex(DEPOSIT), "from": draw(addresses), "to": draw(st.none() | addresses), "nonce": "0x0"}
    shown |= {name: draw(amounts) for name in ("mint", "value")}
    shown |= {"gas": draw(longs), "isSystemTx": draw(st.booleans()), "sourceHash": draw(hashes), "input": draw(datas)}
    shown |= dict.fromkeys(("gasPrice", "v", "r", "s"), "0x0")
    return shown | {"hash": text(keccak(canonical(shown)))}


events = st.lists(
    st.tuples(
        st.integers(1, 2**40),
        st.binary(min_size=20, max_size=20),
        st.binary(max_size=70),
        st.binary(min_size=32, max_size=32),
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def headers(draw: st.DrawFn, chain: Chain, number: int, *, merged: bool) -> Json:
    """A header without what follows from the block's parts, of any fork."""
    made: Json = {name: draw(hashes) for name in ("parentHash", "stateRoot")}
    made |= {"miner": draw(addresses), "number": hex(number), "extraData": draw(datas), "gasLimit": draw(longs)}
    made |= {"timestamp": draw(times), "difficulty": "0x0" if merged else hex(draw(st.integers(1, 2**128)))}
    if chain.chain_id in AUTHORITIES and not merged:
        signature = st.binary(min_size=65, max_size=65).map(text)
        return made | {"step": draw(longs), "signature": draw(signature)}
    made |= {"mixHash": draw(hashes), "nonce": draw(st.binary(min_size=8, max_size=8).map(text))}
    forks = draw(st.integers(1 if merged else 0, len(LATER) if merged or chain.chain_id in ALL_FORKS else 1))
    return made | {name: draw(longs if name in AMOUNTS else hashes) for name in LATER[:forks]}


@st.composite
def uncles(draw: st.DrawFn, chain: Chain) -> Json:
    """The header of an uncle, whole."""
    made = draw(headers(chain, draw(st.integers(1, 2**20)), merged=False))
    made |= {name: draw(hashes) for name in ("transactionsRoot", "receiptsRoot")} | {"sha3Uncles": NO_UNCLES}
    return made | {"logsBloom": bloom(draw(logs)), "gasUsed": draw(longs)}


@st.composite
def outcomes_of(draw: st.DrawFn, transaction: Json, *, rooted: bool, canyon: bool) -> Json:
    """What a transaction did, with what its receipt has beyond others'."""
    outcome: Json = {"gasUsed": draw(longs), "logs": draw(logs)}
    outcome |= {"root": draw(hashes)} if rooted else {"status": draw(st.sampled_from(["0x0", "0x1"]))}
    if transaction["type"] == "0x7b" and draw(st.booleans()):
        outcome["baseFee"] = draw(longs)
    if "sourceHash" in transaction:
        outcome |= {"depositNonce": draw(longs)} | ({"depositReceiptVersion": "0x1"} if canyon else {})
    return outcome


@st.composite
def blocks(draw: st.DrawFn, chain: Chain) -> Shown:
    """A block of a chain: before or after the merge, of any fork, with any transactions that it can have."""
    always = chain.final_total_difficulty in (0, 1)  # merged with its first block
    merged = always or (chain.chain_id not in NEVER_MERGED and draw(st.booleans()))
    number = draw(st.integers(1, 2**40))
    if chain.state_sync_in_body is not None:
        number = chain.state_sync_in_body + draw(st.sampled_from([-1, 0]))
    header = draw(headers(chain, number, merged=merged))
    if "withdrawalsRoot" in header:
        header["withdrawals"] = draw(withdrawals) if chain.withdrawals else []
    transactions = draw(st.lists(signed_transactions(chain.chain_id), max_size=4))
    if chain.family in ("optimism", "celo"):
        transactions = [*draw(st.lists(deposits(), min_size=1, max_size=2)), *transactions]
    if chain.family in KINDS:
        transactions += draw(st.lists(family_transactions(chain.family, chain.chain_id), max_size=3))
    synced = chain.state_sync and draw(st.booleans())
    in_body = chain.state_sync_in_body is not None and number >= chain.state_sync_in_body
    if synced and in_body:
        transactions.append(state_sync(draw(events)))
    rooted = not merged and "baseFeePerGas" not in header and draw(st.booleans())
    canyon = draw(st.booleans())
    outcomes = [draw(outcomes_of(transaction, rooted=rooted, canyon=canyon)) for transaction in transactions]
    ommers = [] if merged else draw(st.lists(uncles(chain), max_size=2))
    block, receipts = sealed(header, transactions, receipts_of(transactions, outcomes), ommers)
    if not chain.withdrawals and "withdrawals" in block:  # what stands there is of something else
        block, receipts = _resealed(block, receipts, draw(hashes))
    if not merged:
        block["totalDifficulty"] = draw(totals)
    if synced and not in_body:
        block, receipts = _with_derived(block, receipts, draw(logs))
        return Shown(block, receipts, ommers, merged, derived=1)
    return Shown(block, receipts, ommers, merged)


def _resealed(block: Json, receipts: list[Json], root: str) -> tuple[Json, list[Json]]:
    header = {name: value for name, value in block.items() if name not in ("withdrawals", "transactions", "uncles")}
    resealed, receipts = sealed(header | {"withdrawalsRoot": root}, block["transactions"], receipts)
    return resealed | {"withdrawals": []}, receipts


def _with_derived(block: Json, receipts: list[Json], added: list[Json]) -> tuple[Json, list[Json]]:
    """What a node of Polygon adds before Madhugiri."""
    number = int(block["number"], 16).to_bytes(8, "big")
    named = text(keccak(b"matic-bor-receipt-" + number + data(block["hash"])))
    call: Json = {**dict.fromkeys(("nonce", "gas", "gasPrice", "value", "v", "r", "s", "type"), "0x0"), "input": "0x"}
    call |= {"from": ZERO_ADDRESS, "to": ZERO_ADDRESS, "hash": named}
    first = sum(len(receipt["logs"]) for receipt in receipts)
    listed = [log | {"logIndex": hex(first + at)} for at, log in enumerate(added)]
    receipt: Json = {"transactionHash": named, "blockHash": block["hash"], "type": "0x0", "status": "0x1"}
    receipt |= {"gasUsed": "0x0", "cumulativeGasUsed": "0x0", "contractAddress": None}
    receipt |= {"logs": listed, "logsBloom": bloom(listed)}
    return block | {"transactions": [*block["transactions"], call]}, [*receipts, receipt]


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:  # noqa: ANN401 -- JSON
    """The paths of all texts in JSON."""
    if isinstance(value, dict):
        return [found for name, part in value.items() for found in leaves(part, (*path, name))]
    if isinstance(value, list):
        return [found for at, part in enumerate(value) for found in leaves(part, (*path, at))]
    return [path] if isinstance(value, str) else []
