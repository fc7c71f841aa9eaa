"""Logs and inputs by contract ABIs: signatures, decoding, tables."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import eth_abi.abi as reference
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import decode
from cardinal_ethereum.abi.decoder import Abi, Decoded, TopicHash, Undecoded
from cardinal_ethereum.abi.signatures import from_text
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.block import Block, Log, Transaction
from cardinal_ethereum.tables.decoded import SCHEMAS, decoded_frames
from examples import examples
from recorded_blocks import RecordedBlock, cases, mainnet, own, real

ERC20 = "event Transfer(address indexed from, address indexed to, uint256 value)"
ERC721 = "event Transfer(address indexed from, address indexed to, uint256 indexed tokenId)"
TRANSFER = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")
WHO = "0x" + "ab" * 20


def topic(number: int) -> bytes:
    return number.to_bytes(32, "big")


def log(topics: list[bytes], data: bytes = b"") -> Log:
    return Log(0, 0, bytes(20), tuple(topics), data)


def call(text: str, *values: object, more: bytes = b"") -> bytes:
    known = from_text(text)
    types = [parameter.type for parameter in known.parameters]
    return known.selector + reference.encode(types, values) + more


def got(found: Decoded | Undecoded) -> Decoded:
    assert isinstance(found, Decoded), found
    return found


def raw(found: Decoded | Undecoded) -> Undecoded:
    assert isinstance(found, Undecoded), found
    return found


def test_one_topic_with_two_layouts_is_distinguished_by_the_contents_of_the_log() -> None:
    abi = Abi.from_signatures([ERC20, ERC721])
    fungible = got(abi.log(log([TRANSFER, topic(1), topic(2)], topic(7))))
    assert (fungible.name, fungible["from"], fungible["value"]) == ("Transfer", "0x" + "00" * 19 + "01", 7)
    single = got(abi.log(log([TRANSFER, topic(1), topic(2), topic(3)])))
    assert single["tokenId"] == 3
    assert [argument.indexed for argument in single.arguments] == [True, True, True]


def test_a_log_that_does_not_fit_is_kept_with_its_event() -> None:
    abi = Abi.from_signatures([ERC20])
    for odd in (
        log([TRANSFER, topic(1)], topic(7)),  # too few topics
        log([TRANSFER, topic(1), topic(2)], b"\1"),  # too little data
        log([TRANSFER, b"\xff" * 32, topic(2)], topic(7)),  # no address
    ):
        kept = raw(abi.log(odd))
        assert (kept.topics, kept.data) == (odd.topics, odd.data)
        assert [known.name for known in kept.candidates] == ["Transfer"]
    assert "no event" in raw(abi.log(log([topic(9)]))).reason
    assert "no event" in raw(abi.log(log([]))).reason


def test_an_indexed_value_of_a_dynamic_type_is_only_a_hash() -> None:
    abi = Abi.from_signatures(
        ["event Named(string indexed name, bytes32 indexed id, uint8[2] indexed pair, string text)"]
    )
    hashed, identity, pair = keccak(b"alice"), b"\5" * 32, b"\6" * 32
    first = from_text("event Named(string, bytes32, uint8[2], string)").topic
    found = got(abi.log(log([first, hashed, identity, pair], reference.encode(["string"], ["shown"]))))
    assert [argument.value for argument in found.arguments] == [
        *(TopicHash(hashed), identity, TopicHash(pair), "shown"),
    ]


def test_anonymous_events_are_found_by_what_they_hold_and_never_guessed() -> None:
    one = "event Note(address indexed who, uint8 size) anonymous"
    other = "event Mark(address indexed who, string text) anonymous"
    abi = Abi.from_signatures([ERC20, one, other])
    assert got(abi.log(log([topic(5)], topic(200)))).name == "Note"
    assert got(abi.log(log([topic(5)], reference.encode(["string"], ["x"])))).name == "Mark"
    assert "no event" in raw(abi.log(log([topic(5)], topic(300)))).reason  # neither a uint8 nor a string
    twins = Abi.from_signatures([one, "event Sort(address indexed who, uint16 kind) anonymous"])
    both = raw(twins.log(log([topic(5)], topic(200))))
    assert [known.name for known in both.candidates] == ["Note", "Sort"]
    assert got(twins.log(log([topic(5)], topic(300)))).name == "Sort"
    # A named event comes first, whatever an anonymous one would make of its topics.
    assert got(abi.log(log([TRANSFER, topic(1), topic(2)], topic(7)))).name == "Transfer"


def test_overloads_are_distinguished_by_their_selectors() -> None:
    texts = [
        "safe(address to, uint256 id)",
        "function safe(address to, uint256 id, bytes data) external returns (bool)",
    ]
    abi = Abi.from_signatures(texts)
    assert got(abi.input(call(texts[0], WHO, 5)))["id"] == 5
    longer = got(abi.input(call(texts[1], WHO, 6, b"note")))
    assert (longer["to"], longer["id"], longer["data"]) == (WHO, 6, b"note")
    assert longer.signature.text == "safe(address,uint256,bytes)"


def test_functions_that_share_a_selector_are_distinguished_by_what_fits() -> None:
    # Two well-known functions whose selectors are both 0x42966c68.
    burn, clash = "burn(uint256)", "collate_propagate_storage(bytes16)"
    assert from_text(burn).selector == from_text(clash).selector
    abi = Abi.from_signatures([burn, clash])
    assert got(abi.input(call(burn, 5))).name == "burn"
    both = raw(abi.input(from_text(burn).selector + b"\xff" * 16 + bytes(16)))
    assert [known.text for known in both.candidates] == [burn, clash]


def test_bytes_behind_the_arguments_are_retained_and_reported() -> None:
    abi = Abi.from_signatures(["transfer(address,uint256)"])
    tagged = call("transfer(address,uint256)", WHO, 5, more=b"a tag of some front end")
    found = got(abi.input(tagged))
    assert (found.exact, found.data, found.arguments[1].value) == (False, tagged, 5)
    assert got(abi.input(tagged[:-23])).exact


@pytest.mark.parametrize("data", [b"", b"\1\2\3", b"\1\2\3\4", bytes.fromhex("a9059cbb") + b"\xff" * 64])
def test_an_input_that_nothing_fits_is_kept(data: bytes) -> None:
    assert raw(Abi.from_signatures(["transfer(address,uint256)"]).input(data)).data == data


def test_structures_and_their_arrays_come_from_json_and_from_text_alike() -> None:
    parts = [{"name": "maker", "type": "address"}, {"name": "amounts", "type": "uint256[]"}]
    inputs = [{"name": "orders", "type": "tuple[]", "components": parts}, {"name": "note", "type": "bytes"}]
    entries: list[dict[str, Any]] = [
        {"type": "function", "name": "submit", "inputs": inputs},
        {"type": "constructor", "inputs": []},
        {"type": "error", "name": "Bad", "inputs": []},
    ]
    text = "function submit((address maker, uint[] amounts)[] calldata orders, bytes memory note)"
    written, parsed = Abi.from_signatures([text]), Abi.from_json(json.dumps(entries), entries)
    assert written.signatures == parsed.signatures
    assert parsed.signatures[0].text == "submit((address,uint256[])[],bytes)"
    data = call(text, [(WHO, [1, 2]), (WHO, [])], b"n")
    assert got(parsed.input(data))["orders"] == ((WHO, (1, 2)), (WHO, ()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "transfer",
        "transfer(address",
        "transfer(adress)",
        "event A(uint7 x)",
        "f(uint256 indexed x)",
        "f(uint256 a b)",
    ],
)
def test_what_is_no_signature_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Abi.from_signatures([text])
    assert caught.value.setting == "abi"


@pytest.mark.parametrize("abi", ["{", "[1]", '[{"type": "event"}]', '[{"name": "f", "inputs": [{"type": "tuple"}]}]'])
def test_what_is_no_json_abi_is_refused(abi: str) -> None:
    with pytest.raises(ConfigurationError, match="JSON ABI"):
        Abi.from_json(abi)


TYPES = st.sampled_from(
    ["uint256", "int8", "bool", "address", "bytes", "string", "bytes4", "uint256[]", "(bool,bytes)"]
)


def test_data_whose_parts_are_the_same_part_is_not_blown_up() -> None:
    word, many, text = topic, 1_500, "multicall(bytes[])"
    bomb = word(32) + word(many) + word(32 * many) * many + word(50_000) + bytes(50_016)
    kept = raw(Abi.from_signatures([text]).input(from_text(text).selector + bomb))
    assert len(kept.data) < 100_000
    honest = call(text, [bytes(50_000), *[b"x"] * many])
    assert len(got(Abi.from_signatures([text]).input(honest)).arguments[0].value) == many + 1


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "uint256": st.integers(0, 2**256 - 1),
    "int8": st.integers(-128, 127),
    "bool": st.booleans(),
    "address": st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex()),
    "bytes": st.binary(max_size=70),
    "string": st.text(max_size=20).filter(lambda text: text.isascii()),
    "bytes4": st.binary(min_size=4, max_size=4),
    "uint256[]": st.lists(st.integers(0, 2**256 - 1), max_size=3).map(tuple),
    "(bool,bytes)": st.tuples(st.booleans(), st.binary(max_size=40)),
}


@given(st.lists(TYPES, max_size=4), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_what_is_encoded_is_decoded(types: list[str], data: st.DataObject) -> None:
    values = [data.draw(VALUES[kind]) for kind in types]
    text = f"f({','.join(types)})"
    found = got(Abi.from_signatures([text]).input(call(text, *values)))
    assert [argument.value for argument in found.arguments] == values
    assert found.exact


@given(st.lists(TYPES, min_size=1, max_size=3), st.binary(max_size=200))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes_are_decoded_or_kept(types: list[str], data: bytes) -> None:
    text = f"f({','.join(types)})"
    whole = from_text(text).selector + data
    assert Abi.from_signatures([text]).input(whole).data == whole


@pytest.mark.parametrize("recorded", [*cases(own("geth-prague-41")), *real(mainnet()[:1])])
def test_the_transfers_of_a_recorded_block_are_read(recorded: RecordedBlock) -> None:
    block = decode(recorded.payload())
    abi = Abi.from_signatures([ERC20, ERC721, "transfer(address to, uint256 value)"])
    transfers = [entry for entry in block.logs if entry.topics and entry.topics[0] == TRANSFER]
    found = [got(abi.log(entry)) for entry in transfers]
    assert {len(entry.topics) for entry in transfers} == {3, 4}
    for entry, said in zip(transfers, found, strict=True):
        assert bytes.fromhex(said["from"][2:]) == entry.topics[1][12:]
        if len(entry.topics) == 3:
            assert said["value"] == int.from_bytes(entry.data, "big")
    sent = [got(abi.input(each)) for each in block.transactions if each.input[:4].hex() == "a9059cbb"]
    assert sent
    assert all(said["value"] >= 0 for said in sent)
    creations = [each for each in block.transactions if each.to is None]
    assert all("code" in raw(abi.input(each)).reason for each in creations)


@pytest.mark.process
def test_without_its_library_the_package_names_what_to_install() -> None:
    script = (
        "import sys; sys.modules['eth_abi'] = None\n"
        "from cardinal.errors import MissingExtraError\n"
        "import cardinal_ethereum.model.block\n"
        "try:\n    import cardinal_ethereum.abi.decoder\nexcept MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "[abi]" in done.stdout


# --- encodings that are not canonical ---


LIDO = "event NodeOperatorAdded(uint256 id, string name, address rewardAddress, uint64 stakingLimit)"
NOTE = (
    "event LogNote(bytes4 indexed sig, address indexed guy, bytes32 indexed foo, bytes32 indexed bar, uint256 wad, "
    "bytes fax) anonymous"
)
ADDED = "event Added(uint256 id, string name)"


def words(*numbers: int) -> bytes:
    return b"".join(map(topic, numbers))


def test_a_string_without_padding_is_read_as_lido_wrote_it() -> None:
    # mainnet, block 17,885,248, log 10 (ApeWorX/ape#1604)
    data = words(30, 128, 0x5A8B929EDBF3CE44526465DD2087EC7EFB59A561, 0, 11) + b"Launchnodes"
    found = got(Abi.from_signatures([LIDO]).log(log([from_text(LIDO).topic], data)))
    assert (found["id"], found["name"], found["stakingLimit"], found.exact) == (30, "Launchnodes", 0, False)


def test_an_anonymous_note_with_unpadded_calldata_is_read() -> None:
    signature, fax = b"\x1a\x0b\x28\x7e", bytes(range(68))
    topics = [signature + bytes(28), topic(5), topic(6), topic(7)]
    abi = Abi.from_signatures([NOTE])
    found = got(abi.log(log(topics, words(0, 64, 68) + fax)))
    assert (found.name, found["sig"], found["fax"], found.exact) == ("LogNote", signature, fax, False)
    guess = raw(abi.log(log([topic(9), *topics[1:]], words(0, 64, 68) + fax)))  # any word has four first bytes
    assert guess.reason.startswith("no event of the ABI has this topic, and no anonymous one fits: ")
    assert [known.name for known in guess.candidates] == ["LogNote"]


def test_bits_that_a_type_does_not_have_are_left_out() -> None:
    # mainnet, 0xfc70289a…38c9 (eth-abi#116), and BSC, 0x0d7b5fe7…2bc1 (ethers.js#4427): both were executed
    seller = "cancel(bytes16,address,address,uint256,uint16)"
    ids = bytes.fromhex("3039616566623164303162643464343438333039393266386631323132303631") + words(1, 2, 3, 100)
    found = got(Abi.from_signatures([seller]).input(from_text(seller).selector + ids))
    assert (found.arguments[0].value, found.exact) == (b"09aefb1d01bd4d44", False)
    sent = bytes.fromhex("a9059cbb00000000000000000000017cc8538c41ab04558d9a2994b98765a6d2f6d13500") + topic(500)
    assert got(Abi.from_signatures(["transfer(address to,uint256)"]).input(sent))["to"] == "0x" + sent[16:36].hex()
    flag = "event Set(bool indexed on, bool off)"
    found = got(Abi.from_signatures([flag]).log(log([from_text(flag).topic, topic(2)], topic(0))))
    assert (found["on"], found["off"], found.exact) == (True, False, False)


@pytest.mark.parametrize(
    ("event", "data", "why"),
    [
        ("E(uint8)", words(300), "is no uint8"),
        ("E(int8)", words(255), "is no int8"),
        ("E(address)", bytes(b"\7" * 20) + bytes(12), "is no address"),  # at the wrong end
        ("E(address)", b"\xff" * 32, "is no address"),  # -1
        ("E(bytes4)", bytes(28) + b"\7" * 4, "is no bytes4, or one at the wrong end"),
        ("E(uint256)", b"\1" * 31, "the data ends within a value of the type uint256"),
        ("E(string)", words(32, 12) + b"hello world", "the data ends within a value of the type string"),
        ("E(string)", words(64), "the data ends within an offset or a length"),
        ("E(uint256[])", words(32, 2**255, 1), "the data ends within a value of the type uint256[]"),
        ("E(uint256,string)", words(1), "the data ends within an offset or a length"),
    ],
)
def test_an_encoding_with_two_meanings_or_none_is_kept_with_the_reason(event: str, data: bytes, why: str) -> None:
    kept = raw(Abi.from_signatures([f"event {event}"]).log(log([from_text(f"event {event}").topic], data)))
    assert kept.reason.startswith("the log does not fit its event: ")
    assert why in kept.reason


def test_a_log_of_another_layout_names_both_numbers() -> None:
    kept = raw(Abi.from_signatures([ERC20]).log(log([TRANSFER, topic(1), topic(2), topic(3)])))
    assert kept.reason == "the log does not fit its event: it has 3 indexed values, and Transfer has 2"


def test_a_canonical_reading_wins_over_any_other() -> None:
    twins = ["event Pair(address indexed a, uint256 b)", "event Pair(address a, uint256 indexed b)"]
    first = from_text(twins[0]).topic
    found = got(Abi.from_signatures(twins).log(log([first, topic(5)], b"\7" * 32)))
    assert (found["a"], found.exact) == ("0x" + "00" * 19 + "05", True)
    both = raw(Abi.from_signatures(twins).log(log([first, b"\7" * 32], b"\7" * 32)))
    assert both.reason == "several signatures fit it"


def test_rows_say_whether_the_encoding_is_canonical() -> None:
    named = "event Named(string name)"
    first = from_text(named).topic
    logs = (
        Log(0, 0, bytes(20), (first,), words(32, 3) + b"abc" + bytes(29)),
        Log(0, 1, bytes(20), (first,), words(32, 3) + b"\xff\xd8\xff" + bytes(29)),
        Log(0, 2, bytes(20), (first,), b""),
    )
    payload = Block(1, 5, HASH, bytes(32), 5, logs=logs).encode()
    rows = decoded_frames([payload], Abi.from_signatures([named]), tables=["decoded_logs"])["decoded_logs"].to_pylist()
    assert [row["strict"] for row in rows] == [True, False, None]
    assert [json.loads(row["arguments"])[0]["value"] for row in rows[:2]] == ["abc", "0xffd8ff"]
    assert rows[2]["reason"] == "the log does not fit its event: the data ends within an offset or a length"


@given(st.lists(TYPES, max_size=3), st.binary(max_size=70), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_tail_without_padding_has_the_same_values(types: list[str], tail: bytes, data: st.DataObject) -> None:
    values = [data.draw(VALUES[kind]) for kind in types]
    text = f"event f({','.join([*types, 'bytes'])})"
    whole = reference.encode([*types, "bytes"], [*values, tail])
    short = whole[: len(whole) - -len(tail) % 32]
    found = got(Abi.from_signatures([text]).log(log([from_text(text).topic], short)))
    assert [argument.value for argument in found.arguments] == [*values, tail]
    assert found.exact == (short == whole)


@given(st.integers(1, 2**96 - 2), st.binary(min_size=20, max_size=20), st.binary(min_size=4, max_size=4))
@settings(max_examples=examples(100), deadline=None)
def test_bits_around_a_value_change_nothing_but_the_mark(bits: int, who: bytes, mark: bytes) -> None:
    text = "event f(address indexed who, bytes4 mark, address[] more)"
    high = bits.to_bytes(12, "big")
    data = mark + high + bytes(16) + words(64, 1) + bytes(12) + who
    assume(any(who[8:]) and any(mark) and min(high) < 255)
    found = got(Abi.from_signatures([text]).log(log([from_text(text).topic, high + who], data)))
    assert (found["who"], found["mark"], found["more"]) == ("0x" + who.hex(), mark, ("0x" + who.hex(),))
    assert not found.exact


@given(st.lists(TYPES, min_size=1, max_size=3), st.lists(st.binary(min_size=32, max_size=32), max_size=3), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_any_log_is_decoded_or_kept_with_a_reason(types: list[str], topics: list[bytes], data: st.DataObject) -> None:
    word = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([0, 32, 64, 96, 2**255]).map(topic))
    content = b"".join(data.draw(st.lists(word, max_size=8))) + data.draw(st.binary(max_size=31))
    names = [f"{kind} indexed" if data.draw(st.booleans()) else kind for kind in types]
    event = f"event f({','.join(names)})"
    abi = Abi.from_signatures([event, f"event g({','.join(names)}) anonymous"])
    for first in ([from_text(event).topic], []):
        found = abi.log(log([*first, *topics], content))
        assert found.data == content
        assert isinstance(found, Decoded) or found.reason


# --- logs and inputs by name as tables: a row for each, whether it could be decoded or not ---


HASH = bytes(range(32))
EVENT = "event Said(string indexed about, uint256 much, (bool sure, bytes proof)[] parts)"
CALL = "say(int8 little, address who)"


def block() -> Payload:
    parts = [(True, b"\1\2"), (False, b"")]
    data = reference.encode(["uint256", "(bool,bytes)[]"], [2**255, parts])
    logs = (
        Log(0, 0, b"\7" * 20, (from_text(EVENT).topic, keccak(b"weather")), data),
        Log(1, 1, b"\7" * 20, (HASH,), b"\xff"),
    )
    called = from_text(CALL).selector + reference.encode(["int8", "address"], [-5, WHO])
    inputs = (called, b"\1\2")
    sent = [
        Transaction(index, b"", b"", 0, None, 0, 0, None, None, 0, b"\7" * 20, 0, data, 27, 1, 1)
        for index, data in enumerate(inputs)
    ]
    whole = tuple(replace(each, raw=each.encode(), hash=keccak(each.encode())) for each in sent)
    return Block(1, 5, HASH, bytes(32), 5, transactions=whole, logs=logs).encode()


def test_what_is_known_has_its_name_and_what_is_not_is_kept() -> None:
    tables = decoded_frames([block()], Abi.from_signatures([EVENT, CALL]))
    assert {name: table.schema for name, table in tables.items()} == SCHEMAS
    said, odd = tables["decoded_logs"].to_pylist()
    assert (said["name"], said["signature"]) == ("Said", "Said(string,uint256,(bool,bytes)[])")
    assert json.loads(said["arguments"]) == [
        {"name": "about", "type": "string", "value": {"hash": "0x" + keccak(b"weather").hex()}},
        {"name": "much", "type": "uint256", "value": str(2**255)},
        {"name": "parts", "type": "(bool,bytes)[]", "value": [[True, "0x0102"], [False, "0x"]]},
    ]
    assert said["reason"] is None
    assert (odd["name"], odd["topics"], odd["data"]) == (None, ["0x" + HASH.hex()], "0xff")
    assert "no event" in odd["reason"]
    call, other = tables["decoded_inputs"].to_pylist()
    assert [each["value"] for each in json.loads(call["arguments"])] == ["-5", WHO]
    assert (other["name"], other["input"], other["block_timestamp"]) == (None, "0x0102", None)


@pytest.mark.slow
def test_many_blocks_are_made_in_pieces_and_give_the_same_rows() -> None:
    abi, payload = Abi([]), block()
    one = decoded_frames([payload], abi)
    many = decoded_frames((payload for _ in range(9_000)), abi)
    for name, table in many.items():
        assert table.num_rows == 9_000 * one[name].num_rows
        assert table.column("block_number").num_chunks > 1
        assert table.slice(table.num_rows - one[name].num_rows).equals(one[name])


def test_tables_that_were_not_requested_are_not_made() -> None:
    abi = Abi.from_signatures([EVENT, CALL])
    assert decoded_frames([block()], abi, tables=["decoded_logs"]) == {
        "decoded_logs": decoded_frames([block()], abi)["decoded_logs"]
    }
    with pytest.raises(ConfigurationError, match=r"no table 'logs'; choose one of decoded_logs, decoded_inputs"):
        decoded_frames([block()], abi, tables=["logs"])
