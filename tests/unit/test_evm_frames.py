"""Tables of recorded mainnet blocks, against what the node's JSON-RPC says, and the rules of their columns."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cardinal.apps.evm import decode, frames, rlp
from cardinal.apps.evm.tables.schemas import TABLES, schema
from cardinal.errors import ApplicationError, ConfigurationError
from cardinal.protocols.streams.payload import Payload
from evm_rows import block_row, tables_of

SHARED = Path(__file__).parents[2].parent / "shared"
MAINNET = SHARED / "fixtures" / "mainnet"
VECTORS = Path(__file__).parents[2] / "schemas/vectors/produce.json"
NUMBERS = range(14_000_000, 14_000_011)

recorded = pytest.mark.skipif(not MAINNET.is_dir(), reason="recorded mainnet blocks are not at ../shared/fixtures")

Json = dict[str, Any]


@cache
def recording(number: int) -> Json:
    read: Json = json.loads(gzip.decompress((MAINNET / f"{number}.json.gz").read_bytes()))
    return read


def mainnet(number: int, *kinds: str) -> Payload:
    """A recorded block's payload; with kinds (`h`, `t`, …) only those parts."""
    found = recording(number)
    updates = {
        path: bytes.fromhex(value)
        for path, value in found["values"].items()
        if not kinds or path.split("/")[4:5] in [[kind] for kind in kinds]
    }
    hashes = bytes.fromhex(found["hash"]), bytes.fromhex(found["parent"])
    return Payload(number, *hashes, int(found["weight"]), updates, frozenset(found["deletes"]))


@recorded
def test_recorded_blocks_become_the_rows_that_json_rpc_says() -> None:
    found = [recording(number) for number in NUMBERS]
    each = [tables_of(one["block"], one["receipts"]) for one in found]
    expected = {name: [row for tables in each for row in tables[name]] for name in TABLES}
    tables = frames([mainnet(number) for number in NUMBERS])
    assert list(tables) == list(TABLES)
    for name, table in tables.items():
        assert table.schema.equals(schema(name))
        assert table.to_pylist() == [{column: row[column] for column in table.column_names} for row in expected[name]]


@recorded
@pytest.mark.parametrize("number", NUMBERS)
def test_a_recorded_block_is_decoded_without_loss(number: int) -> None:
    payload = mainnet(number)
    block = decode(payload)
    assert block.encode() == payload
    assert all(entry.encode() == entry.raw for entry in block.transactions)


def test_the_references_blocks_with_uncles_and_withdrawals_are_decoded_without_loss() -> None:
    calls = [
        call
        for case in json.loads(VECTORS.read_text())["cases"]
        if case["name"].startswith("evm-")
        for call in case["calls"]
        if call["op"] == "add_block"
    ]
    payloads = [
        Payload(
            int(call["number"]),
            bytes.fromhex(call["hash"]),
            bytes.fromhex(call["parent"]),
            int(call["weight"]),
            {bytes.fromhex(each["path"]).decode(): bytes.fromhex(each["value"]) for each in call["updates"]},
        )
        for call in calls
    ]
    blocks = [decode(payload) for payload in payloads]
    assert [block.encode() for block in blocks] == payloads
    assert {block.chain_id for block in blocks} == {0x1, 0x89, 0x3D}
    assert sum(len(block.uncles) for block in blocks) > 0
    rows = frames(payloads, tables=["withdrawals"])["withdrawals"].to_pylist()
    assert [(row["block_number"], row["index"], row["amount"]) for row in rows] == [
        (block.number, entry.index, entry.amount) for block in blocks for entry in block.withdrawals or ()
    ]
    assert rows


@recorded
def test_a_payload_of_a_header_alone_gives_a_row_with_nulls() -> None:
    whole = block_row(recording(14_000_000)["block"])
    tables = frames([mainnet(14_000_000, "h")])
    assert tables["blocks"].to_pylist() == [
        {**whole, "total_difficulty": None, "size": None, "transaction_count": None},
    ]
    assert all(tables[name].num_rows == 0 for name in TABLES[1:])
    assert all(tables[name].schema.equals(schema(name)) for name in TABLES)


@recorded
def test_parts_without_the_others_keep_their_rows() -> None:
    logs = frames([mainnet(14_000_000, "l")], tables=["logs", "blocks"])
    assert list(logs) == ["logs", "blocks"]
    assert logs["logs"].num_rows == 179
    assert logs["logs"].column("transaction_hash").null_count == 179
    assert logs["logs"].column("block_timestamp").null_count == 179
    assert logs["blocks"].column("parent_hash").to_pylist() == [recording(14_000_000)["block"]["parentHash"]]
    sent = frames([mainnet(14_000_000, "t")], tables=["transactions"])["transactions"].to_pylist()
    assert {row["transaction_type"]: row["gas_price"] is None for row in sent} == {0: False, 2: True}


