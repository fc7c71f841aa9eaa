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
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pytest
from ethereum_blocks import Built, build, grow, keccak, raw, replay, text
from feeding import (
    QUICK,
    SCHEMES,
    address,
    assert_lawful,
    asynchronous,
    connected,
    everything,
    given,
    hashes,
    opened,
    refs,
    serving,
    take,
)

from cardinal.errors import (
    CardinalError,
    IntegrityError,
    NodeAnswerError,
    WrongChainError,
)
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import BlockRef
from cardinal_devkit.testing.node import JsonRpcNode
from cardinal_devkit.testing.replay import Recorded, ReplayChain
from cardinal_ethereum import verify
from cardinal_ethereum.checks.integrity import CHECKS
from cardinal_ethereum.feed import open_feed
from cardinal_ethereum.feed.feed import NodeFeed
from cardinal_ethereum.feed.settings import FeedSettings, RpcSettings
from cardinal_ethereum.feed.verify.rules import Rules
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcReceipt
from evm_blocks import header_bytes
from examples import few

if TYPE_CHECKING:
    from cardinal.feeds import BlockFeed
    from cardinal.protocols.streams.payload import Payload


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


def misnumbered_log(block: Built, dice: random.Random) -> object:
    receipts = _receipts(block)
    dice.choice(receipts)["logs"][0]["logIndex"] = "0x5"
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
    """The block that stood at this height before a reorg, complete and right, but not the requested one."""
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
        *(wrong_receipts, dropped_log, added_log, changed_data, misnumbered_log, empty_receipts, one_receipt_short),
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


@pytest.mark.parametrize("scheme", few(1, SCHEMES))
@asynchronous
async def test_of_hundreds_of_lies_none_is_given(scheme: str) -> None:
    told = await lie(ATTEMPTS, scheme, await truths())
    assert set(told) == {one.__name__ for lies in LIES.values() for one in lies}


@pytest.mark.soak
@asynchronous
async def test_of_ten_thousand_lies_none_is_given() -> None:
    told = await lie(SOAK_ATTEMPTS, "http", await truths())
    assert min(told.values()) > 100


MOVES = 60


