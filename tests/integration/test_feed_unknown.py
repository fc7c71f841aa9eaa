"""The node feed on blocks that this release does not know: later header fields, and types by their bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from feeding import QUICK, asynchronous, connected, everything, serving

from cardinal.errors import IntegrityError
from cardinal_devkit.testing.replay import ReplayChain
from cardinal_ethereum import decode, rlp
from cardinal_ethereum.feed.feed import NodeFeed
from cardinal_ethereum.feed.verify.rules import Rules
from cardinal_ethereum.feed.verify.worker import VerificationJob, prepare
from cardinal_ethereum.keccak import keccak
from evm_blocks import LATER, ZERO_ADDRESS, Json, canonical, header_bytes, receipts_of, sealed, text

CHAIN = 5
ZERO = "0x" + "00" * 32
Handler = Callable[[Any], Any]


def unknown(nonce: int) -> Json:
    """A transaction of a type that nobody knows."""
    raw = b"\x3f" + rlp.encode([bytes((nonce,)), b"more"])
    shown: Json = {"type": "0x3f", "nonce": hex(nonce), "to": ZERO_ADDRESS, "from": ZERO_ADDRESS, "calls": [1]}
    return shown | {"raw": text(raw), "hash": text(keccak(raw))}


def legacy() -> Json:
    """A signed-looking legacy transaction, so that a whole block has a list among its bytes."""
    shown: Json = {"type": "0x0", "nonce": "0x1", "gasPrice": "0x1", "gas": "0x1", "to": ZERO_ADDRESS, "value": "0x0"}
    shown |= {"input": "0x", "v": "0x1b", "r": "0x1", "s": "0x1", "from": ZERO_ADDRESS}
    return shown | {"hash": text(keccak(canonical(shown)))}


def chain_of(count: int, *, fields: Callable[[int], Json] = lambda _: {}) -> tuple[ReplayChain, list[Json]]:
    """A chain of blocks with an unknown type in each, and unknown header fields from block 2 on."""
    chain, parent, blocks = ReplayChain(chain_id=CHAIN), ZERO, []
    for number in range(count):
        header: Json = {"parentHash": parent, "miner": ZERO_ADDRESS, "stateRoot": ZERO, "difficulty": "0x0"}
        header |= {"number": hex(number), "gasLimit": "0x1", "timestamp": hex(number), "extraData": "0x"}
        header |= {"mixHash": ZERO, "nonce": "0x" + "00" * 8, "withdrawals": []}
        header |= {name: "0x5" if name.endswith(("Gas", "Used", "Number")) else ZERO for name in LATER}
        transactions = [legacy(), unknown(number)] if number else []
        outcome = {"gasUsed": "0x1", "status": "0x1", "logs": []}
        block, receipts = sealed(header, transactions, receipts_of(transactions, [outcome] * len(transactions)))
        if number > 1 and (more := fields(number)):
            items = [bytes.fromhex(value[2:]) for value in more.values()]
            block |= dict(reversed(more.items()))
            block["hash"] = text(keccak(rlp.encode([*rlp.decode_list(header_bytes(block)), *items])))
            receipts = [receipt | {"blockHash": block["hash"]} for receipt in receipts]
        hidden = [{name: value for name, value in one.items() if name != "raw"} for one in block["transactions"]]
        parent = chain.add(block | {"transactions": hidden}, receipts)
        blocks.append(block)
    chain.set_head(parent, announce="silent")
    return chain, blocks


def whole(blocks: list[Json], named: str) -> str:
    """A block's RLP, as debug_getRawBlock has it."""
    block = blocks[int(named, 16)]
    bodies = [canonical(one) for one in block["transactions"]]
    listed = [rlp.decode(body) if body[0] >= 0xC0 else body for body in bodies]
    return text(rlp.encode([rlp.decode(header_bytes(block)), listed, [], []]))


@pytest.mark.parametrize("way", ["eth_getRawTransactionByHash", "debug_getRawTransaction", "debug_getRawBlock"])
@asynchronous
async def test_bytes_of_an_unknown_type_come_in_whichever_way_the_node_has(way: str) -> None:
    chain, blocks = chain_of(4)
    texts = {one["hash"]: one.get("raw") for block in blocks for one in block["transactions"]}
    handlers: dict[str, Handler] = {
        "debug_getRawBlock": lambda params: whole(blocks, params[0]),
        "eth_getRawTransactionByHash": lambda params: texts[params[0]],
        "debug_getRawTransaction": lambda params: texts[params[0]],
    }
    async with serving(chain) as node, connected(node.url, QUICK) as feed:
        node._handlers[way] = handlers[way]
        payloads = await everything(feed.follow(until=3))
    assert [payload.hash.hex() for payload in payloads] == [block["hash"][2:] for block in blocks]
    for payload, block in zip(payloads, blocks, strict=True):
        sent = decode(payload).transactions
        assert [text(one.raw) for one in sent] == [text(canonical(one)) for one in block["transactions"]]
        assert [one.opaque for one in sent] == [False, True][: len(sent)]


@asynchronous
async def test_without_bytes_the_block_is_refused_by_transaction_and_method() -> None:
    chain, blocks = chain_of(2)
    async with serving(chain) as node, connected(node.url, QUICK) as feed:
        assert isinstance(feed, NodeFeed)
        node._handlers["eth_getRawTransactionByHash"] = lambda _: "0x3fc20909"  # another transaction's
        named = rf"block 1 \({blocks[1]['hash']}\).*transaction 1 .*type 63\).*debug_getRawBlock"
        with pytest.raises(IntegrityError, match=named):
            await everything(feed.follow(until=1))


@asynchronous
async def test_fields_of_a_later_fork_are_learned_once_and_published(caplog: pytest.LogCaptureFixture) -> None:
    def fields(number: int) -> Json:
        return {"zone": f"0x{number + 0x90:x}", "custodyRoot": "0x" + "ab" * 32}

    chain, blocks = chain_of(6, fields=fields)
    texts = {one["hash"]: one.get("raw") for block in blocks for one in block["transactions"]}
    with caplog.at_level(logging.INFO, logger="cardinal.connectors.ethereum"):
        async with serving(chain) as node, connected(node.url, QUICK) as feed:
            node._handlers["eth_getRawTransactionByHash"] = lambda params: texts[params[0]]
            payloads = await everything(feed.follow(until=5))
    assert [payload.hash.hex() for payload in payloads] == [block["hash"][2:] for block in blocks]
    headers = [decode(payload).header for payload in payloads]
    assert [len(header.more) for header in headers if header is not None] == [0, 0, 2, 2, 2, 2]
    learned = [record.message for record in caplog.records if "zone, custodyRoot" in record.message]
    assert len(learned) == 1
    assert f"headers of chain {CHAIN} have fields" in learned[0]


def test_a_worker_finds_the_fields_by_itself() -> None:
    _, blocks = chain_of(3, fields=lambda _: {"zone": "0x91"})
    empty = {name: value for name, value in blocks[0].items() if name != "hash"} | {"zone": "0x91"}
    empty["hash"] = text(keccak(rlp.encode([*rlp.decode_list(header_bytes(empty)), b"\x91"])))
    job = VerificationJob(Rules.of(CHAIN, QUICK), None, 0, [(msgspec.json.encode(empty), b"[]")])
    (prepared,) = prepare(job)
    assert prepared is not None
    assert prepared.payload.hash.hex() == empty["hash"][2:]