@recorded
def test_wide_numbers_are_kept_as_asked() -> None:
    payload = mainnet(14_000_010)
    total = int(recording(14_000_010)["block"]["totalDifficulty"], 16)
    kept = {
        way: frames([payload], integers=way, tables=["blocks"])["blocks"] for way in ("string", "decimal", "binary")
    }
    cells = {way: table.column("total_difficulty")[0].as_py() for way, table in kept.items()}
    assert cells == {"string": str(total), "decimal": total, "binary": total.to_bytes(32, "big")}
    for way, table in kept.items():
        assert table.schema.equals(schema("blocks", way))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("integers", ["string", "decimal", "binary"])
def test_no_column_is_a_float_and_every_time_has_its_zone(table: str, integers: str) -> None:
    columns = schema(table, integers)
    assert columns.names[:3] == ["block_number", "block_hash", "block_timestamp"]
    assert not any(pa.types.is_floating(field.type) for field in columns)
    assert all(field.type == pa.timestamp("us", "UTC") for field in columns if pa.types.is_timestamp(field.type))
    assert frames([], integers=integers, tables=[table])[table].schema.equals(columns)


HASH = bytes(range(32))
BLOCK = f"c/1/b/{HASH.hex()}"


def made(**values: bytes) -> Payload:
    return Payload(1, HASH, HASH, 1, {f"{BLOCK}/{path.replace('_', '/')}": value for path, value in values.items()})


def legacy(value: int, nonce: int = 0) -> bytes:
    return rlp.encode(
        [nonce.to_bytes(9, "big").lstrip(b"\0"), b"", b"", b"", value.to_bytes(32, "big").lstrip(b"\0"), b""]
        + [b"\x1b"] * 3
    )


def test_a_number_too_wide_for_its_column_is_an_error_that_names_it() -> None:
    assert frames([made(t_0=legacy(10**38 - 1))], integers="decimal")["transactions"].num_rows == 1
    with pytest.raises(ApplicationError, match=r"transactions\.value.*'string' or 'binary'"):
        frames([made(t_0=legacy(10**38))], integers="decimal")
    with pytest.raises(ApplicationError, match=r"transactions\.nonce"):
        frames([made(t_0=legacy(0, nonce=2**63))])


def test_senders_are_left_out_where_nobody_wants_them() -> None:
    payload = made(t_0=legacy(1))
    assert frames([payload])["transactions"].column("from_address").null_count == 0
    assert frames([payload], senders=False)["transactions"].column("from_address").null_count == 1


def test_wrong_tables_and_ways_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="no table 'trace'") as wrong:
        frames([], tables=["trace"])
    assert wrong.value.setting == "tables"
    with pytest.raises(ConfigurationError, match="not 'float'") as wrong:
        frames([], integers="float")
    assert wrong.value.setting == "integers"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("t_0", b"", "no bytes"),
        ("t_0", b"\x7d\xc0", "type 125"),
        ("t_0", b"\x02\xc0", "list of 12"),
        ("t_00", legacy(1), "no index"),
        ("t_0x1", legacy(1), "no index"),
        ("h", rlp.encode([]), "15 fields"),
        ("d", b"\0", "first not zero"),
        ("w", rlp.encode([[b""]]), "list of 4"),
        ("r_0", b"\x80", "list of 7"),
        ("l_0_0", rlp.encode([bytes(19), [], b""]), "20 bytes"),
    ],
)
def test_values_that_are_not_what_their_path_says_are_refused(path: str, value: bytes, reason: str) -> None:
    with pytest.raises(ApplicationError, match=reason) as refused:
        decode(made(**{path: value}))
    assert refused.value.path == f"{BLOCK}/{path.replace('_', '/')}"


def test_an_uncle_missing_between_others_is_refused() -> None:
    header = rlp.encode(
        [bytes(32)] * 2 + [bytes(20)] + [bytes(32)] * 3 + [bytes(256)] + [b""] * 6 + [bytes(32), bytes(8)]
    )
    assert len(decode(made(u_0=header, u_1=header)).uncles) == 2
    with pytest.raises(ApplicationError, match="lacks an uncle"):
        decode(made(u_0=header, u_2=header))


def test_an_unknown_path_is_kept() -> None:
    payload = made(x=b"1", h_1=b"2")
    assert dict(decode(payload).rest) == dict(payload.updates)


def test_the_application_is_imported_without_its_extras() -> None:
    probe = (
        "import cardinal.apps.evm, sys; "
        "raise SystemExit(str({'pyarrow', 'coincurve', 'tiny_keccak'} & set(sys.modules) or '') or 0)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


@pytest.mark.parametrize(
    ("absent", "call", "extra"),
    [("pyarrow", "evm.frames", "arrow"), ("tiny_keccak", "evm.decode", "evm")],
)
def test_a_missing_extra_is_named(absent: str, call: str, extra: str) -> None:
    probe = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "from cardinal.apps import evm\nfrom cardinal.errors import MissingExtraError\n"
        f"try: {call}\nexcept MissingExtraError as error: raise SystemExit(error.extra != {extra!r})\n"
        "raise SystemExit('no error')"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
