"""Payloads from JSON-RPC: encoding, checks, contract addresses, hexadecimal texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
from coincurve import PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal.apps import get
from cardinal.errors import ApplicationError, IntegrityError
from cardinal.protocols.streams import split
from cardinal.protocols.streams.types import Finality
from cardinal_ethereum import decode, frames, payload_from_rpc, rlp, verify
from cardinal_ethereum.checks.integrity import CHECKS
from cardinal_ethereum.from_rpc.header import encode_header, encode_withdrawal
from cardinal_ethereum.from_rpc.payload import payload_of
from cardinal_ethereum.from_rpc.receipts import bloom_of, logs_bloom, write_blooms
from cardinal_ethereum.from_rpc.structures import RpcLog, RpcReceipt
from cardinal_ethereum.from_rpc.transactions import encode_transaction
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp.cache import Memo
from cardinal_ethereum.rlp.hex_text import number, quantity, to_parts
from evm_blocks import Json, canonical, receipts_of, sealed, signed, text

Shown: TypeAlias = tuple[Json, list[Json]]

ADDRESS = "0x" + "11" * 20
SENDER = "0x6ac7ea33f8831ea9dcc53393aaa88b25a785dbf0"
MAINNET_TOTAL = 58_750_003_716_598_352_816_469
NO_UNCLES = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"
WITHDRAWAL = {"index": "0x1", "validatorIndex": "0x2", "address": ADDRESS, "amount": "0x3b9aca00"}


def transaction(**changes: object) -> Json:
    shown: Json = {"type": "0x0", "nonce": "0x0", "gasPrice": "0x1", "gas": "0x5208", "to": ADDRESS, "value": "0x0"}
    shown |= {"input": "0x", "v": "0x1b", "r": "0x1", "s": "0x2", "from": SENDER, **changes}
    return shown | {"hash": text(keccak(canonical(shown)))}


def block_of(*transactions: Json, logs: tuple[int, ...] = (), **changes: object) -> Shown:
    """A block that verifies, and its receipts; ``logs`` says how many each transaction has."""
    log = {"address": ADDRESS, "topics": ["0x" + "22" * 32], "data": "0x"}
    counts = [*logs, *[0] * len(transactions)]
    outcomes = [{"gasUsed": "0x5208", "status": "0x1", "logs": [log] * counts[at]} for at in range(len(transactions))]
    header: Json = {
        "parentHash": "0x" + "44" * 32,
        "miner": ADDRESS,
        "stateRoot": "0x" + "55" * 32,
        "difficulty": "0x0",
        "number": "0x64",
        "gasLimit": "0x1c9c380",
        "timestamp": "0x5f5e14b0",
        "extraData": "0x",
        "mixHash": "0x" + "66" * 32,
        "nonce": "0x0000000000000000",
        "baseFeePerGas": "0x7",
        **{name: value for name, value in changes.items() if value is not None},
    }
    return sealed(header, transactions, receipts_of(transactions, outcomes))


def entries(
    block: dict[str, Any],
    receipts: list[dict[str, Any]],
    finality: Finality | None = None,
    uncles: Sequence[dict[str, Any]] = (),
) -> dict[str, bytes]:
    """The updates by what follows the block's prefix, or by the whole path."""
    payload = payload_from_rpc(block, receipts, chain_id=1, finality=finality, uncles=uncles)
    own = f"c/1/b/{block['hash'][2:]}/"
    return {path.removeprefix(own): value for path, value in payload.updates.items()}


# --- finality, totals, weight ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finality", "safe", "finalized"),
    [
        (None, b"", b""),
        (Finality(), b"", b""),
        (Finality(68, None), b"\x44", b""),
        (Finality(5068, 5036), b"\x13\xcc", b"\x13\xac"),
        (Finality(0, 0), b"", b""),
    ],
)
def test_after_the_merge_every_block_has_both_marks(finality: Finality | None, safe: bytes, finalized: bytes) -> None:
    found = entries(*block_of(), finality=finality)
    assert (found["c/1/n/safe"], found["c/1/n/finalized"]) == (safe, finalized)


