"""Encoding from JSON-RPC equals that of typed values, and hostile bytes and texts end in our own errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal.errors import ApplicationError, CardinalError, IntegrityError
from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import decode, payload_from_rpc, rlp, verify
from cardinal_ethereum.checks.trie import EMPTY_ROOT, keyed_root, ordered_root
from cardinal_ethereum.from_rpc.receipts import encode_log, encode_receipt, logs_bloom
from cardinal_ethereum.from_rpc.transactions import encode_transaction
from cardinal_ethereum.keccak import keccak
from tries import Grown

items = st.recursive(st.binary(max_size=70), lambda inner: st.lists(inner, max_size=5), max_leaves=60)
quantities = st.one_of(st.integers(0, 300), st.integers(0, 2**256 - 1)).map(hex)
addresses = st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex())
hashes = st.binary(min_size=32, max_size=32).map(lambda raw: "0x" + raw.hex())
data = st.binary(max_size=80).map(lambda raw: "0x" + raw.hex())
parities = st.sampled_from(["0x0", "0x1"])


def raw(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def minimal(text: str) -> bytes:
    value = int(text, 16)
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


# --- RLP -----------------------------------------------------------------------------------------------------


@given(items)
@example([b"\x7f", b"\x80", b"", b"\x00", [], bytes(55), bytes(56), bytes(255), bytes(256), bytes(70_000)])
def test_rlp_gives_back_what_it_was_given(item: rlp.Item) -> None:
    assert rlp.decode(rlp.encode(item)) == item


@given(st.binary(max_size=60))
@example(b"\x81\x00")
@example(b"\xb8\x01\xff")
@example(b"\xb9\x00\x38" + bytes(56))
@example(b"\xbf" + b"\xff" * 8)
@example(b"\xf8")
def test_bytes_are_rlp_only_in_the_form_in_which_it_is_written(data: bytes) -> None:
    try:
        item = rlp.decode(data)
    except ApplicationError:
        return
    assert rlp.encode(item) == data


def test_deep_nesting_is_refused_instead_of_exhausting_the_stack() -> None:
    nested = b"\xc0"
    for _ in range(5_000):
        nested = rlp.wrap((nested,))
    with pytest.raises(ApplicationError):
        rlp.decode(nested)


@given(st.integers(0, 2**300))
def test_a_number_is_its_minimal_bytes(number: int) -> None:
    assert rlp.encode_int(number) == rlp.encode(minimal(hex(number)))


def test_a_negative_number_has_no_bytes() -> None:
    with pytest.raises(OverflowError):
        rlp.encode_int(-1)


# --- the trie, against one that is built node by node ------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=300))
@example([bytes((1,))] * 2)
@example([bytes(100)] * 257)
def test_the_root_is_that_of_a_trie_built_node_by_node(values: list[bytes]) -> None:
    assert ordered_root(values) == Grown({rlp.encode(minimal(hex(at))): value for at, value in enumerate(values)}).root


@given(st.dictionaries(st.binary(min_size=2, max_size=2) | st.binary(min_size=32, max_size=32), st.binary(min_size=1)))
@example({bytes((0x10, at)): b"x" for at in range(256)})
@example({bytes(31) + bytes((at,)): bytes(40) for at in range(17)})
def test_the_root_over_keys_of_one_length_is_that_of_a_trie_built_otherwise(content: dict[bytes, bytes]) -> None:
    length = max(map(len, content), default=0)
    content = {key: value for key, value in content.items() if len(key) == length}
    assert keyed_root(content) == (Grown(content).root if content else EMPTY_ROOT)
    assert keyed_root(dict(reversed(content.items()))) == keyed_root(content)


def test_the_root_over_nothing_is_the_known_one() -> None:
    known = "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
    assert ordered_root([]) == keyed_root({}) == EMPTY_ROOT == bytes.fromhex(known)


# --- transactions of every type ------------------------------------------------------------------------------

accesses = st.lists(
    st.fixed_dictionaries({"address": addresses, "storageKeys": st.lists(hashes, max_size=2)}), max_size=2
)
authorizations = st.lists(
    st.fixed_dictionaries(
        {"chainId": quantities, "address": addresses, "nonce": quantities, "r": quantities, "s": quantities}
        | {"yParity": parities}
    ),
    max_size=2,
)


@st.composite
def shown_transactions(draw: st.DrawFn) -> dict[str, Any]:
    """A transaction of any type as JSON-RPC shows it, also with the fields that its type does not have."""
    kind = draw(st.integers(0, 4))
    parity = draw(parities)
    names = ("chainId", "nonce", "gasPrice", "maxPriorityFeePerGas", "maxFeePerGas", "maxFeePerBlobGas")
    shown: dict[str, Any] = {name: draw(quantities) for name in (*names, "gas", "value", "r", "s")}
    shown |= {"type": hex(kind), "to": draw(st.none() | addresses), "input": draw(data)}
    shown |= {"accessList": draw(accesses), "authorizationList": draw(authorizations)}
    shown["blobVersionedHashes"] = draw(st.lists(hashes, max_size=2))
    shown["v"] = draw(quantities) if kind == 0 else parity
    if kind and draw(st.booleans()):
        shown["yParity"] = parity  # nodes say it, or v alone
    return shown


@given(shown_transactions())
def test_a_transaction_from_json_is_the_one_that_its_bytes_say(shown: dict[str, Any]) -> None:
    encoded = encode_transaction(shown)
    block = payload_of_one(encoded)
    (typed,) = decode(block).transactions
    assert typed.encode() == encoded
    assert (typed.nonce, typed.gas, typed.value) == tuple(int(shown[name], 16) for name in ("nonce", "gas", "value"))
    assert (typed.r, typed.s, typed.v) == tuple(int(shown[name], 16) for name in ("r", "s", "v"))
    assert typed.to == (raw(shown["to"]) if shown["to"] else None)
    assert typed.input == raw(shown["input"])
    if typed.type:
        listed = [(entry.address, entry.storage_keys) for entry in typed.access_list]
        wanted = [(raw(one["address"]), tuple(map(raw, one["storageKeys"]))) for one in shown["accessList"]]
        assert listed == wanted
    if typed.type == 3:
        assert typed.blob_versioned_hashes == tuple(map(raw, shown["blobVersionedHashes"]))
        assert typed.max_fee_per_blob_gas == int(shown["maxFeePerBlobGas"], 16)
    if typed.type == 4:
        signed = [(entry.address, entry.r, entry.y_parity) for entry in typed.authorizations]
        assert signed == [
            (raw(one["address"]), int(one["r"], 16), int(one["yParity"], 16)) for one in shown["authorizationList"]
        ]


def payload_of_one(transaction: bytes) -> Payload:
    """A payload that carries one transaction and nothing else."""
    return Payload(1, bytes(32), bytes(32), 1, {f"c/1/b/{bytes(32).hex()}/t/0": transaction})


# --- receipts and logs -----------------------------------------------------------------------------------------

logs = st.lists(
    st.fixed_dictionaries({"address": addresses, "topics": st.lists(hashes, max_size=4), "data": data}), max_size=4
)


@given(logs)
def test_a_bloom_is_that_of_every_address_and_topic(shown: list[dict[str, Any]]) -> None:
    bits = 0
    for log in shown:
        for value in (log["address"], *log["topics"]):
            hashed = keccak(raw(value))
            for at in (0, 2, 4):
                bits |= 1 << (int.from_bytes(hashed[at : at + 2], "big") % 2048)
    assert logs_bloom(shown) == bits.to_bytes(256, "big")


@given(logs, st.sampled_from([None, "0x0", "0x1", "0x2", "0x7f"]), st.none() | hashes)
def test_a_receipt_holds_status_or_root_gas_bloom_and_logs(
    shown: list[dict[str, Any]], kind: str | None, root: str | None
) -> None:
    receipt: dict[str, Any] = {
        "cumulativeGasUsed": "0x5208",
        "logsBloom": "0x" + "00" * 256,
        "logs": shown,
        "type": kind,
    }
    receipt |= {"status": "0x1"} if root is None else {"root": root}
    encoded = encode_receipt(receipt)
    if kind not in (None, "0x0"):
        assert encoded[0] == int(kind, 16)
        encoded = encoded[1:]
    outcome = b"\x01" if root is None else raw(root)
    written = [[raw(log["address"]), [raw(topic) for topic in log["topics"]], raw(log["data"])] for log in shown]
    assert rlp.decode(encoded) == [outcome, b"\x52\x08", bytes(256), written]
    assert [rlp.decode(encode_log(log)) for log in shown] == written


# --- whatever a node says ----------------------------------------------------------------------------------------

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | quantities | data,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLAIN = (
    *("number", "hash", "parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot"),
    *("logsBloom", "difficulty", "gasLimit", "gasUsed", "timestamp", "extraData", "mixHash", "nonce"),
)
LATER = ("withdrawals", "totalDifficulty", "withdrawalsRoot", "baseFeePerGas")
NAMES = (*PLAIN, *LATER, "transactions", "uncles")
SOUND: dict[str, Any] = dict.fromkeys(PLAIN, "0x01") | {"transactions": [], "uncles": []}


@given(st.dictionaries(st.sampled_from(NAMES), junk), st.lists(junk, max_size=2))
@example({"number": "0x-1"}, [])
@example({"number": "-0x1"}, [])
@example({"hash": "zz"}, [])
@example({"hash": "ab" * 33}, [])
@example({"withdrawals": [{"index": "0x1", "validatorIndex": "x", "address": "0x", "amount": "0x1"}]}, [])
def test_whatever_a_node_answers_ends_in_one_of_our_errors(changes: dict[str, Any], receipts: list[Any]) -> None:
    block = SOUND | changes
    with pytest.raises(IntegrityError):
        verify(block, receipts)
    try:
        payload_from_rpc(block, receipts, chain_id=1)
    except CardinalError as error:
        assert isinstance(error, ApplicationError)  # noqa: PT017 - some of these blocks can be written
