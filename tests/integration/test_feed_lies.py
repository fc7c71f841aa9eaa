"""A node that lies, again and again: of everything that it says, nothing wrong is given.

The node draws a lie for every answer that it gives of a block or its receipts; what it tells is made from blocks that
the application layer did not write. An attempt is one lie that reached the feed.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
from ethereum_blocks import Built, build, grow, keccak, replay, text
from feeding import SCHEMES, address, asynchronous, connected, given, serving

from cardinal.errors import CardinalError, IntegrityError, NodeAnswerError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import BlockRef
from cardinal.testing.replay import ReplayChain
from cardinal_connectors.ethereum.settings import FeedSettings, RpcSettings

ATTEMPTS = 300
SOAK_ATTEMPTS = 10_000
LONG = 40
RESTLESS = FeedSettings(rpc=RpcSettings(timeout=5, attempts=3, backoff=0.0005), poll=0.005, verifications=4)

Shown: TypeAlias = dict[str, Any]
Lie: TypeAlias = Callable[[Built, random.Random], object]
"""What is answered instead of the block (a mapping) or its receipts (a list)."""


def _block(block: Built) -> Shown:
    return copy.deepcopy(block.block)


def _receipts(block: Built) -> list[Shown]:
    return copy.deepcopy(block.receipts)


def wrong_receipts(block: Built, _: random.Random) -> object:
    """Those of a sibling, renamed to look like this block's."""
    sibling = build(None, "lie", transactions=len(block.receipts), number=block.number)
    receipts = copy.deepcopy(sibling.receipts)
    for receipt, own in zip(receipts, block.receipts, strict=True):
        receipt.update(blockHash=block.name, transactionHash=own["transactionHash"], status="0x0")
    return receipts


def dropped_log(block: Built, dice: random.Random) -> object:
    receipts = _receipts(block)
    dice.choice(receipts)["logs"].clear()
    return receipts


def added_log(block: Built, dice: random.Random) -> object:
    receipts = _receipts(block)
    logs = dice.choice(receipts)["logs"]
    logs.append(copy.deepcopy(logs[0]))
    return receipts


def changed_data(block: Built, dice: random.Random) -> object:
    receipts = _receipts(block)
    dice.choice(receipts)["logs"][0]["data"] = text(dice.randbytes(32))
    return receipts


def empty_receipts(_: Built, __: random.Random) -> object:
    return []


def one_receipt_short(block: Built, _: random.Random) -> object:
    return _receipts(block)[:-1]


def failed_beside_a_root(block: Built, dice: random.Random) -> object:
    """A field that was not there: in RLP this data is what the status is that the root covers."""
    receipts = _receipts(block)
    dice.choice(receipts).update(root="0x01", status="0x0")
    return receipts


def failed_status(block: Built, dice: random.Random) -> object:
    receipts = _receipts(block)
    dice.choice(receipts)["status"] = "0x0"
    return receipts


def swapped_receipts(block: Built, _: random.Random) -> object:
    return _receipts(block)[::-1]


def created_at_a_nonce_of_its_own(block: Built, dice: random.Random) -> object:
    receipts = _receipts(block)
    dice.choice(receipts).update(depositNonce="0x1", contractAddress=text(dice.randbytes(20)))
    return receipts


def swapped_transactions(block: Built, _: random.Random) -> object:
    shown = _block(block)
    shown["transactions"].reverse()
    return shown


def changed_transaction(block: Built, dice: random.Random) -> object:
    shown = _block(block)
    dice.choice(shown["transactions"])["value"] = hex(dice.getrandbits(60))
    return shown


def no_transactions(block: Built, _: random.Random) -> object:
    return {**_block(block), "transactions": []}


