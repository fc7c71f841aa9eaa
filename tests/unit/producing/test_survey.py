"""Survey of a stream: its published chain, and the partial blocks of a producer."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from cardinal.producer import Producer
from cardinal.producing.pings import ping_id
from cardinal.producing.survey import batch_index
from cardinal.producing.survey.batch_index import complete_chain
from cardinal.producing.survey.frontier import survey
from cardinal.producing.survey.height_range import height_range
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.types import BlockRef, Routed
from cardinal.protocols.streams.wire.codec import encode
from cardinal.protocols.streams.wire.messages import Batch, Ping
from cardinal_devkit.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Blocks:
    default_topic: str = "block"
    topics: dict[str, str] = field(default_factory=lambda: {"a/": "a"})
    all_topics: tuple[str, ...] = ("block", "a")
    finality_paths: tuple[str, str] | None = None


def _hash(name: str) -> bytes:
    return name.encode().ljust(32, b"\0")


def _batch(name: str, parent: str, *, weight: int | None = None) -> Batch:
    number = int(name.rstrip("abc"))
    return Batch(_hash(name), number, number if weight is None else weight, _hash(parent))


def _names(chain: list[BlockRef]) -> list[str]:
    return [ref.hash.rstrip(b"\0").decode() for ref in chain]


def _chain(*names: str) -> list[Batch]:
    return [_batch(name, parent) for parent, name in zip(("", *names), names, strict=False)]


def _all(batches: list[Batch]) -> set[bytes]:
    return {batch.hash for batch in batches}


LINE = _chain("1a", "2a", "3a", "4a", "5a")


@pytest.mark.parametrize(
    ("batches", "incomplete", "floor", "expected"),
    [
        (LINE, set(), 0, ["1a", "2a", "3a", "4a", "5a"]),
        (LINE, {"3a"}, 0, ["1a", "2a"]),
        (LINE[:2] + LINE[3:], set(), 0, ["1a", "2a"]),
        (LINE, {"1a"}, 0, []),
        (LINE, {"1a", "2a"}, 3, ["3a", "4a", "5a"]),
        (LINE, {"3a"}, 3, []),
        ([], set(), 0, []),
        ([*LINE, _batch("4b", "3a", weight=9)], set(), 0, ["1a", "2a", "3a", "4b"]),
        ([*LINE, _batch("4b", "3a", weight=9)], {"4b"}, 0, ["1a", "2a", "3a", "4a", "5a"]),
        ([*LINE[:4], _batch("4b", "3a", weight=9)], set(), 0, ["1a", "2a", "3a", "4b"]),
        (
            [*LINE, _batch("4b", "3a"), _batch("5b", "4b"), _batch("6b", "5b")],
            {"5b"},
            0,
            ["1a", "2a", "3a", "4a", "5a"],
        ),
        ([_batch("1a", "1a")], set(), 0, ["1a"]),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else "",
)
def test_the_chain_ends_before_the_first_incomplete_block(
    batches: list[Batch], incomplete: set[str], floor: int, expected: list[str]
) -> None:
    complete = _all(batches) - {_hash(name) for name in incomplete}
    assert _names(complete_chain(batches, complete, floor=floor)) == expected
    mixed = random.Random(1).sample(batches, len(batches))
    assert _names(complete_chain(mixed, complete, floor=floor)) == expected


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=4) as broker:
        yield broker


def _payloads(count: int) -> list[Payload]:
    hashes = [number.to_bytes(32, "big") for number in range(count + 1)]
    return [Payload(n, hashes[n], hashes[n - 1], n, {"a/1": b"x"}) for n in range(1, count + 1)]


def _publish(broker: MemoryBroker, payloads: list[Payload], producer_id: str = "one") -> None:
    with Producer(broker.url, Blocks(), producer_id=producer_id) as producer:
        for payload in payloads:
            producer.add(payload)
        producer.flush(10)


def _published(broker: MemoryBroker, tail: int = 1000) -> list[int]:
    return [ref.number for ref in survey(broker.source(["block", "a"]), Blocks(), tail=tail).chain]


def test_an_empty_stream_has_no_chain(broker: MemoryBroker) -> None:
    broker.sink(Blocks(), producer_id="one")
    assert _published(broker) == []


def test_every_sealed_block_is_found(broker: MemoryBroker) -> None:
    _publish(broker, _payloads(50))
    assert _published(broker) == list(range(1, 51))


def test_a_short_tail_gives_the_newest_blocks_without_a_gap(broker: MemoryBroker) -> None:
    _publish(broker, _payloads(300))
    found = _published(broker, tail=20)
    assert found[-1] == 300
    assert found == list(range(found[0], 301))
    assert 1 < found[0] <= 300 - 20


def test_a_missing_batch_ends_the_chain_before_it(broker: MemoryBroker) -> None:
    payloads = _payloads(40)
    _publish(broker, payloads[:29] + payloads[30:])
    assert _published(broker) == list(range(1, 30))
    _publish(broker, payloads[29:30])
    assert _published(broker) == list(range(1, 41))


@pytest.mark.slow
def test_a_gap_anywhere_in_the_tail_is_found() -> None:
    payloads = _payloads(300)
    with MemoryBroker(uuid.uuid4().hex, partitions=4) as whole:
        _publish(whole, payloads)
        first = _published(whole, tail=15)[0]
    for hole in range(first, 300):
        with MemoryBroker(uuid.uuid4().hex, partitions=4) as broker:
            _publish(broker, [payload for payload in payloads if payload.number != hole])
            assert _published(broker, tail=15)[-1] == hole - 1


def test_a_block_without_a_seal_counts_when_it_is_complete(broker: MemoryBroker) -> None:
    payloads = _payloads(6)
    _publish(broker, payloads[:3])
    other = broker.sink(Blocks(), producer_id="other")
    for payload in payloads[3:]:
        *content, batch = split(payload, Blocks().topics, "block")
        missing = payload.number == 6
        other.send([batch, *([] if missing else content)], None).result(60)
    assert _published(broker) == [1, 2, 3, 4, 5]
    other.send(split(payloads[5], Blocks().topics, "block")[:-1], None).result(60)
    assert _published(broker) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_more_unsealed_blocks_than_a_reassembler_holds_are_judged() -> None:
    """Each of them whole but one; the partitions of a topic are read one after the other."""
    payloads, app = _payloads(11_000), Blocks()
    lacks = payloads[4_999]
    with MemoryBroker(uuid.uuid4().hex, partitions=4) as broker:
        other = broker.sink(app, producer_id="other")
        for payload in payloads:
            *content, batch = split(payload, app.topics, app.default_topic)
            other.send([batch] if payload is lacks else [batch, *content], None).result(60)
        source = broker.source(app.all_topics)
        assert height_range(source, app, 10, 10_900).complete == {one.hash for one in payloads[9:10_900]} - {lacks.hash}
        assert [one.hash for one in survey(source, app, producer_id="one").partial] == [lacks.hash]


@pytest.mark.parametrize("since", [0, 5, 100])
def test_old_blocks_sent_again_do_not_move_the_head(broker: MemoryBroker, since: int) -> None:
    """As `cardinal repair` does, or a second producer that is far behind; others went on for so many blocks."""
    payloads = _payloads(3_000 + since)
    _publish(broker, payloads[:3_000])
    _publish(broker, payloads[99:150])
    _publish(broker, payloads[3_000:])
    assert _published(broker, tail=20)[-1] == 3_000 + since


def test_a_tail_of_blocks_sent_again_is_read_farther_back() -> None:
    payloads = _payloads(3_100)
    with MemoryBroker(uuid.uuid4().hex, partitions=1) as broker:
        _publish(broker, payloads[:3_000])
        _publish(broker, payloads[99:200])
        _publish(broker, payloads[3_000:])
        assert _published(broker, tail=150)[-1] == 3_100


def test_a_gap_below_many_blocks_is_found(broker: MemoryBroker) -> None:
    payloads = _payloads(2_000)
    _publish(broker, payloads[:500] + payloads[501:])
    assert _published(broker, tail=450)[-1] == 500


def test_batches_below_many_pings_are_found(broker: MemoryBroker) -> None:
    _publish(broker, _payloads(3_000))
    sink = broker.sink(Blocks(), producer_id="one")
    for second in range(300):
        sink.send((Routed("block", *encode(Ping(ping_id("one"), second, 0))),), None).result(60)
    found = _published(broker, tail=100)
    assert (found[-1], found[0] > 1_000) == (3_000, True)


def test_undecodable_records_are_skipped(broker: MemoryBroker) -> None:
    _publish(broker, _payloads(3))
    broker.sink(Blocks(), producer_id="other").send([Routed("block", bytes(33), b"\xff")], None).result(60)
    assert _published(broker) == [1, 2, 3]


def test_expired_records_are_not_requested(broker: MemoryBroker) -> None:
    _publish(broker, _payloads(200))
    for partition in range(4):
        low, high = broker.source(["block"]).watermarks()["block", partition]
        broker.trim("block", partition, low + (high - low) // 2 + partition)
    found = _published(broker)
    assert found[-1] == 200
    assert found == list(range(found[0], 201))
    assert found[0] > 80


def test_a_partial_block_of_a_killed_producer_is_found_after_others_went_on() -> None:
    """The tip of a side branch, without its Batch, below blocks that another one has sealed for a minute since."""
    seconds, app, payloads = 1_000.0, Blocks(), _payloads(40)
    orphan = Payload(4, bytes([9]) * 32, payloads[2].hash, 4, payloads[3].updates)
    *content, batch = split(orphan, app.topics, app.default_topic)
    with MemoryBroker(uuid.uuid4().hex, clock=lambda: seconds) as broker:
        killed = broker.sink(app, producer_id="one")
        _publish(broker, payloads[:5])
        killed.send(content, None).result(60)
        with Producer(broker.url, app, producer_id="two") as other:
            for payload in payloads[5:]:
                seconds += 20
                other.add(payload).result(60)
        source = broker.source(app.all_topics)
        found = survey(source, app, producer_id="one")
        assert found.chain[-1] == payloads[-1].ref
        assert [(one.number, one.hash, one.messages) for one in found.partial] == [(None, orphan.hash, len(content))]
        assert survey(source, app, producer_id="two").partial == (), "it has left nothing behind"
        killed.send((), batch).result(60)
        assert survey(source, app, producer_id="one").partial == ()


def _orphan(payloads: list[Payload], number: int) -> Payload:
    """A sibling of that block; nobody sends its Batch."""
    return Payload(number, bytes([9]) * 32, payloads[number - 2].hash, number, payloads[number - 1].updates)


def test_a_partial_block_is_found_after_a_second_kill() -> None:
    """What it sealed in the short life between is later than what it had left in the first one."""
    seconds, app, payloads = 1_000.0, Blocks(), _payloads(40)
    orphan = _orphan(payloads, 6)
    with MemoryBroker(uuid.uuid4().hex, clock=lambda: seconds) as broker:
        _publish(broker, payloads[:5])
        broker.sink(app, producer_id="one").send(split(orphan, app.topics, "block")[:-1], None).result(60)
        seconds += 60
        _publish(broker, payloads[5:])
        assert [one.hash for one in survey(broker.source(app.all_topics), app, producer_id="one").partial] == [
            orphan.hash
        ]


def test_a_partial_block_is_found_below_many_messages_of_others() -> None:
    seconds, app, payloads = 1_000.0, Blocks(), _payloads(60)
    orphan = _orphan(payloads, 6)
    with MemoryBroker(uuid.uuid4().hex, clock=lambda: seconds) as broker:
        _publish(broker, payloads[:5])
        broker.sink(app, producer_id="one").send(split(orphan, app.topics, "block")[:-1], None).result(60)
        with Producer(broker.url, app, producer_id="two") as other:
            for payload in payloads[5:]:
                seconds += 12
                other.add(replace(payload, updates={f"a/{n}": b"x" for n in range(400)})).result(60)
        assert [one.hash for one in survey(broker.source(app.all_topics), app, producer_id="one").partial] == [
            orphan.hash
        ]


def test_a_partial_block_before_any_batch_is_found(broker: MemoryBroker) -> None:
    orphan = _orphan(_payloads(2), 2)
    *content, _ = split(orphan, Blocks().topics, "block")
    broker.sink(Blocks(), producer_id="killed").send(content, None).result(60)
    found = survey(broker.source(["block", "a"]), Blocks(), producer_id="one")
    assert [(one.number, one.hash, one.messages) for one in found.partial] == [(None, orphan.hash, len(content))]


# --- blocks that a repair sends again ---------------------------------------------------------------------------------

CHAIN = _payloads(1_000)
REPAIR = batch_index.repairing("host")
TAIL = 20


def test_the_id_of_a_repair_is_marked_once() -> None:
    assert REPAIR == "host-repair"
    assert batch_index.repairing(REPAIR) == REPAIR


@pytest.mark.parametrize("again", [range(100, 300), range(100, 900), range(1, 1_000)], ids=str)
def test_a_repair_does_not_move_the_head(broker: MemoryBroker, again: range) -> None:
    _publish(broker, CHAIN)
    _publish(broker, CHAIN[again.start - 1 : again.stop - 1], REPAIR)
    assert _published(broker, TAIL)[-1] == 1_000


def test_the_head_rises_while_a_repair_runs(broker: MemoryBroker) -> None:
    """A block of it after every thirty that are sent again, so that every tail begins with some of these."""
    _publish(broker, CHAIN[:900])
    for step in range(20):
        _publish(broker, CHAIN[30 * step : 30 * step + 30], REPAIR)
        _publish(broker, CHAIN[900 + step : 901 + step])
    assert _published(broker, TAIL)[-1] == 920


def test_a_block_sent_only_by_a_repair_belongs_to_the_chain(broker: MemoryBroker) -> None:
    _publish(broker, [*CHAIN[:995], *CHAIN[996:]])
    assert _published(broker, TAIL)[-1] == 995
    _publish(broker, CHAIN[995:996], REPAIR)
    assert _published(broker, TAIL)[-1] == 1_000


def test_a_stream_sent_only_by_a_repair_ends_with_it(broker: MemoryBroker) -> None:
    _publish(broker, CHAIN, REPAIR)
    assert _published(broker, TAIL)[-1] == 1_000


def test_memory_of_a_survey_over_a_long_repair_is_bounded(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_index, "_REPAIRED_MAX", 30)
    _publish(broker, CHAIN)
    _publish(broker, CHAIN[:900], REPAIR)
    looked = survey(broker.source(Blocks().all_topics), Blocks(), tail=TAIL)
    assert looked.chain[-1].number == 1_000
    again = {payload.hash for payload in CHAIN[:900]} & looked.batches.keys()
    assert len(again) < 900 / 2
