"""Producers of a stream as `cardinal status` reports them, also those of other implementations."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from click.testing import CliRunner

from cardinal import Payload, Producer, apps
from cardinal.cli.status import status
from cardinal.producing.pings import ping_id
from cardinal.protocols.streams import Ping, Record, encode, split
from cardinal.server.status import NAMELESS, stream_state
from cardinal.transports import parse_url
from cardinal_devkit.testing.memory import MemoryBroker

if TYPE_CHECKING:
    from cardinal.transports import Sink

APP = apps.get("blob")


def block(number: int) -> Payload:
    return Payload(
        number, number.to_bytes(32), (number - 1).to_bytes(32), number, {f"k/{number:064x}/x": b"%d" % number}
    )


def write_without_id(sink: Sink, payload: Payload) -> None:
    """As an implementation without headers does."""
    routed = split(payload, APP.topics, APP.default_topic)
    ping = (APP.default_topic, *encode(Ping(ping_id("go"), 5, 0)))
    sink.replay([Record(topic, 0, 0, key, value) for topic, key, value in (*routed, ping)]).result(5)


def test_producers_without_an_id_have_one_name_that_says_so() -> None:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        sink = broker.sink(APP, producer_id="unused")
        with Producer(broker.url, APP, producer_id="ours") as producer:
            for number in range(1, 5):
                producer.add(block(number)).result(5)
                write_without_id(sink, block(number))
            state = stream_state(parse_url(broker.url), APP, 10)
            names = {one.name: one for one in state.producers}
            assert names.keys() == {"ours", NAMELESS, f"{ping_id('go').hex()[:12]}…"}
            assert (names[NAMELESS].blocks, names[NAMELESS].newest, names[NAMELESS].ping_age) == (4, 4, None)
            printed = CliRunner().invoke(status, [broker.url, "--app", "blob", "--chain-id", "1"])
            assert any("unknown" in line and line.endswith(NAMELESS) for line in printed.output.splitlines()), (
                printed.output
            )


def test_a_producer_that_ended_cleanly_is_not_alive_until_it_starts_again() -> None:
    def states(broker: MemoryBroker) -> list[tuple[bool, bool]]:
        return [(one.alive, one.ended) for one in stream_state(parse_url(broker.url), APP, 10).producers]

    with MemoryBroker(uuid.uuid4().hex) as broker:
        with Producer(broker.url, APP, producer_id="ours") as producer:
            producer.add(block(1)).result(5)
            assert states(broker) == [(True, False)]
        assert states(broker) == [(False, True)]
        printed = CliRunner().invoke(status, [broker.url, "--app", "blob", "--chain-id", "1"])
        assert any(line.startswith("  ended ") and line.endswith("ours") for line in printed.output.splitlines())
        with Producer(broker.url, APP, producer_id="ours"):
            assert states(broker) == [(True, False)]
