"""Headers of every fork, of forks that nobody knows yet, and under other clients' names; gas from Amsterdam on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.errors import ApplicationError, IntegrityError
from cardinal_ethereum import decode, frames, payload_from_rpc, rlp, verify, verify_payload
from cardinal_ethereum.chains import CHAINS, chain_of
from cardinal_ethereum.checks import gas
from cardinal_ethereum.from_rpc.header import encode_header
from cardinal_ethereum.from_rpc.structures import RpcBlock, read
from cardinal_ethereum.from_rpc.unknown_fields import MOST_FIELDS, NOT_IN_HEADERS, with_unknown_fields
from cardinal_ethereum.keccak import keccak
from evm_blocks import AMOUNTS, LATER, ZERO_ADDRESS, Json, data, header_bytes, minimal, sealed, text
from examples import examples

CHAIN = chain_of(5)
ZERO = "0x" + "00" * 32


def block_of(forks: int = 0, **more: Any) -> Json:  # noqa: ANN401 -- JSON
    """An empty block with the fields of so many forks."""
    header: Json = {
        "parentHash": ZERO,
        "miner": ZERO_ADDRESS,
        "stateRoot": ZERO,
        "difficulty": "0x0",
        "extraData": "0x",
    }
    header |= {"number": "0x7", "gasLimit": "0x1", "timestamp": "0x1", "mixHash": ZERO, "nonce": "0x" + "00" * 8}
    header |= {name: "0x5" if name in AMOUNTS else "0x" + "77" * 32 for name in LATER[:forks]}
    if forks > 1:
        header["withdrawals"] = []
    return sealed(header | more, [], [])[0]


def with_more(block: Json, fields: Json, items: list[bytes]) -> Json:
    """The block with fields of a later fork, whose hash is over these items too."""
    known = rlp.decode_list(header_bytes(block))
    return block | fields | {"hash": text(keccak(rlp.encode([*known, *items])))}


@pytest.mark.parametrize("forks", range(len(LATER) + 1))
def test_a_header_of_every_fork_is_verified_and_decoded(forks: int) -> None:
    block = block_of(forks)
    verify(block, [], chain=CHAIN)
    payload = payload_from_rpc(block, [], chain_id=5)
    verify_payload(payload, CHAIN)
    assert decode(payload).encode() == payload
    (row,) = frames([payload])["blocks"].to_pylist()
    assert (row["block_access_list_hash"], row["slot_number"]) == (
        *(block.get("blockAccessListHash"), 5 if "slotNumber" in block else None),
    )


# --- forks that this release does not know ---

values = st.one_of(
    st.integers(0, 2**256 - 1).map(lambda number: (hex(number), minimal(number))),
    st.binary(max_size=40).map(lambda value: (text(value), value)),
    st.integers(0, 300).map(lambda number: (f"0x{number:04x}", minimal(number))),
)


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_unknown_fields_of_a_header_are_found_in_any_order_among_others(drawn: st.DataObject) -> None:
    names = drawn.draw(st.permutations(["a", "blob", "custody", "zeta", "nextRoot"]))
    chosen = [(name, drawn.draw(values)) for name in names[: drawn.draw(st.integers(1, MOST_FIELDS))]]
    others = {name: drawn.draw(values)[0] for name in names[len(chosen) :][:2]}
    others |= {drawn.draw(st.sampled_from(sorted(NOT_IN_HEADERS - LATER_NAMES))): 5, "odd": [1], "none": None}
    shown = {name: shown for name, (shown, _) in chosen} | others
    fields = {name: shown[name] for name in drawn.draw(st.permutations(sorted(shown)))}
    block = with_more(block_of(len(LATER)), fields, [item for _, (_, item) in chosen])
    verified = verify(block, [], chain=CHAIN)
    assert keccak(verified.header).hex() == block["hash"][2:]
    payload = payload_from_rpc(block, [], chain_id=5)
    verify_payload(payload, CHAIN)
    decoded = decode(payload)
    assert decoded.encode() == payload
    assert decoded.header is not None
    assert list(decoded.header.more) == [item for _, (_, item) in chosen]


LATER_NAMES = frozenset({"hash", "size", "totalDifficulty", "transactions", "uncles", "withdrawals", "author"})
LATER_NAMES |= {"sealFields", "step", "signature", "auraStep", "auraSeal", "requestsRoot", "dataGasUsed"}
LATER_NAMES |= {"excessDataGas"}


def test_a_known_field_beyond_a_missing_one_is_found_too() -> None:
    block = with_more(block_of(1), {"slotNumber": "0x9"}, [b"\x09"])
    assert verify(block, [], chain=CHAIN).rpc.more == (("slotNumber", "09"),)


def test_where_nothing_fits_the_error_names_the_fields_and_how_old_this_release_is() -> None:
    block = block_of(3) | {f"f{at}": hex(at) for at in range(60)} | {"hash": ZERO}
    with pytest.raises(IntegrityError, match=r"hash; .*\(f0, f1, f10, f11, f12 and 55 more\).*too old") as caught:
        verify(block, [], chain=CHAIN)
    assert caught.value.check == "hash"
    with pytest.raises(IntegrityError, match="hash; use another node"):
        verify(block_of(3) | {"hash": ZERO, "l1BlockNumber": "0x5"}, [], chain=CHAIN)


def test_the_last_fields_of_a_chain_are_tried_first() -> None:
    names = [f"field{at}" for at in range(30)]
    fields = {name: hex(7 + at) for at, name in enumerate(names)}
    chosen = tuple(names[20:16:-1])
    block = with_more(block_of(2), fields, [bytes((int(fields[name], 16),)) for name in chosen])
    plain = read(RpcBlock, block)
    assert with_unknown_fields(plain, block).more == ()  # too many to try
    found = with_unknown_fields(plain, block, chosen)
    assert tuple(name for name, _ in found.more) == chosen
    assert keccak(encode_header(found)).hex() == block["hash"][2:]


# --- other names ---

SEAL = {"step": "0x12f4263f", "signature": "0x" + "47" * 65}


@pytest.mark.parametrize(
    "names",
    [
        SEAL,
        {"auraStep": SEAL["step"], "auraSeal": SEAL["signature"], "mixHash": ZERO, "nonce": "0x" + "00" * 8},
        {"step": str(int(SEAL["step"], 16)), "signature": "47" * 65},
        {"sealFields": ["0x8412f4263f", "0xb841" + "47" * 65], "author": ZERO_ADDRESS},
    ],
    ids=["nethermind", "erigon", "openethereum", "openethereum-rlp"],
)
def test_a_seal_is_read_under_every_clients_names(names: Json) -> None:
    header = block_of() | {"difficulty": "0x5", "totalDifficulty": "0x9"}
    del header["mixHash"], header["nonce"]
    block = header | SEAL
    block["hash"] = text(keccak(header_bytes(block)))
    shown = {name: value for name, value in block.items() if name not in SEAL} | names
    if "author" in names:
        del shown["miner"]
    verify(shown, [], chain=CHAINS[100])
    assert payload_from_rpc(shown, [], chain_id=100) == payload_from_rpc(block, [], chain_id=100)


@pytest.mark.parametrize(
    ("forks", "alias", "name"),
    [(6, "requestsRoot", "requestsHash"), (4, "dataGasUsed", "blobGasUsed"), (4, "excessDataGas", "excessBlobGas")],
)
def test_a_field_under_a_drafts_name_is_the_same_field(forks: int, alias: str, name: str) -> None:
    block = block_of(forks)
    shown = {alias if had == name else had: value for had, value in block.items()}
    verify(shown, [], chain=CHAIN)
    assert payload_from_rpc(shown, [], chain_id=5) == payload_from_rpc(block, [], chain_id=5)


@pytest.mark.parametrize("name", ["parentHash", "logsBloom", "number", "extraData", "nonce", "slotNumber", "miner"])
@pytest.mark.parametrize("wrong", ["0xzz", "", "0x" + "11" * 40 + "z"])
def test_a_malformed_field_of_a_header_is_named_with_its_block(name: str, wrong: str) -> None:
    block = block_of(len(LATER)) | {name: wrong}
    with pytest.raises(ApplicationError, match=rf"(?s)^block .*\({block['hash']}\).*header.*{name}") as caught:
        payload_from_rpc(block, [], chain_id=5)
    assert caught.value.path == name


@pytest.mark.parametrize("parts", [(None, ()), ((), None), ("text", ())])
def test_receipts_that_are_no_list_are_refused_by_block(parts: Any) -> None:  # noqa: ANN401 -- whatever a file holds
    receipts, uncles = parts
    with pytest.raises(IntegrityError, match=r"block 7 \(0x"):
        verify(block_of(), receipts, uncles=uncles, chain=CHAIN)


# --- gas from Amsterdam on: header before refunds and in two dimensions, receipts after ---

spent = st.tuples(st.integers(0, 2**24), st.integers(0, 2**24), st.integers(0, 2**20), st.integers(0, 2**24))


@given(st.lists(spent, max_size=8))
def test_an_honest_header_is_within_the_bounds_of_its_receipts(transactions: list[tuple[int, int, int, int]]) -> None:
    """EIP-7778 and EIP-8037, as the specification adds them up."""
    execution = state = receipts = 0
    for run, created, floor, refunds in transactions:
        before = run + created
        after = before - min(before // 5, refunds)
        execution += max(before - created, floor)
        state += created
        receipts += max(after, floor)
    header = max(execution, state)
    assert gas.fits(header, receipts, amsterdam=True)
    assert gas.fits(header, receipts, amsterdam=False) == (header == receipts)


@pytest.mark.parametrize(("header", "fits"), [(49, False), (50, True), (100, True), (125, True), (126, False)])
def test_a_header_beyond_the_bounds_is_refused(header: int, *, fits: bool) -> None:
    assert gas.fits(header, 100, amsterdam=True) == fits


def test_data_under_a_known_name_is_no_longer_unknown() -> None:
    block = block_of(len(LATER))
    assert with_unknown_fields(read(RpcBlock, block), block) == read(RpcBlock, block)
    assert data(block["blockAccessListHash"]) == b"\x77" * 32