class Storm:
    """A chain that moves at random: grows, forks, rewinds, goes back, forgets orphans, lags and lies."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._moves = 0
        self.blocks: dict[str, Built] = {}
        trunk = grow(None, 20)
        self.chain = replay(trunk)
        self.blocks.update((block.name, block) for block in trunk)
        self.head = trunk[-1]
        self.last: Built | None = None

    def strike(self, method: str, _: Sequence[object]) -> None:
        """Called before each answer of the node."""
        if method.startswith("eth_get") and self.last is None and self._dice.random() < 0.3:
            self._moves += 1
            if self._moves < MOVES:
                self._dice.choice([self._extend, self._extend, self._fork, self._rewind, self._return_to])()
            else:
                self.last = self._grown(self.head, 3, "last")
                self._become(self.last)

    def canonical(self, head: Built) -> list[Built]:
        path = [head]
        while path[-1].number:
            path.append(self.blocks[path[-1].block["parentHash"]])
        return path[::-1]

    def _grown(self, parent: Built, count: int, branch: str) -> Built:
        for _ in range(count):
            parent = build(parent, f"{branch}{self._moves}", transactions=self._dice.randint(0, 3))
            self.blocks[parent.name] = parent
            self.chain.add(parent.block, parent.receipts)
            self._spoil(parent)
        return parent

    def _spoil(self, block: Built) -> None:
        """Sometimes an answer comes late, or wrong the first time."""
        if self._dice.random() < 0.2:
            self.chain.hold(block.name, self._dice.choice(["block", "receipts"]), self._dice.randint(1, 2))
        elif self._dice.random() < 0.2 and block.receipts:
            self.chain.swap(block.name, "receipts", copy.deepcopy(block.receipts)[:-1], 1)

    def _become(self, head: Built) -> None:
        self.head = head
        self.chain.set_head(head.name, announce=self._dice.choice(["each", "final", "silent"]))

    def _extend(self) -> None:
        self._become(self._grown(self.head, self._dice.randint(1, 3), "x"))

    def _fork(self) -> None:
        old = self.canonical(self.head)
        ancestor = old[max(0, len(old) - 1 - self._dice.randint(1, 8))]
        self._become(self._grown(ancestor, self._dice.randint(1, 9), "f"))
        if self._dice.random() < 0.5:
            for block in old[ancestor.number + 1 :]:
                self.chain.forget(block.name)

    def _rewind(self) -> None:
        path = self.canonical(self.head)
        self.head = path[max(0, len(path) - 1 - self._dice.randint(1, 4))]
        self.chain.set_head(self.head.name, announce="silent")

    def _return_to(self) -> None:
        """To any block that the node still has with all its ancestors."""
        whole = [block for block in self.blocks.values() if self._is_had(block)]
        self._become(self._dice.choice(whole[-10:]))

    def _is_had(self, block: Built) -> bool:
        return all(self.chain.block(one.name, full=False) is not None for one in self.canonical(block))


async def read_to_the_last(storm: Storm, feed: BlockFeed) -> list[Payload]:
    taken: list[Payload] = []
    async with asyncio.timeout(60):
        async for payload in feed.follow():
            taken.append(payload)
            if storm.last is not None and payload.hash == storm.last.hash:
                break
    return taken


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seed", few(2, range(8)))
@asynchronous
async def test_chain_that_moves_between_any_two_requests_is_given_whole(seed: int, scheme: str) -> None:
    storm = Storm(seed)
    async with opened(storm.chain, scheme, RESTLESS) as (node, feed):
        node.before = storm.strike
        taken = await read_to_the_last(storm, feed)
    assert storm.last is not None
    assert_lawful(taken)
    by_hash = {payload.hash: payload for payload in taken}
    for block in storm.canonical(storm.last):
        assert by_hash[block.hash].weight == block.total
    built = {block.hash for block in storm.blocks.values()}
    assert set(by_hash) <= built


@pytest.mark.parametrize("what", ["block", "receipts"])
@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_head_that_is_announced_before_it_can_be_read_is_given_once_it_can(what: str, scheme: str) -> None:
    chain = grow(None, 8)
    served = replay(chain)
    served.set_head(chain[4].name)
    served.hold(chain[6].name, what, 4)  # type: ignore[arg-type] # parametrised
    async with opened(served, scheme) as (_, feed):
        payloads = feed.follow(until=7)
        await take(payloads, 5)
        served.set_head(chain[7].name)
        assert given(await everything(payloads)) == hashes(chain[5:])


@asynchronous
async def test_receipts_that_are_null_are_not_taken_for_no_receipts() -> None:
    chain = grow(None, 4)
    served = replay(chain)
    served.hold(chain[2].name, "receipts", 10_000)
    async with opened(served) as (node, feed):
        assert given(await everything(feed.follow(until=3))) == hashes(chain)
        assert node.calls["eth_getTransactionReceipt"] >= len(chain[2].receipts)  # one by one it has them
        node.before = _without_single_receipts
        with pytest.raises(NodeAnswerError, match="receipts are gone"):
            await everything(feed.follow(until=3))


def _without_single_receipts(method: str, _: Sequence[object]) -> None:
    if method == "eth_getTransactionReceipt":
        raise NodeAnswerError("receipts are gone", code=4444)


@asynchronous
async def test_header_that_was_never_a_block_is_ignored() -> None:
    chain = grow(None, 4)
    served = replay(chain)
    served.set_head(chain[2].name)
    async with opened(served, "ws") as (_, feed):
        payloads = feed.follow()
        await take(payloads, 3)
        served.announce({"number": "0xffff", "hash": "0x12", "parentHash": None})
        served.set_head(chain[3].name)
        assert given(await take(payloads, 1)) == hashes(chain[3:])


# --- which chain a node serves, at the first connection and at each later one ---


@asynchronous
async def test_chain_id_is_the_nodes_and_another_is_refused() -> None:
    async with JsonRpcNode(replay(grow(None, 2), chain_id=7)) as node:
        feed = open_feed(node.url, settings=QUICK)
        assert await feed.chain_id() == 7
        await feed.close()
        other = open_feed(node.url, chain_id=8, settings=QUICK)
        with pytest.raises(WrongChainError, match="serves chain 7, not chain 8"):
            await other.chain_id()
        await other.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@asynchronous
async def test_node_that_comes_back_with_another_chain_is_refused(scheme: str) -> None:
    chain, another = grow(None, 5), grow(None, 9, "z")
    async with serving(replay(chain)) as node:
        feed = open_feed(address(node, scheme), settings=QUICK)
        payloads = feed.follow()
        await take(payloads, 5)
        await node.stop()
        node.chain = replay(another)
        await node.start()
        with pytest.raises(WrongChainError, match="first block"):
            await take(payloads, 1)
        await feed.close()


# --- what is reported of a block besides the block itself: its total difficulty, its uncles, what is final ---


@asynchronous
async def test_total_difficulty_is_added_up_where_the_node_serves_none() -> None:
    chain = grow(None, 12, serve_total=False)
    async with opened(replay(chain)) as (_, feed):
        whole = await everything(feed.follow(until=11))
        resumed = await everything(feed.follow(refs(chain[:6]), until=11))
        from_the_middle = await everything(feed.follow(start=8, until=11))
    expected = [block.total for block in chain]
    assert [payload.weight for payload in whole] == expected
    assert [payload.weight for payload in resumed] == expected[6:]
    assert [payload.weight for payload in from_the_middle] == expected[8:]


@asynchronous
async def test_chain_that_is_too_long_to_add_up_its_difficulty_is_one_sentence() -> None:
    chain = grow(None, 12, serve_total=False)
    short = FeedSettings(rpc=QUICK.rpc, poll=QUICK.poll, sum_blocks=7)
    async with opened(replay(chain), settings=short) as (_, feed):
        assert given(await everything(feed.follow(start=7, until=8))) == hashes(chain[7:9])
        with pytest.raises(NodeAnswerError, match="too far from the first for a sum"):
            await everything(feed.follow(start=8, until=9))


@asynchronous
async def test_uncles_are_fetched_checked_and_published() -> None:
    chain = grow(None, 3)
    uncle = build(chain[1], "u", transactions=0)
    nephew = build(chain[2], uncles=[uncle.block])
    chain.append(nephew)
    async with opened(replay(chain)) as (node, feed):
        payloads = await everything(feed.follow(until=3))
    assert given(payloads) == hashes(chain)
    assert node.calls["eth_getUncleByBlockHashAndIndex"] == 1
    assert payloads[3].updates[f"c/539/b/{nephew.hash.hex()}/u/0"] == header_bytes(uncle.block)


async def marks_of(served: ReplayChain) -> list[tuple[bytes | None, bytes | None]]:
    async with opened(served) as (_, feed):
        payloads = await everything(feed.follow(until=served.head()))
    return [(one.updates.get("c/539/n/safe"), one.updates.get("c/539/n/finalized")) for one in payloads]


@asynchronous
async def test_finality_is_reported_after_the_merge_and_never_of_blocks_above() -> None:
    before = grow(None, 3)
    served = replay([*before, *grow(before[-1], 4, difficulty=0)])
    served.safe, served.finalized = 5, 3
    expected = [(b"\x03", b"\x03"), (b"\x04", b"\x03"), (b"\x05", b"\x03"), (b"\x05", b"\x03")]
    assert await marks_of(served) == [(None, None)] * 3 + expected


@asynchronous
async def test_finality_that_the_node_will_not_tell_is_empty() -> None:
    before = grow(None, 1)
    served = replay([*before, *grow(before[-1], 2, difficulty=0)])
    served.safe = 1
    assert await marks_of(served) == [(None, None), (b"\x01", b""), (b"\x01", b"")]


@asynchronous
async def test_total_difficulty_stays_after_the_merge_and_the_weight_grows() -> None:
    before = grow(None, 3)
    chain = [*before, *grow(before[-1], 3, difficulty=0)]
    async with opened(replay(chain)) as (_, feed):
        payloads = await everything(feed.follow(until=5))
    assert [payload.weight for payload in payloads] == [1000, 2000, 3000, 3003, 3004, 3005]
    totals = [payload.updates[f"c/539/b/{payload.hash.hex()}/d"] for payload in payloads]
    assert totals[2:] == [(3000).to_bytes(2, "big")] * 4


def _swapped(mine: Built, other: Built) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block with another one's transactions: they are genuine, and the receipts, which fit as well, name them."""
    block, receipts = copy.deepcopy(mine.block), copy.deepcopy(mine.receipts)
    block["transactions"] = copy.deepcopy(other.block["transactions"])
    for receipt, transaction in zip(receipts, block["transactions"], strict=True):
        receipt["transactionHash"] = transaction["hash"]
    return block, receipts


