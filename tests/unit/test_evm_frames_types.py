"""The tables of what forks brought: access lists, blobs and their price, authorizations; and tables of many blocks."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from cardinal.apps.evm import Abi, decode, decoded_frames, frames, rlp
from cardinal.apps.evm.tables.schemas import TABLES, schema
from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import MissingPayload, Payload
from evm_blocks import Json, minimal
from evm_typed import KEY, OTHER, ZERO, address, block_of, call, wish


def row(payload: Payload, table: str = "transactions", **how: Any) -> Json:  # noqa: ANN401 -- options of frames
    (found,) = frames([payload], tables=[table], **how)[table].to_pylist()
    shown: Json = found
    return shown


def test_an_authorization_says_whose_account_it_is() -> None:
    wishes = [wish(OTHER, 1, 0), wish(KEY, 0, 2**64 - 1), wish(KEY, 2**256 - 1, 7)]
    payload = block_of(call(4, authorizationList=wishes))
    found = row(payload)["authorization_list"]
    assert [each["authority"] for each in found] == [address(OTHER), address(KEY), address(KEY)]
    assert [(each["chain_id"], each["nonce"], each["y_parity"]) for each in found] == [
        tuple(str(int(shown[name], 16)) for name in ("chainId", "nonce", "yParity")) for shown in wishes
    ]
    assert [(each["address"], each["r"], each["s"]) for each in found] == [
        (shown["address"], shown["r"], shown["s"]) for shown in wishes
    ]
    assert [each["authority"] for each in row(payload, senders=False)["authorization_list"]] == [None] * 3
    assert row(payload, "receipts")["blob_gas_used"] is None


@pytest.mark.parametrize("changes", [{"yParity": "0x2"}, {"yParity": "0xff"}, {"r": "0x0"}, {"s": hex(2**256 - 1)}])
def test_an_authorization_without_a_signature_is_nobodys(changes: Json) -> None:
    """It may stand in a block: the protocol passes over it."""
    payload = block_of(call(4, authorizationList=[wish(OTHER, 1, 0, **changes)]))
    (entry,) = decode(payload).transactions[0].authorizations
    assert entry.authority is None
    assert row(payload)["authorization_list"][0]["authority"] is None


def test_blobs_are_counted_in_gas() -> None:
    hashes = ["0x01" + "22" * 31, "0x01" + "33" * 31, "0x01" + "44" * 31]
    payload = block_of(call(3, maxFeePerBlobGas="0xa", blobVersionedHashes=hashes))
    assert row(payload)["blob_versioned_hashes"] == hashes
    assert row(payload, "receipts")["blob_gas_used"] == 3 * 131_072 == row(payload, "blocks")["blob_gas_used"]
    assert row(payload)["authorization_list"] is None
    without = Payload(
        *(1, payload.hash, payload.parent, 1),
        {path: value for path, value in payload.updates.items() if "/t/" not in path},
    )
    assert row(without, "receipts")["blob_gas_used"] is None


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_what_a_transaction_announces_to_touch_is_there(kind: int) -> None:
    entries = [{"address": "0x" + "12" * 20, "storageKeys": ["0x" + "34" * 32, ZERO]}]
    entries.append({"address": "0x" + "56" * 20, "storageKeys": []})
    more: Json = {"maxFeePerBlobGas": "0xa", "blobVersionedHashes": [], "authorizationList": [], "gasPrice": "0x9"}
    whole, empty = block_of(call(kind, accessList=entries, **more)), block_of(call(kind, accessList=[], **more))
    assert row(whole)["access_list"] == [
        {"address": each["address"], "storage_keys": each["storageKeys"]} for each in entries
    ]
    assert row(empty)["access_list"] == []


@pytest.mark.parametrize(("chain_id", "number", "status"), [(1, 4_369_999, None), (1, 4_370_000, 0), (5, 1, 0)])
def test_before_byzantium_nobody_knows_whether_a_transaction_went_well(
    chain_id: int, number: int, status: int | None
) -> None:
    """The stream says 0 of every receipt that had a root."""
    meta = rlp.encode([bytes(20), b"\1", b"\1", bytes(256), b"", b"", b""])
    path = f"c/{chain_id:x}/b/{bytes(32).hex()}/r/0"
    assert row(Payload(number, bytes(32), bytes(32), 1, {path: meta}), "receipts")["status"] == status


# --- many blocks, and some of their tables ----------------------------------------------------------------------------


def large(number: int, transactions: int) -> Payload:
    """A block of some transactions of 100 kB."""
    raw = rlp.encode([minimal(number), b"\1", b"\1", bytes(20), b"", bytes(100_000), b"\x1b", b"\1", b"\1"])
    own = f"c/1/b/{number:064x}"
    updates = {f"{own}/t/{index:x}": raw for index in range(transactions)}
    return Payload(number, number.to_bytes(32, "big"), bytes(32), number, updates)


def test_blocks_that_come_one_by_one_give_the_rows_that_they_give_together() -> None:
    blocks = [large(number, 3) for number in range(100)]
    taken: list[int] = []

    def coming() -> Any:  # noqa: ANN401 -- a generator of payloads
        for each in blocks:
            taken.append(each.number)
            yield each

    table = frames(coming(), senders=False, tables=["transactions"])["transactions"]
    assert taken == list(range(100))
    assert table.column("block_number").to_pylist() == [number for number in range(100) for _ in range(3)]
    assert table.column("nonce").to_pylist() == table.column("block_number").to_pylist()
    assert table.column("nonce").num_chunks > 1  # a table of so many bytes was not made at once
    assert table.combine_chunks().schema.equals(schema("transactions"))


def test_what_is_held_beside_the_tables_does_not_grow_with_the_blocks() -> None:
    def peak(blocks: int) -> int:
        tracemalloc.start()  # which sees Python's objects, and not what Arrow holds
        try:
            table = frames((large(number, 3) for number in range(blocks)), senders=False)["transactions"]
            assert table.num_rows == 3 * blocks
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(240) < 1.3 * peak(60)


@pytest.mark.parametrize("tables", [None, ["blocks"]])
def test_a_block_whose_content_cannot_be_had_is_refused_by_number_and_hash(tables: list[str] | None) -> None:
    missing = MissingPayload(7, b"\xab" * 32)
    for call_of in (
        lambda: decode(missing),
        lambda: frames([block_of(), missing], tables=tables),
        lambda: decoded_frames([missing], Abi([])),
    ):
        with pytest.raises(ApplicationError, match=r"block 7 \(0xabab.*skip it, or.*on_incomplete='halt'"):
            call_of()


def test_only_the_parts_that_a_table_is_made_of_are_looked_at() -> None:
    payload = block_of(call(2))
    own = f"c/1/b/{payload.hash.hex()}"
    damaged = Payload(1, payload.hash, payload.parent, 1, {**payload.updates, f"{own}/r/0": b"?", f"{own}/l/0/0": b"?"})
    whole = frames([payload])
    for table in ("blocks", "transactions", "withdrawals"):
        assert frames([damaged], tables=[table])[table].equals(whole[table])
    for table in ("receipts", "logs"):
        with pytest.raises(ApplicationError, match=own):
            frames([damaged], tables=[table])


def test_every_table_alone_is_the_same_as_among_the_others() -> None:
    payloads = [
        block_of(call(2), call(4, authorizationList=[wish(OTHER, 1, 0)])),
        block_of(),
        block_of(call(1, gasPrice="0x9")),
    ]
    whole = frames(payloads)
    for table in TABLES:
        assert frames(payloads, tables=[table]) == {table: whole[table]}
    assert [whole["blocks"].column(name).to_pylist() for name in ("transaction_count",)] == [[2, 0, 1]]
    assert whole["blocks"].column("size").null_count == 0
    assert pa.types.is_struct(whole["transactions"].schema.field("access_list").type.value_type)
