"""A hundred clients at once, some of them slow: what none of the others may notice."""

from __future__ import annotations

import random
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cardinal.protocols.streams.types import Routed
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports import open_source
from serving import from_start, serving, until

if TYPE_CHECKING:
    from cardinal.protocols.streams import Record
    from cardinal.transports import Source

APP = ChainGenerator().application
CLIENTS = 100
ROUNDS = 10
RECORDS = 60


def test_a_hundred_clients_of_which_a_third_is_slow_all_get_everything_once_and_in_order() -> None:
    found: dict[int, list[Record]] = {number: [] for number in range(CLIENTS)}
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker, ExitStack() as stack:
        sink = broker.sink(APP, producer_id="a")
        # A ring of a tenth of all records: who is slow has to be caught up from the source, four at a time.
        served = stack.enter_context(serving(broker.url, APP, buffer_bytes=40_000, catch_up_max=4))
        sources: list[Source] = []
        for number in range(CLIENTS):
            source = open_source(served.url + ("?window.bytes=2000" if number % 3 == 0 else ""), APP)
            stack.callback(source.close)
            sources.append(from_start(source))
        assert served.status.clients == CLIENTS
        for turn in range(ROUNDS):
            keys = (b"\x03" + (turn * RECORDS + n).to_bytes(32, "big") for n in range(RECORDS))
            sink.send([Routed(APP.default_topic, key, random.Random(turn).randbytes(500)) for key in keys], None)
            sink.flush(20)
            for number, source in enumerate(sources):
                if number % 3:  # the slow ones take nothing until all is written
                    found[number] += source.poll(1_000, 0.0)
        sink.close()
        total = len(broker.records())

        def everybody_has_everything() -> bool:
            for number, source in enumerate(sources):
                if len(found[number]) < total:
                    found[number] += source.poll(1_000, 0.0)
            return all(len(records) >= total for records in found.values())

        until(everybody_has_everything, 60)
        status = served.status
        expected = broker.records()
    assert all(sorted(records) == expected for records in found.values())
    for records in found.values():
        for where in {record[:2] for record in records}:
            offsets = [record.offset for record in records if record[:2] == where]
            assert offsets == sorted(offsets)
    assert (status.slow_clients_closed_total, status.protocol_errors_total) == (0, 0)
    assert status.ring_bytes <= 40_000