@pytest.mark.parametrize(
    ("chain_id", "served", "given", "total"),
    [
        (1, None, None, MAINNET_TOTAL),
        (1, "0x1", None, MAINNET_TOTAL),  # a chain's known total comes before a node's
        (1, None, 5, 5),
        (11155111, None, None, 17_000_018_015_853_232),
        (17000, None, None, 1),
        (31337, None, None, 1),
        (31337, "0x0", None, 1),
        (100, "0x64", None, 0x182CD9FFFFFFFFFFFFFFFFFFFFFFFFFEA9528A2),
        (100, "0x64", 0, 0),
        (4242, "0x64", None, 1),  # a node's word counts for nothing: the next one's may be another
        (4242, "0x64", 0, 0),
    ],
)
def test_after_the_merge_the_weight_is_the_final_total_and_the_number(
    chain_id: int, served: str | None, given: int | None, total: int
) -> None:
    block, receipts = block_of()
    payload = payload_from_rpc(block | {"totalDifficulty": served}, receipts, chain_id=chain_id, total_difficulty=given)
    assert payload.weight == total + 100
    assert int.from_bytes(payload.updates[f"c/{chain_id:x}/b/{block['hash'][2:]}/d"], "big") == total


def test_before_the_merge_the_weight_is_the_total_difficulty() -> None:
    block, receipts = block_of(difficulty="0x10")
    assert payload_from_rpc(block | {"totalDifficulty": "0x64"}, receipts, chain_id=1).weight == 100
    assert payload_from_rpc(block, receipts, chain_id=1, total_difficulty=7).weight == 7


def test_an_unknown_total_is_requested() -> None:
    block, receipts = block_of(difficulty="0x10")
    with pytest.raises(ApplicationError, match="totalDifficulty") as caught:
        payload_from_rpc(block, receipts, chain_id=1)
    assert caught.value.path == "totalDifficulty"
    with pytest.raises(ApplicationError, match="above that of any chain"):
        payload_from_rpc(block | {"totalDifficulty": hex(2**192)}, receipts, chain_id=1)


# --- genesis and state ---------------------------------------------------------------------------------------------

STATE = {"c/1/a/" + "aa" * 32 + "/s/" + "bb" * 32: b"\x01", "c/1/a/" + "cc" * 32 + "/s/" + "dd" * 32: b""}


@pytest.mark.parametrize("difficulty", ["0x0", "0x400000000"])
def test_the_genesis_block_is_published_with_its_state_in_ordinary_messages(difficulty: str) -> None:
    block, receipts = block_of(number="0x0", difficulty=difficulty)
    payload = payload_from_rpc(block, receipts, chain_id=1, state=STATE)
    assert payload.sub_batches == {}
    assert payload.updates.items() >= STATE.items()
    app = get("evm")
    assert split(payload, app.topics, app.default_topic)[-1].topic == "cardinal-1"


def test_the_genesis_blocks_difficulty_is_its_total() -> None:
    block, receipts = block_of(number="0x0", difficulty="0x400000000")
    assert payload_from_rpc(block, receipts, chain_id=1).weight == 0x400000000


# --- parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("withdrawals", [None, [], [WITHDRAWAL]])
def test_the_size_of_a_block_counts_its_withdrawals_from_their_fork_on(
    withdrawals: list[dict[str, str]] | None,
) -> None:
    sent = transaction()
    block, receipts = block_of(sent, withdrawals=withdrawals)
    parts = [encode_header(block), rlp.wrap([encode_transaction(sent)]), rlp.wrap([])]
    if withdrawals is not None:
        parts.append(rlp.wrap([encode_withdrawal(one) for one in withdrawals]))
    rows = frames([payload_from_rpc(block, receipts, chain_id=1)], tables=["blocks"], senders=False)["blocks"]
    assert rows["size"].to_pylist() == [len(rlp.wrap(parts))]


@pytest.mark.parametrize(
    ("to", "named", "expected"),
    [
        (None, None, "cd234a471b72ba2f1ccf0a70fcaba648a5eecd8d"),
        (None, "0x" + "77" * 20, "77" * 20),
        (ADDRESS, None, "00" * 20),
    ],
)
def test_a_creation_names_its_contract_whatever_the_node_answers(
    to: str | None, named: str | None, expected: str
) -> None:
    block, receipts = block_of(transaction(to=to))
    receipts[0]["contractAddress"] = named
    assert rlp.decode_list(entries(block, receipts)["r/0"])[0] == bytes.fromhex(expected)


