"""Decoding loses nothing, whatever the block, and refuses everything that it could not write again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coincurve import PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal_ethereum import decode, frames
from cardinal_ethereum.chains import family_of
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.block import (
    AccessEntry,
    AuthoritySeal,
    Authorization,
    Block,
    Deposit,
    Header,
    Log,
    ReceiptMeta,
    SyncedState,
    Transaction,
    Withdrawal,
)
from cardinal_ethereum.model.transaction_decoder import decode_transaction
from examples import examples

HASH = bytes(range(32))
hashes = st.binary(min_size=32, max_size=32)
addresses = st.binary(min_size=20, max_size=20)
longs = st.integers(0, 2**40)
wide = st.one_of(st.integers(0, 300), st.integers(0, 2**256 - 1))
several_hashes = st.lists(hashes, max_size=3).map(tuple)
LATER = ("base_fee_per_gas", "withdrawals_root", "blob_gas_used", "excess_blob_gas")
LATER += ("parent_beacon_block_root", "requests_hash", "block_access_list_hash", "slot_number", "more")


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """A header of any fork, also of one that nobody knows yet, sealed by work or by an authority."""
    whole = draw(
        st.builds(
            Header,
            *[hashes, hashes, addresses, hashes, hashes, hashes, st.binary(min_size=256, max_size=256)],
            *[wide, longs, longs, longs, st.integers(0, 2**32), st.binary(max_size=40), hashes],
            *[st.binary(min_size=8, max_size=8), wide, hashes, longs, longs, hashes, hashes, hashes, longs],
            st.lists(st.binary(max_size=40), max_size=2).map(tuple),
        )
    )
    seal = draw(st.none() | st.builds(AuthoritySeal, longs, st.binary(min_size=65, max_size=65)))
    if seal is not None:
        whole = replace(whole, mix_hash=None, nonce=None, seal=seal)
    fork = draw(st.integers(0, len(LATER)))
    missing = dict.fromkeys(LATER[fork:])
    return replace(whole, **{**missing, "more": whole.more if fork == len(LATER) else ()})


authorizations = st.builds(Authorization, wide, addresses, longs, st.integers(0, 1), wide, wide)
access = st.lists(st.builds(AccessEntry, addresses, several_hashes), max_size=2).map(tuple)


@st.composite
def deposits(draw: st.DrawFn, index: int = 0) -> Transaction:
    """A deposit from the chain below."""
    made = Transaction(
        *(index, b"", b"", 126, None, 0, 0, None, None),
        *(draw(longs), draw(st.none() | addresses), draw(wide), draw(st.binary(max_size=80)), 0, 0, 0),
        deposit=draw(st.builds(Deposit, hashes, addresses, wide, st.booleans())),
    )
    raw = made.encode()
    return replace(made, raw=raw, hash=keccak(raw))


@st.composite
def state_syncs(draw: st.DrawFn, index: int = 0) -> Transaction:
    """State syncs of Polygon, from the chain below."""
    synced = st.builds(SyncedState, longs, addresses, st.binary(max_size=80), hashes)
    made = Transaction(
        *(index, b"", b"", 127, None, 0, 0, 0, 0, 0, bytes(20), 0, b"", 0, 0, 0),
        synced=tuple(draw(st.lists(synced, max_size=3))),
    )
    raw = made.encode()
    return replace(made, raw=raw, hash=keccak(raw))


@st.composite
def transactions(draw: st.DrawFn, index: int = 0) -> Transaction:
    """A signed transaction of any type, its signature any numbers."""
    kind = draw(st.integers(0, 4))
    v = draw(wide if kind == 0 else st.integers(0, 1))
    chain_id = draw(wide) if kind else ((v - 35) // 2 if v >= 35 else None)
    made = Transaction(
        index=index,
        raw=b"",
        hash=b"",
        type=kind,
        chain_id=chain_id,
        nonce=draw(longs),
        gas_price=draw(wide) if kind < 2 else None,
        max_priority_fee_per_gas=draw(wide) if kind >= 2 else None,
        max_fee_per_gas=draw(wide) if kind >= 2 else None,
        gas=draw(longs),
        to=draw(st.none() | addresses),
        value=draw(wide),
        input=draw(st.binary(max_size=80)),
        v=v,
        r=draw(wide),
        s=draw(wide),
        access_list=draw(access) if kind else (),
        max_fee_per_blob_gas=draw(wide) if kind == 3 else None,
        blob_versioned_hashes=draw(several_hashes) if kind == 3 else (),
        authorizations=tuple(draw(st.lists(authorizations, max_size=2))) if kind == 4 else (),
    )
    raw = made.encode()
    return replace(made, raw=raw, hash=keccak(raw))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """A block with any of its parts, on any chain."""
    indices = range(draw(st.integers(0, 20)))
    contracts = st.none() | addresses.filter(any)
    bloom = st.binary(min_size=256, max_size=256)
    count = draw(st.integers(0, 3))
    chain_id = draw(st.sampled_from([1, 10, 137]) | st.integers(1, 2**64))
    kinds = [transactions]  # on a chain of a known family other types would be bytes of no form
    kinds += [deposits] * (family_of(chain_id) in (None, "optimism"))
    kinds += [state_syncs] * (family_of(chain_id) in (None, "polygon"))
    return Block(
        chain_id,
        draw(longs),
        HASH,
        draw(hashes),
        draw(wide),
        header=draw(st.none() | headers()),
        total_difficulty=draw(st.none() | wide),
        uncles=tuple(draw(st.lists(headers(), max_size=2))),
        transactions=tuple([draw(st.one_of([kind(index=at) for kind in kinds])) for at in range(count)]),
        receipts=tuple(
            draw(
                st.builds(ReceiptMeta, st.just(index), contracts, longs, longs, bloom, st.integers(0, 1), longs, longs)
            )
            for index in range(draw(st.integers(0, 2)))
        ),
        logs=tuple(
            draw(st.builds(Log, st.integers(0, 5), st.just(index), addresses, several_hashes, st.binary(max_size=70)))
            for index in indices
        ),
        withdrawals=draw(
            st.none() | st.lists(st.builds(Withdrawal, longs, longs, addresses, longs), max_size=3).map(tuple)
        ),
        # A block of which nothing is there must still name its chain, or the chain would be no part of the payload.
        rest={f"c/{chain_id:x}/n/{draw(longs):x}": HASH} | draw(st.dictionaries(st.text(max_size=9), st.binary())),
        deletes=draw(st.frozensets(st.text(max_size=9), max_size=2)),
        derived_logs=tuple(
            draw(st.builds(Log, st.just(count), st.just(30 + index), addresses, several_hashes, st.binary(max_size=9)))
            for index in range(draw(st.integers(0, 2)))
        ),
    )


def refused_path(payload: Payload) -> str | None:
    """The path for which a payload is refused; None where it is decoded, and then without loss."""
    try:
        again = decode(payload).encode()
    except ApplicationError as error:
        return error.path or "unnamed"
    assert again == payload
    return None


@given(blocks(), st.randoms())
@settings(max_examples=examples(60), deadline=None)
def test_a_block_of_any_parts_survives_its_bytes_in_any_order(block: Block, random: object) -> None:
    payload = block.encode()
    paths = list(payload.updates)
    random.shuffle(paths)  # type: ignore[attr-defined] -- Hypothesis gives a random.Random
    shuffled = replace(payload, updates={path: payload.updates[path] for path in paths})
    assert decode(shuffled) == block
    assert decode(shuffled).encode() == payload


@given(blocks(), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_altered_values_are_refused_or_kept_as_they_are(block: Block, data: st.DataObject) -> None:
    payload = block.encode()
    path = data.draw(st.sampled_from(sorted(payload.updates)))
    value = bytearray(payload.updates[path])
    at = data.draw(st.integers(0, len(value)))
    value[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    altered = replace(payload, updates={**payload.updates, path: bytes(value)})
    assert refused_path(altered) in (None, path)


@given(st.text(alphabet="0123456789abcdefhtrluwA/x_+ ", max_size=12), st.binary(max_size=60))
@settings(max_examples=examples(200), deadline=None)
def test_any_path_and_value_below_a_block_is_refused_or_kept(tail: str, value: bytes) -> None:
    payload = Payload(1, HASH, HASH, 1, {f"c/1/b/{HASH.hex()}/{tail}": value})
    assert refused_path(payload) in (None, *payload.updates)


@given(blocks())
@settings(max_examples=examples(30), deadline=None)
def test_tables_have_a_row_per_part_and_no_number_is_rounded(block: Block) -> None:
    payload = block.encode()
    viewed = replace(payload, updates=PathMap({path.encode(): value for path, value in payload.updates.items()}))
    for integers in ("string", "binary"):
        tables = frames([payload, viewed], integers=integers)
        assert [tables[name].num_rows for name in ("blocks", "transactions", "receipts", "logs", "withdrawals")] == [
            2 * len(part)
            for part in (
                *([block], block.transactions, block.receipts, (*block.logs, *block.derived_logs)),
                block.withdrawals or (),
            )
        ]
        values = tables["transactions"].column("value").to_pylist()
        read = [int(cell) if integers == "string" else int.from_bytes(cell, "big") for cell in values]
        assert read == [entry.value for entry in block.transactions] * 2
        for table in tables.values():
            table.validate(full=True)
            assert all(field.nullable or not table.column(field.name).null_count for field in table.schema)


@given(transactions() | deposits() | state_syncs(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_the_bytes_of_a_transaction_are_its_fields_and_no_others(transaction: Transaction, data: st.DataObject) -> None:
    assert decode_transaction(transaction.raw, 0) == transaction
    altered = bytearray(transaction.raw)
    altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    try:
        other = decode_transaction(bytes(altered), 0)
    except ApplicationError:
        return
    assert other.encode() == altered


@given(transactions(), st.integers(1, 2**200), st.integers(1, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_whoever_signs_is_recovered(transaction: Transaction, secret: int, chain_id: int) -> None:
    key = PrivateKey.from_int(secret)
    unsigned = replace(transaction, chain_id=chain_id, v=35 + 2 * chain_id if transaction.type == 0 else 0)
    signature = key.sign_recoverable(unsigned.signing_hash, hasher=None)
    signed = replace(
        unsigned,
        v=unsigned.v + signature[64],
        r=int.from_bytes(signature[:32], "big"),
        s=int.from_bytes(signature[32:64], "big"),
    )
    assert signed.sender == keccak(key.public_key.format(compressed=False)[1:])[12:]


@pytest.mark.parametrize(("v", "r", "s"), [(27, 0, 0), (26, 1, 1), (28, 2**256 - 1, 1), (0, 5, 7), (30, 5, 7)])
def test_what_is_no_signature_has_no_sender(v: int, r: int, s: int) -> None:
    transaction = Transaction(0, b"", b"", 0, None, 0, 0, None, None, 0, None, 0, b"", v, r, s)
    assert transaction.sender is None
