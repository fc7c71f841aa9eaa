"""The development chain: its blocks, and the options of its URL."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from coincurve import PublicKey

from cardinal.errors import ConfigurationError, ReorgTooDeepError, WrongChainError
from cardinal.protocols.streams import BlockRef, Payload
from cardinal_devkit.devchain import DevChain, DevFeed, DevSettings, open_feed
from cardinal_devkit.devchain.blocks import DevBlock
from cardinal_devkit.devchain.settings import settings_from_url
from cardinal_devkit.devchain.transactions import signing_bytes
from cardinal_ethereum import rlp
from cardinal_ethereum.from_rpc.header import encode_header, encode_withdrawal
from cardinal_ethereum.from_rpc.transactions import encode_transaction
from cardinal_ethereum.keccak import keccak

LONG = DevSettings(seed=11, blocks=150, transactions=8)


def built(settings: DevSettings = LONG) -> list[DevBlock]:
    return [block for step in DevChain(settings) for block in step.mined]


def transactions(blocks: list[DevBlock]) -> list[dict[str, Any]]:
    return [transaction for block in blocks for transaction in block.block["transactions"]]


def receipts(blocks: list[DevBlock]) -> list[dict[str, Any]]:
    return [receipt for block in blocks for receipt in block.receipts]


def recovered(transaction: dict[str, Any]) -> str:
    """The sender, from the signature alone."""
    v = int(transaction["v"], 16)
    parity = v if transaction["type"] != "0x0" else v - 35 - 2 * LONG.chain_id
    r, s = (int(transaction[name], 16).to_bytes(32, "big") for name in ("r", "s"))
    key = PublicKey.from_signature_and_message(r + s + bytes((parity,)), keccak(unsigned(transaction)), hasher=None)
    return "0x" + keccak(key.format(compressed=False)[1:])[12:].hex()


def unsigned(transaction: dict[str, Any]) -> bytes:
    """What was signed, from the transaction's canonical bytes: the signature's three fields at the end are cut."""
    raw = encode_transaction(transaction)
    kind = int(transaction["type"], 16)
    fields = rlp.decode_list(raw[1:] if kind else raw)[:-3]
    if kind == 0:
        return rlp.encode([*fields, LONG.chain_id.to_bytes(2, "big"), b"", b""])
    return bytes((kind,)) + rlp.encode(fields)


def test_senders_recover_from_the_signatures() -> None:
    for transaction in transactions(built())[:120]:
        assert unsigned(transaction) == signing_bytes(transaction)
        assert recovered(transaction) == transaction["from"]


def test_there_are_all_kinds_of_transactions_receipts_and_logs() -> None:
    blocks = built()
    assert set(Counter(transaction["type"] for transaction in transactions(blocks))) == {"0x0", "0x1", "0x2"}
    assert {receipt["status"] for receipt in receipts(blocks)} == {"0x0", "0x1"}
    logs = [log for receipt in receipts(blocks) for log in receipt["logs"]]
    assert {len(log["topics"]) for log in logs} == {0, 1, 2, 3, 4}
    assert any(log["data"] == "0x" for log in logs)
    assert any(not block.receipts for block in blocks[1:])
    assert any(transaction.get("accessList") for transaction in transactions(blocks))


def test_nonces_count_up_along_the_final_chain() -> None:
    blocks = {block.hash: block for block in built()}
    tip = max(blocks.values(), key=lambda block: block.plan.weight)
    chain = [tip]
    while (parent := blocks.get(bytes.fromhex(chain[-1].block["parentHash"][2:]))) is not None:
        chain.append(parent)
    assert [block.plan.number for block in reversed(chain)] == list(range(LONG.blocks + 1))
    nonces: Counter[str] = Counter()
    for transaction in transactions(chain[::-1]):
        assert int(transaction["nonce"], 16) == nonces[transaction["from"]]
        nonces[transaction["from"]] += 1


def test_fees_follow_the_rule_and_no_transaction_pays_less() -> None:
    blocks = {block.block["hash"]: block for block in built()}
    fees = set()
    for block in blocks.values():
        base = block.number_of("baseFeePerGas")
        fees.add(base)
        assert block.number_of("gasUsed") <= block.number_of("gasLimit")
        for transaction, receipt in zip(block.block["transactions"], block.receipts, strict=True):
            price = int(receipt["effectiveGasPrice"], 16)
            assert price == int(transaction["gasPrice"], 16) >= base
            assert int(receipt["gasUsed"], 16) <= int(transaction["gas"], 16)
            if "maxFeePerGas" in transaction:
                tip, most = (int(transaction[name], 16) for name in ("maxPriorityFeePerGas", "maxFeePerGas"))
                assert price == min(most, base + tip)
        parent = blocks.get(block.block["parentHash"])
        if parent is not None:
            before = parent.number_of("baseFeePerGas")
            assert before * 7 // 8 <= base <= before * 9 // 8 + 1
            assert block.number_of("timestamp") > parent.number_of("timestamp")
    assert len(fees) > 50


@pytest.mark.parametrize("merged", [False, True])
def test_size_is_the_size_of_the_blocks_rlp(*, merged: bool) -> None:
    for block in built(DevSettings(blocks=40, merged=merged)):
        raws = [encode_transaction(transaction) for transaction in block.block["transactions"]]
        body: list[Any] = [
            rlp.decode(encode_header(block.block)),
            [raw if raw[0] < 0xC0 else rlp.decode(raw) for raw in raws],
            [],
        ]
        if merged:
            body.append([rlp.decode(encode_withdrawal(withdrawal)) for withdrawal in block.block["withdrawals"]])
        assert block.number_of("size") == len(rlp.encode(body))


def test_after_the_merge_there_are_withdrawals_counted_through_and_finality_marks() -> None:
    settings = DevSettings(blocks=40, merged=True)
    payloads = follow(settings)
    root = f"c/{settings.chain_id:x}"
    for payload in payloads:
        finalized, safe = (int.from_bytes(payload.updates[f"{root}/n/{mark}"], "big") for mark in ("finalized", "safe"))
        assert finalized <= safe <= payload.number
    assert int.from_bytes(payloads[-1].updates[f"{root}/n/finalized"], "big") == 40 - 2 * settings.max_depth
    blocks = {block.block["hash"]: block for block in built(settings)}
    for block in blocks.values():
        parent = blocks.get(block.block["parentHash"])
        first = parent.withdrawals if parent else 0
        indexes = [int(one["index"], 16) for one in block.block["withdrawals"]]
        assert indexes == list(range(first, first + len(indexes)))
        assert block.block["difficulty"] == "0x0"
        assert "totalDifficulty" not in block.block


def test_a_long_chain_forgets_what_nothing_can_build_on() -> None:
    chain = DevChain(DevSettings(blocks=300, transactions=0))
    first = next(chain).head
    for step in chain:
        head = step.head
    assert chain.block(first.plan.name) is None
    assert chain.parent(head) is not None
    assert len(chain._built) < 60


def follow(settings: DevSettings, published: tuple[BlockRef, ...] = (), rate: float = 0.0) -> list[Payload]:
    async def gather() -> list[Payload]:
        return [payload async for payload in DevFeed(settings, rate=rate).follow(published)]

    return asyncio.run(gather())


def test_published_blocks_of_another_chain_are_refused() -> None:
    with pytest.raises(WrongChainError):
        follow(DevSettings(), (BlockRef(3, bytes(32)),))


def test_a_reorg_below_all_published_blocks_is_refused() -> None:
    settings = DevSettings(seed=5, blocks=60, reorg_rate=0.3)
    reorg = next(step for step in DevChain(settings) if len(step.move.removed) >= 2)
    newest = next(block for block in built(settings) if block.plan.name == reorg.move.removed[0])
    with pytest.raises(ReorgTooDeepError) as refused:
        follow(settings, (BlockRef(newest.plan.number, newest.hash),))
    assert refused.value.hash == newest.hash


def test_the_rate_is_kept_in_blocks_a_second() -> None:
    settings = DevSettings(blocks=30, transactions=0)

    async def measure() -> tuple[int, float]:
        clock = asyncio.get_running_loop().time
        began = clock()
        count = len([payload async for payload in DevFeed(settings, rate=200).follow()])
        return count, clock() - began

    count, seconds = asyncio.run(measure())
    assert seconds >= (count - 1) / 200 * 0.99


# --- what a ``dev://`` URL may say -----------------------------------------------------------------------------------


def test_every_option_can_be_set() -> None:
    url = "dev://?seed=-7&blocks=9&reorg-rate=0.5&max-depth=3&transactions=0&chain-id=99&merged=1&rate=2.5"
    expected = DevSettings(seed=-7, blocks=9, reorg_rate=0.5, max_depth=3, transactions=0, chain_id=99, merged=True)
    assert settings_from_url(url) == (expected, 2.5)


@pytest.mark.parametrize(
    ("url", "setting"),
    [
        ("dev://localhost?seed=1", "from"),
        ("dev:///chain", "from"),
        ("dev://#lag=1", "lag"),
        ("dev://?seed=1&seed=2", "from"),
        ("dev://?sed=1", "sed"),
        ("dev://?seed=one", "seed"),
        ("dev://?seed=", "seed"),
        ("dev://?blocks=-1", "blocks"),
        ("dev://?blocks=4.5", "blocks"),
        ("dev://?reorg-rate=1.5", "reorg_rate"),
        ("dev://?reorg-rate=nan", "reorg_rate"),
        ("dev://?max-depth=0", "max_depth"),
        ("dev://?max-depth=65", "max_depth"),
        ("dev://?transactions=-1", "transactions"),
        ("dev://?chain-id=0", "chain-id"),
        ("dev://?merged=maybe", "merged"),
        ("dev://?merged=2", "merged"),
        ("dev://?rate=-1", "rate"),
        ("dev://?rate=inf", "rate"),
        ("dev://?rate=nan", "rate"),
        ("dev://?rate=fast", "rate"),
    ],
)
def test_invalid_input_is_refused_by_name(url: str, setting: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_feed(url)
    assert refused.value.setting == setting


def test_the_requested_chain_id_is_the_chains_unless_the_url_names_one() -> None:
    assert asyncio.run(open_feed("dev://", chain_id=5).chain_id()) == 5
    assert asyncio.run(open_feed("dev://?chain-id=5", chain_id=5).chain_id()) == 5
    assert asyncio.run(open_feed("dev://?chain-id=6").chain_id()) == 6
    with pytest.raises(WrongChainError):
        open_feed("dev://?chain-id=6", chain_id=5)