def another_header(block: Built, dice: random.Random) -> object:
    name = dice.choice(["stateRoot", "miner", "timestamp", "gasUsed", "extraData", "receiptsRoot"])
    shown = _block(block)
    shown[name] = text(keccak(dice.randbytes(8))[: (len(shown[name]) - 2) // 2 or 1])
    return shown


def emptied_bloom(block: Built, _: random.Random) -> object:
    return {**_block(block), "logsBloom": "0x" + "00" * 256}


def stale_block(block: Built, _: random.Random) -> object:
    """The block that stood at this height before a reorg, whole and right, but not what was asked for."""
    return build(None, "stale", number=block.number).block


def stale_under_this_name(block: Built, _: random.Random) -> object:
    shown = build(None, "stale", number=block.number).block
    return {**copy.deepcopy(shown), "hash": block.name, "parentHash": block.block["parentHash"]}


def another_parent(block: Built, dice: random.Random) -> object:
    return {**_block(block), "parentHash": text(dice.randbytes(32))}


def null(_: Built, __: random.Random) -> object:
    return None


LIES: dict[str, tuple[Lie, ...]] = {
    "receipts": (
        *(wrong_receipts, dropped_log, added_log, changed_data, empty_receipts, one_receipt_short),
        *(failed_status, swapped_receipts, failed_beside_a_root, created_at_a_nonce_of_its_own, null),
    ),
    "block": (
        *(swapped_transactions, changed_transaction, no_transactions, another_header),
        *(emptied_bloom, stale_block, stale_under_this_name, another_parent, null),
    ),
}


class Liar(ReplayChain):
    """A replay that lies once in a while, about anything."""

    def __init__(self, chain: Sequence[Built], seed: int) -> None:
        super().__init__(chain_id=1337)
        for one in chain:
            self.add(one.block, one.receipts)
        self.told: Counter[str] = Counter()
        self._built = {one.name: one for one in chain}
        self._dice = random.Random(seed)

    def block(self, block_hash: str, *, full: bool) -> object:
        return self._perhaps("block", block_hash) if full else super().block(block_hash, full=full)

    def receipts(self, block_hash: str) -> object:
        return self._perhaps("receipts", block_hash)

    def _perhaps(self, what: str, block_hash: str) -> object:
        if self._dice.random() < 0.3:
            lie = self._dice.choice(LIES[what])
            self.told[lie.__name__] += 1
            return lie(self._built[block_hash], self._dice)
        truth = super()
        return truth.block(block_hash, full=True) if what == "block" else truth.receipts(block_hash)


async def lied_to(seed: int, scheme: str) -> tuple[Liar, list[Built], list[Payload]]:
    """One run: a backfill, and then heads one by one; it goes on after every report of a lie."""
    chain = grow(None, LONG)
    liar = Liar(chain, seed)
    liar.set_head(chain[LONG // 2].name)
    taken: list[Payload] = []
    async with serving(liar) as node, connected(address(node, scheme), RESTLESS) as feed, asyncio.timeout(60):
        while len(taken) < LONG:
            published = [BlockRef(payload.number, payload.hash) for payload in taken]
            try:
                async for payload in feed.follow(published, until=LONG - 1):
                    taken.append(payload)
                    if payload.number >= LONG // 2:
                        liar.set_head(chain[min(payload.number + 1, LONG - 1)].name)
            except CardinalError as reported:
                assert isinstance(reported, IntegrityError | NodeAnswerError), reported  # noqa: PT017 - it goes on
    return liar, chain, taken


async def lie(attempts: int, scheme: str, truths: dict[bytes, Payload]) -> Counter[str]:
    told: Counter[str] = Counter()
    seed = 0
    while told.total() < attempts:
        liar, chain, taken = await lied_to(seed, scheme)
        assert given(taken) == [block.hash for block in chain]
        for payload in taken:
            assert payload == truths[payload.hash], payload.number
        told += liar.told
        seed += 1
    return told


async def truths() -> dict[bytes, Payload]:
    """What an honest node's blocks come to."""
    chain = grow(None, LONG)
    async with serving(replay(chain)) as node, connected(node.url) as feed:
        return {payload.hash: payload async for payload in feed.follow(until=LONG - 1)}


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_of_hundreds_of_lies_none_is_given(scheme: str) -> None:
    told = await lie(ATTEMPTS, scheme, await truths())
    assert set(told) == {one.__name__ for lies in LIES.values() for one in lies}


@pytest.mark.soak
@asynchronous
async def test_of_ten_thousand_lies_none_is_given() -> None:
    told = await lie(SOAK_ATTEMPTS, "http", await truths())
    assert min(told.values()) > 100