KEPT = [
    ("htrl", "2 transactions, 1 log"),
    ("hl", "transactions not in this payload, 1 log"),
    ("ht", "2 transactions, logs not in this payload"),
    ("l", "no transactions in this payload, 1 log"),
    ("", "no transactions in this payload, no logs in this payload"),
]


@pytest.mark.parametrize(("kinds", "sizes"), KEPT)
def test_the_text_of_a_block_names_what_its_payload_lacks(kinds: str, sizes: str) -> None:
    block, receipts = block_of(transaction(), transaction(nonce="0x1"), logs=(1,))
    whole = payload_from_rpc(block, receipts, chain_id=1)
    updates = {path: value for path, value in whole.updates.items() if "".join(path.split("/")[4:5]) in kinds}
    assert repr(decode(replace(whole, updates=updates))).endswith(f": {sizes}>")


def test_a_block_without_transactions_has_none() -> None:
    assert repr(decode(payload_from_rpc(*block_of(), chain_id=1))).endswith(": 0 transactions, 0 logs>")


@pytest.mark.parametrize("part", ["receipts", "uncles"])
def test_a_block_whose_parts_are_missing_is_not_written_short(part: str) -> None:
    block, receipts = block_of(transaction())
    if part == "receipts":
        receipts = []
    else:
        block["uncles"] = ["0x" + "99" * 32]
    with pytest.raises(ApplicationError, match=f"0 {part}") as caught:
        payload_from_rpc(block, receipts, chain_id=1)
    assert caught.value.path == part


def test_a_block_with_hashes_instead_of_transactions_is_refused() -> None:
    block, receipts = block_of(transaction())
    block["transactions"] = [block["transactions"][0]["hash"]]
    with pytest.raises(ApplicationError, match="transactions"):
        payload_from_rpc(block, receipts, chain_id=1)


# --- checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("bloom", lambda _, receipts: receipts[0].update(logsBloom="0x" + "00" * 256)),
        ("receipts", lambda _, receipts: receipts[0].update(blockHash="0x" + "99" * 32)),
        ("receipts", lambda _, receipts: receipts.reverse()),
        ("withdrawals root", lambda block, _: block["withdrawals"].pop()),
        ("withdrawals root", lambda block, _: block.update(withdrawals=None)),
        ("log indexes", lambda _, receipts: receipts[0]["logs"].reverse()),
        ("gas", lambda _, receipts: receipts[1].update(gasUsed="0x5209")),
        ("form", lambda _, receipts: receipts[0]["logs"][0].pop("logIndex")),
        ("form", lambda block, _: block.update(number="seven")),
    ],
)
def test_each_lie_fails_the_check_that_is_made_for_it(check: str, change: Callable[..., object]) -> None:
    block, receipts = block_of(transaction(), transaction(nonce="0x1"), logs=(2, 1), withdrawals=[WITHDRAWAL])
    verify(block, receipts)
    change(block, receipts)
    # A receipt's bloom is under the receipts root too: on its own, the bloom's check has to find it.
    checks = (check,) if check in ("bloom", "log indexes") else tuple(CHECKS)
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, checks=checks)
    assert caught.value.check == check


def test_a_chain_leaves_out_what_it_does_not_satisfy() -> None:
    block, receipts = block_of(transaction())
    block["receiptsRoot"] = "0x" + "00" * 32
    block["hash"] = text(keccak(encode_header(block)))
    receipts[0]["blockHash"] = block["hash"]
    with pytest.raises(IntegrityError, match="receipts root"):
        verify(block, receipts)
    verify(block, receipts, checks=("hash", "transactions root", "receipts", "bloom"))


# --- a created contract stands under no root of the header: it is held to who signed ---


KEY = PrivateKey(b"\x46" * 32)  # the key of EIP-155's example
SIGNER = "0x9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f"
NONCE = 9


def at_nonce(nonce: int) -> bytes:
    """Where the sender creates at a nonce."""
    return keccak(rlp.encode([bytes.fromhex(SIGNER[2:]), bytes((nonce,))]))[12:]