def _exchanged(mine: Built) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The block's own transactions in another order; the receipts stay."""
    block, receipts = copy.deepcopy(mine.block), copy.deepcopy(mine.receipts)
    block["transactions"].reverse()
    for receipt, transaction in zip(receipts, block["transactions"], strict=True):
        receipt["transactionHash"] = transaction["hash"]
    return block, receipts


def test_transactions_that_agree_with_all_but_the_header_are_found_by_their_root_alone() -> None:
    parent = build(None)
    mine, other = build(parent, "a"), build(parent, "b")
    verify(mine.block, mine.receipts)
    for block, receipts in (_swapped(mine, other), _exchanged(mine)):
        with pytest.raises(IntegrityError) as caught:
            verify(block, receipts)
        assert caught.value.check == "transactions root"
        verify(block, receipts, checks=[name for name in CHECKS if name != "transactions root"])


def test_a_genuine_block_other_than_the_requested_one_is_refused() -> None:
    mine, other = (grow(build(None), 1, branch)[0] for branch in "ab")
    rules = Rules.of(1337, FeedSettings())
    block = msgspec.convert(mine.block, RpcBlock)
    receipts = msgspec.convert(mine.receipts, list[RpcReceipt])
    assert rules.checked(block, receipts, [], mine.hash).hash == mine.hash
    with pytest.raises(IntegrityError) as caught:
        rules.checked(block, receipts, [], other.hash)
    assert (caught.value.check, caught.value.hash) == ("hash", other.hash)
    assert raw(mine.name).hex() in str(caught.value)


