"""Blocks of either implementation's producer through either's consumer, compared with what was generated.

Blocks are published in the generator's moves, and every move has to come out as exactly one update with these blocks,
each with the generator's fields, values and deletes. What lies on the topics in the end is read once more from the
start. The last two tests are about topics with transactions.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from go_program import DEADLINE, Go, GoProcess, received

from cardinal.apps import Application, get
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal.protocols.streams import Batch, Payload, SubBatch, decode, split
from cardinal.protocols.streams.events import PingSeen
from cardinal_devkit.testing.generator import SCHEMA, ChainGenerator, ChainMove, as_received

pytestmark = [pytest.mark.slow, pytest.mark.broker]

SEED = 2
BLOCKS = 120
DEPTHS = {1, 2, 3, 4, 5, 6}
READY_SECONDS = 30.0
IN_TRANSACTIONS = 40
ROOT = Payload(0, b"root".rjust(32), bytes(32), 0)
_RE2 = {expression: topic for expression, topic in SCHEMA.items() if not expression.split("/")[-1]}
"""The Go consumer counts below directories only, and its expressions have no look-ahead."""


@dataclass(frozen=True)
class Chain:
    """A chain with forks; the first block stands on ``ROOT``."""

    app: Application
    moves: list[ChainMove]

    @property
    def mined(self) -> list[Payload]:
        """Every block, parents first."""
        return [payload for move in self.moves for payload in move.mined]

    def truth(self, *, of_go: bool = False) -> dict[bytes, Payload]:
        """What a consumer delivers. The Go consumer loses empty values of Batches (schemas/SPEC.md, D2)."""
        expected = {}
        for payload in self.mined:
            whole = as_received(payload)
            lost = _empty_in_batch(payload, self.app) if of_go else set()
            updates = {path: value for path, value in whole.updates.items() if path not in lost}
            expected[payload.hash] = replace(whole, updates=updates)
        return expected


def _empty_in_batch(payload: Payload, app: Application) -> set[str]:
    message = split(payload, app.topics, app.default_topic)[-1]
    batch = decode(message.key, message.value)
    assert isinstance(batch, Batch)
    return {
        path for path, entry in batch.updates.items() if path in payload.updates and not (entry.value or entry.count)
    }


def generic() -> Chain:
    """Values, deletes and sub batches of every kind, among them paths that are not UTF-8."""
    stem = uuid.uuid4().hex[:12]
    topics = {expression: f"{stem}-{topic}" for expression, topic in _RE2.items()}
    # A sub batch whose path no expression of ``topics`` matches is followed where it is named.
    app = Application(
        name="generated", chain="generated:1", default_topic=stem, topics=topics, prefixes=(*topics, "ledger")
    )
    return _chain(app, lambda payload: payload)


def evm() -> Chain:
    """The paths of the EVM application with any bytes below them; siblings share the id of their sub batch."""
    return _chain(get("evm", topic=uuid.uuid4().hex[:12]), _as_evm)


def _chain(app: Application, content: Callable[[Payload], Payload]) -> Chain:
    moves = ChainGenerator(SEED).moves(BLOCKS, reorg_rate=0.3, max_depth=max(DEPTHS))
    assert {len(move.removed) for move in moves} == DEPTHS | {0}
    return Chain(
        app, [move._replace(mined=tuple(content(_above_root(payload)) for payload in move.mined)) for move in moves]
    )


def _above_root(payload: Payload) -> Payload:
    """The Go consumer begins after a block that has a hash, and to it forks on that block are no reorgs (D8)."""
    parent = payload.parent if payload.number else ROOT.hash
    return replace(payload, number=payload.number + 1, parent=parent)


def _as_evm(payload: Payload) -> Payload:
    source = random.Random(payload.hash)
    block, number = f"c/1/b/{payload.hash.hex()}", payload.number
    paths = [f"{block}/h", f"{block}/d", *(f"{block}/{part}" for part in ("w", "u/0") if source.randrange(2))]
    for index in range(source.randrange(6)):
        paths += [f"{block}/t/{index:x}", f"{block}/r/{index:x}"]
        paths += [f"{block}/l/{index:x}/{log:x}" for log in range(source.randrange(3))]
    updates = {path: source.randbytes(source.randrange(200)) for path in paths}
    updates |= {f"c/1/n/{number:x}": payload.hash, f"c/1/c/{source.randbytes(32).hex()}": source.randbytes(500)}
    accounts = [f"c/1/a/{source.randrange(40):064x}" for _ in range(source.randrange(1, 6))]
    state = {f"{account}/d": source.randbytes(80) for account in accounts}
    state |= {f"{account}/s/{source.randbytes(32).hex()}": source.randbytes(32) for account in accounts}
    gone = frozenset(f"c/1/a/{source.randrange(40, 50):064x}" for _ in range(source.randrange(3)))
    sub_batch = SubBatch("c/1/s", state, gone)
    return replace(payload, updates=updates, deletes=frozenset(), sub_batches={number.to_bytes(32, "big"): sub_batch})


# --- what comes out ---------------------------------------------------------------------------------------------------

Steps = Iterator[tuple[list[bytes], list[Payload]]]
"""What each update removes, newest first, and what it adds, oldest first."""

Truth = Mapping[bytes, Payload]


def of_python(chain: Chain, url: str) -> Steps:
    """The Python consumer's updates, ``seq`` without a gap, and no report of anything but pings."""
    reports: list[object] = []
    seq = 0
    with Consumer(url, chain.app, idle_timeout=DEADLINE, on_event=reports.append) as consumer:
        for update in consumer:
            assert update.first_seq == seq + 1
            seq = update.seq
            added = [payload for payload in update.added if isinstance(payload, Payload)]
            assert len(added) == len(update.added)
            assert [report for report in reports if not isinstance(report, PingSeen)] == []
            yield [payload.hash for payload in update.removed], added


