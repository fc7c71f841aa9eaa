"""Texts of a node that are read together: each is its own bytes and reaches into no other, and no giant is kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cardinal.apps.evm import rlp
from cardinal.apps.evm.rlp.cache import Memo
from cardinal.apps.evm.rlp.hex_text import number, quantity, to_parts
from cardinal.apps.evm.rpc.receipts import bloom_of, logs_bloom, write_blooms, write_logs
from cardinal.apps.evm.rpc.structures import RpcLog, RpcReceipt
from cardinal.apps.evm.rpc.transactions import encode_transaction
from cardinal.errors import ApplicationError

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


def test_logs_stay_with_their_receipts() -> None:
    logs = [RpcLog(ADDRESS, [TOPIC] * count, "0x" + "00" * count) for count in range(6)]
    receipts = [receipt(), receipt(*logs[:2]), receipt(), receipt(*logs[2:]), receipt()]
    assert write_logs(receipts) == [[write_logs([receipt(log)])[0][0] for log in one.logs] for one in receipts]


def test_a_bloom_is_its_logs_in_any_capitals_and_a_lie_is_kept_as_it_was_said() -> None:
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