LIE = hex(10**30)


ALONE = replace(QUICK, workers=0, walk=4)


BESIDE = replace(ALONE, workers=1, worker_blocks=10, worker_bytes=0, fetch_blocks=8)


WITHOUT_SUMS = replace(QUICK, sum_blocks=1)


def merged_later(length: int) -> list[Built]:
    """Four blocks of work, then others: the total stays 4,000."""
    before = grow(None, 4)
    return [*before, *grow(before[-1], length, difficulty=0)]


def weights(chain: Sequence[Built]) -> list[int]:
    """As they are published: from the merge on the number is added."""
    return [one.total + (one.number if one.block["difficulty"] == "0x0" else 0) for one in chain]


def lying(chain: Sequence[Built], at: int, total: str = LIE, times: int = 1000) -> ReplayChain:
    """A node that says another total of one block."""
    served = replay(list(chain))
    served.swap(chain[at].name, "block", {**chain[at].block, "totalDifficulty": total}, times)
    return served


async def resumed(
    served: ReplayChain, chain: Sequence[Built], published: int, settings: FeedSettings = QUICK
) -> list[Payload]:
    """What a feed gives above so many published blocks whose weights it was given."""
    async with serving(served) as node, connected(node.url, settings) as feed:
        assert isinstance(feed, NodeFeed)
        feed.learn(dict(zip(hashes(chain[:published]), weights(chain[:published]), strict=True)))
        return await everything(feed.follow(refs(chain[:published]), until=chain[-1].number))