def of_go(process: GoProcess) -> Steps:
    """The Go consumer's updates."""
    while True:
        if (line := process.next()) != "ready":
            removed = [received(block).hash for block in line["removed"]]
            yield removed[::-1], [received(block) for block in line["added"]]


def check_moves(chain: Chain, publish: Callable[[ChainMove], object], consumers: Mapping[Steps, Truth]) -> None:
    """Publish move by move; each consumer delivers it as one update before the next."""
    for move in chain.moves:
        publish(move)
        for steps, truth in consumers.items():
            removed, added = next(steps)
            assert removed == [ref.hash for ref in move.removed]
            assert [payload.hash for payload in added] == [ref.hash for ref in move.added]
            check_content(added, truth)


def check_chain(chain: Chain, steps: Steps, truth: Truth) -> None:
    """Replay what lies on the topics until the heaviest block is the head: the chain is the generator's."""
    expected: list[bytes] = [ROOT.hash]
    for move in chain.moves:
        expected = expected[: len(expected) - len(move.removed)] + [ref.hash for ref in move.added]
    ancestry = [ROOT.hash]
    while ancestry[-1] != expected[-1]:
        removed, added = next(steps)
        for block in removed:
            assert ancestry.pop() == block
        for payload in added:
            assert payload.parent == ancestry[-1]
            ancestry.append(payload.hash)
        check_content(added, truth)
    assert ancestry == expected


def check_content(added: list[Payload], truth: Truth) -> None:
    for payload in added:
        expected = truth[payload.hash]
        assert (payload.number, payload.parent, payload.weight) == (expected.number, expected.parent, expected.weight)
        assert dict(payload.updates) == expected.updates
        assert payload.deletes == expected.deletes


# --- both ways --------------------------------------------------------------------------------------------------------

schemas = pytest.mark.parametrize("make", [generic, evm], ids=["generic", "evm"])


@schemas
def test_python_delivers_what_the_go_producer_published(go: Go, make: Callable[[], Chain]) -> None:
    chain = make()
    with go.producer(chain.app, chain.mined) as producer:
        assert producer.next() == "ready"
        check_moves(chain, lambda move: producer.send(len(move.mined)), {of_python(chain, go.url): chain.truth()})


@schemas
def test_go_delivers_what_the_python_producer_published(go: Go, make: Callable[[], Chain]) -> None:
    chain = make()
    with Producer(go.url, chain.app, producer_id="python") as producer, go.consumer(chain.app, ROOT) as consumer:

        def publish(move: ChainMove) -> None:
            for payload in move.mined:
                producer.add(payload)

        check_moves(chain, publish, {of_go(consumer): chain.truth(of_go=True)})


@schemas
def test_both_consumers_deliver_what_both_producers_published_at_once(go: Go, make: Callable[[], Chain]) -> None:
    chain = make()
    with (
        Producer(go.url, chain.app, producer_id="python") as ours,
        go.producer(chain.app, chain.mined, "-repeat") as theirs,
        go.consumer(chain.app, ROOT) as consumer,
    ):
        assert theirs.next() == "ready"

        def publish(move: ChainMove) -> None:
            theirs.send(len(move.mined))
            for payload in move.mined:
                ours.add(payload)

        live = {of_python(chain, go.url): chain.truth(), of_go(consumer): chain.truth(of_go=True)}
        check_moves(chain, publish, live)
    with go.consumer(chain.app, ROOT) as consumer:
        check_chain(chain, of_go(consumer), chain.truth(of_go=True))
    check_chain(chain, of_python(chain, go.url), chain.truth())


# --- topics with transactions -----------------------------------------------------------------------------------------


def _in_transactions(go: Go) -> Chain:
    chain = generic()
    with Producer(f"{go.url}?transactional=update", chain.app, producer_id="python") as producer:
        for payload in chain.mined[:IN_TRANSACTIONS]:
            producer.add(payload)
        producer.flush(DEADLINE)
    return chain


def test_a_go_consumer_of_topics_with_transactions_becomes_ready(go: Go) -> None:
    """The last offset of a partition is a marker, which no client sees: a message has to follow it."""
    chain = _in_transactions(go)
    with go.consumer(chain.app, ROOT) as consumer:
        while consumer.next(READY_SECONDS) != "ready":
            pass


def test_a_go_producer_starts_on_topics_with_transactions(go: Go) -> None:
    """It waits for the last message of each partition before it publishes."""
    chain = _in_transactions(go)
    with go.producer(chain.app, []) as producer:
        assert producer.next(READY_SECONDS) == "ready"