CREATED = at_nonce(NONCE)
ELSEWHERE = "0x" + "77" * 20
ELSEWHERE_CREATED = "0x" + keccak(rlp.encode([bytes.fromhex(ELSEWHERE[2:]), bytes((NONCE,))]))[12:].hex()
HEADER = (
    *("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot", "logsBloom", "gasLimit"),
    *("gasUsed", "timestamp", "extraData", "mixHash", "nonce"),
)


def creating(kind: int, *, creates: bool) -> Json:
    """A transaction of a type, really signed."""
    shown: Json = {"type": hex(kind), "nonce": hex(NONCE), "gas": "0x5208", "gasPrice": "0x1", "value": "0x0"}
    shown |= {"to": None if creates else ELSEWHERE, "input": "0x6001"}
    if kind:
        shown |= {"chainId": "0x1", "maxPriorityFeePerGas": "0x1", "maxFeePerGas": "0x2", "accessList": []}
    return signed(shown, KEY, 1)


def block_with(transaction: dict[str, Any], contract: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block for the check of contracts alone, after the merge; nothing else in it fits."""
    block: dict[str, Any] = dict.fromkeys(HEADER, "0x01") | {"number": "0x7", "difficulty": "0x0", "hash": "0x01"}
    receipt = {"cumulativeGasUsed": "0x1", "gasUsed": "0x1", "logsBloom": "0x", "logs": [], "status": "0x1"}
    return block | {"transactions": [transaction]}, [receipt | {"contractAddress": contract}]


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize("said", ["0x" + CREATED.hex(), "0x" + CREATED.hex().upper(), None])
def test_a_creation_is_the_signers_with_or_without_its_receipt(kind: int, said: str | None) -> None:
    block, receipts = block_with(creating(kind, creates=True), said)
    payload = payload_of(verify(block, receipts, checks=("contracts",)), chain_id=1)
    assert payload == payload_from_rpc(block, receipts, chain_id=1)
    assert rlp.decode_list(payload.updates["c/1/b/01/r/0"])[0] == CREATED


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize(
    ("creates", "sender", "contract"),
    [
        (True, SIGNER, ELSEWHERE),
        (True, ELSEWHERE, None),
        (True, ELSEWHERE, ELSEWHERE_CREATED),
        (True, None, None),
        (True, SIGNER, "0x" + "00" * 20),
        (True, SIGNER, "0x"),
        (False, SIGNER, ELSEWHERE),
        (False, SIGNER, "0x" + CREATED.hex()),
    ],
)
def test_another_contract_than_the_signers_is_found(
    kind: int, sender: str | None, contract: str | None, *, creates: bool
) -> None:
    block, receipts = block_with(creating(kind, creates=creates) | {"from": sender}, contract)
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, checks=("contracts",))
    assert caught.value.check == "contracts"


def test_a_creation_that_nobody_can_have_signed_is_refused() -> None:
    block, receipts = block_with(creating(0, creates=True) | {"r": "0x0", "s": "0x0"}, "0x" + CREATED.hex())
    with pytest.raises(IntegrityError, match="contracts"):
        verify(block, receipts, checks=("contracts",))


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize("nobody", ["0x", ""])
def test_a_transaction_to_nobody_is_a_creation_in_every_encoding(kind: int, nobody: str) -> None:
    creation = creating(kind, creates=True)
    honest = payload_from_rpc(*block_with(creation, None), chain_id=1)
    block, receipts = block_with(creation | {"to": nobody}, None)
    assert payload_of(verify(block, receipts, checks=("contracts",)), chain_id=1) == honest
    for lie in (ELSEWHERE, "0x" + "00" * 20):
        with pytest.raises(IntegrityError, match="contracts"):
            verify(block, [receipts[0] | {"contractAddress": lie}], checks=("contracts",))


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("to", ["0X", "xx", "0x00", "0x" + "00" * 21])
def test_what_is_neither_an_address_nor_nobody_is_refused(kind: int, to: str) -> None:
    shown = creating(min(kind, 2), creates=True) | {"type": hex(kind), "to": to, "chainId": "0x1", "accessList": []}
    with pytest.raises(ApplicationError, match="is no address"):
        encode_transaction(shown)


# --- texts of a node that are read together: each is its own bytes and reaches into no other, and no giant is ---


ADDRESS, TOPIC = "0x" + "aB" * 20, "0x" + "Cd" * 32


def receipt(*logs: RpcLog, bloom: str | None = None) -> RpcReceipt:
    return RpcReceipt("0x1", "0x" + logs_bloom(logs).hex() if bloom is None else bloom, list(logs))


@given(st.lists(st.binary(max_size=9)))
@example([])
@example([b"", b"\x00", b""])
def test_texts_read_together_are_what_each_is_by_itself(parts: list[bytes]) -> None:
    assert to_parts([part.hex() for part in parts]) == parts


@pytest.mark.parametrize(
    "texts", [["a", "b"], ["abc", "d"], ["ab", "c"], ["a b", "c"], ["ab ", " c"], ["0x"], ["é" * 2]]
)
def test_a_text_that_ends_in_the_middle_of_a_byte_or_is_no_hexadecimal_is_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"digit|hexadecimal|ASCII|Odd"):
        to_parts(texts)


@pytest.mark.parametrize("write", [quantity, number])
def test_a_quantity_of_more_than_256_bits_is_refused_and_not_remembered(write: Any) -> None:  # noqa: ANN401 -- a cache
    before = len(write)
    for length in (65, 1_000_000):
        with pytest.raises(ValueError, match="256 bits"):
            write["0x" + "f" * length]
    assert len(write) == before


def test_what_is_remembered_is_bounded_and_what_is_refused_is_not_remembered() -> None:
    made: list[int] = []

    def halved(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        made.append(number)
        return number // 2

    halves = Memo(halved, maxsize=2)
    assert [halves[number] for number in (2, 4, 2, 4)] == [1, 2, 1, 2]
    assert made == [2, 4]
    with pytest.raises(ValueError, match="3"):
        halves[3]
    assert halves == {2: 1, 4: 2}
    assert (halves[6], halves) == (3, {6: 3})


@pytest.mark.parametrize("kind", ["0x0", "0x2"])
@pytest.mark.parametrize("field", ["to", "input", "r", "s"])
def test_a_prefix_inside_a_text_is_no_hexadecimal(kind: str, field: str) -> None:
    texts = {"to": ADDRESS, "input": "0x" + "ab" * 32, "r": TOPIC, "s": TOPIC}
    fees = {"maxPriorityFeePerGas": "0x1", "maxFeePerGas": "0x2", "chainId": "0x1", "yParity": "0x0"}
    shown = {
        "type": kind,
        "nonce": "0x1",
        "gas": "0x2",
        "gasPrice": "0x3",
        "value": "0x4",
        "v": "0x1b",
        **fees,
        **texts,
    }
    assert encode_transaction(shown)
    text = texts[field]
    for at in (4, len(text) - 2):
        with pytest.raises(ApplicationError, match="cannot be read"):
            encode_transaction({**shown, field: f"{text[:at]}0x{text[at + 2 :]}"})


@pytest.mark.parametrize(("address", "topic"), [("0x" + "11" * 21, TOPIC), (ADDRESS, "0x" + "11" * 10**5), ("", TOPIC)])
def test_an_address_or_topic_of_another_length_has_no_bits(address: str, topic: str) -> None:
    with pytest.raises(ApplicationError, match="neither an address"):
        logs_bloom([RpcLog(address, [topic], "0x")])


def test_a_bloom_is_its_logs_in_any_capitals_and_a_lie_is_retained_verbatim() -> None:
    log = RpcLog(ADDRESS, [TOPIC], "0x")
    true = receipt(log)
    shouted = receipt(log, bloom="0x" + true.logs_bloom[2:].upper())
    assert write_blooms([true, shouted, receipt()]) == (
        [*write_blooms([true])[0] * 2, b"\xb9\x01\x00" + bytes(256)],
        bloom_of([log]),
    )
    for lie in ("0x" + "00" * 256, "0x" + "ff" * 256, true.logs_bloom + "00", "0x"):
        written, whole = write_blooms([true, receipt(log, bloom=lie)])
        assert whole is None
        assert written == [write_blooms([true])[0][0], rlp.encode(bytes.fromhex(lie[2:]))]
    with pytest.raises(ValueError, match="0x"):
        write_blooms([receipt(log, bloom="1x" + true.logs_bloom[2:])])