@asynchronous
async def test_a_chain_without_work_is_as_heavy_whatever_its_node_serves() -> None:
    chain = grow(None, 6, difficulty=0)
    for served in (replay(chain), lying(chain, 0), lying(chain, 3), lying(chain, 5)):
        async with opened(served) as (_, feed):
            assert [payload.weight for payload in await everything(feed.follow(until=5))] == [1, 2, 3, 4, 5, 6]
        async with opened(served) as (_, feed):
            assert [payload.weight for payload in await everything(feed.follow(start=3, until=5))] == [4, 5, 6]


@pytest.mark.process
@pytest.mark.parametrize("settings", [ALONE, BESIDE], ids=["alone", "beside"])
@asynchronous
async def test_where_work_ended_the_total_stays_what_it_was(settings: FeedSettings) -> None:
    chain = merged_later(40)
    for served in (replay(chain), lying(chain, 4), lying(chain, 30)):
        async with serving(served) as node, connected(node.url, settings) as feed:
            payloads = await everything(feed.follow(until=43))
        assert [payload.weight for payload in payloads] == weights(chain)


@pytest.mark.process
@pytest.mark.parametrize("settings", [ALONE, BESIDE], ids=["alone", "beside"])
@pytest.mark.parametrize("published", [3, 4, 5, 7])
@asynchronous
async def test_a_resumed_feed_continues_from_the_weights_that_are_published(
    published: int, settings: FeedSettings
) -> None:
    chain = merged_later(40)
    whole = await resumed(replay(chain), chain, 0, settings)
    assert [payload.weight for payload in whole] == weights(chain)
    assert await resumed(lying(chain, 20), chain, published, settings) == whole[published:]


@asynchronous
async def test_a_resumed_feed_without_anything_to_add_up_needs_no_totals_of_its_node() -> None:
    chain = grow(None, 12, serve_total=False)
    payloads = await resumed(replay(chain), chain, 10, WITHOUT_SUMS)
    assert [payload.weight for payload in payloads] == [11_000, 12_000]


@pytest.mark.parametrize("published", [1, 5])
@asynchronous
async def test_the_first_block_after_a_start_is_held_to_what_is_published(published: int) -> None:
    chain = grow(None, 8)
    payloads = await resumed(lying(chain, published, times=1), chain, published)
    assert [payload.weight for payload in payloads] == weights(chain)[published:]
    with pytest.raises(IntegrityError) as refused:
        await resumed(lying(chain, published), chain, published)
    assert (refused.value.number, refused.value.check) == (published, "total difficulty")


class Headers(ReplayChain):
    """A node that lies once about a header that is requested alone."""

    lies: dict[str, dict[str, str]]

    def block(self, block_hash: str, *, full: bool) -> msgspec.Raw | None:
        shown = super().block(block_hash, full=full)
        if full or shown is None or (lie := self.lies.pop(block_hash, None)) is None:
            return shown
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(shown) | lie))


@pytest.mark.parametrize("lie", [{"difficulty": "0x1"}, {"stateRoot": "no root"}])
@asynchronous
async def test_a_published_header_is_held_to_its_hash_before_its_weight_is_read(lie: dict[str, str]) -> None:
    chain = merged_later(5)
    served = Headers([Recorded(one.block, one.receipts) for one in chain], chain_id=1337)
    served.lies = {chain[6].name: lie}
    assert [payload.weight for payload in await resumed(served, chain, 7)] == weights(chain)[7:]
    assert not served.lies


@asynchronous
async def test_a_block_by_its_hash_has_the_weight_that_it_was_given_with() -> None:
    chain = merged_later(5)
    async with opened(lying(chain, 6)) as (_, feed):
        assert isinstance(feed, NodeFeed)
        payloads = await everything(feed.follow(until=8))
        assert await feed.block(chain[6].hash) == payloads[6]
