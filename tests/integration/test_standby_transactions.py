"""Standby with transactions, beside others that never rest: who starts, or takes over, waits for no pause of theirs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager

import pytest
from kafka_streams import DEADLINE, a_block, child, everything_on, named, small_stream

from cardinal.apps import Application
from cardinal.producer import Producer
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Partition
from cardinal.transports import open_source
from cardinal_devkit.kafka import EmbeddedKafka
from waiting import until

pytestmark = pytest.mark.broker

SOON = 20.0
"""Less than a start waits at most (25 s), and than a transaction's timeout (60 s): by then nothing has run out."""

HALF = """
import sys
from kafka_streams import small_stream
from cardinal.protocols.streams.types import Routed
from cardinal.transports import open_sink
url, stem = sys.argv[1:]
app = small_stream(stem)
sink = open_sink(url, app, producer_id=stem + "-dead")
send = sink._send
def stage_and_say(stage):
    send(stage)
    print("half", flush=True)
    sys.stdin.readline()
sink._send = stage_and_say
everywhere = [Routed(app.default_topic, b"\\xff" + bytes([number]) + bytes(31), b"") for number in range(64)]
sink.send(everywhere, None).result(60.0)
"""


def _standby(url: str, app: Application, name: str, **settings: float) -> Producer:
    return Producer(url, app, producer_id=f"{app.default_topic}-{name}", redundancy="standby", **settings)  # type: ignore[arg-type] # tests name them


@contextmanager
def _without_pause(url: str, app: Application, names: str) -> Iterator[list[Future[None]]]:
    """Producers that commit one block after the other, each for itself; what is given grows with every block begun."""
    stop = threading.Event()
    begun: list[Future[None]] = []

    def work(producer: Producer) -> None:
        for number in itertools.count(1):
            if stop.is_set():
                return
            begun.append(producer.add(a_block(f"{number}a", f"{number - 1}a", values=20)))
            begun[-1].result(DEADLINE)

    with ExitStack() as stack:
        ids = [f"{app.default_topic}-{name}" for name in names]
        producers = [stack.enter_context(Producer(url, app, producer_id=one)) for one in ids]
        workers = [threading.Thread(target=work, args=(producer,)) for producer in producers]
        try:
            for worker in workers:
                worker.start()
            until(lambda: len(begun) > 10)
            yield begun
        finally:
            stop.set()
            for worker in workers:
                worker.join(DEADLINE)


def _written(producer: Producer) -> Mapping[Partition, int]:
    """Where the stream ends now, by what is written."""
    sink = producer._sink
    assert sink.capabilities.transactional
    ends = sink.uncommitted_ends()
    assert ends is not None
    return ends


def _open(url: str, app: Application, ends: Mapping[Partition, int]) -> bool:
    """Whether readers of committed records cannot have all of what is below these offsets."""
    source = open_source(url, app, topics=[app.default_topic])
    try:
        committed = {where: high for where, (_, high) in source.watermarks().items()}
    finally:
        source.close()
    return any(end > committed[where] for where, end in ends.items())


def _senders(url: str, app: Application, name: str) -> list[str]:
    return [
        headers[PRODUCER_HEADER].decode().rpartition("-")[2]
        for record in everything_on(url, app, [app.default_topic])
        if SEALED_HEADER in (headers := dict(record.headers)) and record.key[1:] == named(name)
    ]


def test_who_starts_waits_for_no_pause_of_those_who_commit(cardinal_broker: EmbeddedKafka) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?transactional=update"
    with _without_pause(url, app, "mn") as begun:
        for name in "axz":
            there = len(begun)
            began = time.monotonic()
            with _standby(url, app, name) as late:
                assert time.monotonic() - began < SOON, "it waited for a pause"
                assert len(begun) > there, "there was none"
                count = late.producer_count
                assert count is not None
                assert {f"{app.default_topic}-{one}" for one in "mn"} <= set(count.live)
                late.add(a_block("1a", "0a", values=20)).result(DEADLINE)
                assert late.stats.skipped == 1


def _slow(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is short of everything: a transaction takes longer than readers need to look again."""
    send = producer._sink._send  # type: ignore[attr-defined] # of the transactional sink

    def slowly(*args: object) -> None:
        send(*args)
        time.sleep(0.2)  # there is nothing to wait for: so long it takes

    monkeypatch.setattr(producer._sink, "_send", slowly)


def test_who_is_next_takes_over_from_those_who_only_ping_and_never_rest(
    cardinal_broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, url = small_stream(), f"kafka://{cardinal_broker.bootstrap}?transactional=update"
    with (
        _standby(url, app, "a", ping_seconds=0.001) as first,
        _standby(url, app, "b", ping_seconds=0.001) as second,
        _standby(url, app, "c") as third,
    ):
        until(lambda: third.producer_count is not None and third.producer_count.rank == 2)
        for other in (first, second):
            _slow(other, monkeypatch)
        for first_number in (1, 5, 9):
            chain = [a_block(f"{at}a", f"{at - 1}a") for at in range(first_number, first_number + 4)]
            for sent in [third.add(payload) for payload in chain]:
                sent.result(SOON)
        assert third.stats.blocks == 12
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["a", "z"])
def test_while_a_dead_producers_transaction_is_open_a_start_takes_one_timeout_and_what_is_sealed_already_is_not_sent(
    cardinal_broker: EmbeddedKafka, name: str
) -> None:
    app, stream = small_stream(), f"kafka://{cardinal_broker.bootstrap}?transactional=update&transaction.timeout.ms="
    stem = app.default_topic.removesuffix("-block")
    with _standby(f"{stream}60000", app, "m") as other:
        with child(HALF, f"{stream}6000", stem) as half:
            assert half.stdout is not None
            assert half.stdout.readline() == "half\n"
            half.kill()
        theirs = _written(other)  # and nothing of later pings, each of which is open for a moment
        other.add(a_block("1a", "0a")).result(DEADLINE)
        with _standby(f"{stream}1000", app, name) as late:
            assert _open(stream + "1000", app, theirs), "it waited until the transaction ended"
            again = late.add(a_block("1a", "0a"))
            assert not again.done()
            again.result(DEADLINE)
            assert not _open(stream + "1000", app, theirs)
            assert late.stats.skipped == 1
    assert _senders(stream + "1000", app, "1a") == ["m"]
