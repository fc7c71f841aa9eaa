"""Options that cannot be meant are refused by name before anything is read, and streams are found by name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from blocks import Blocks, line, publish
from cardinal import apps
from cardinal.cli.record import record
from cardinal.cli.tail import tail
from cardinal.consumer import Consumer, find_application
from cardinal.consuming.options import find_streams
from cardinal.copying.recording import Recorder
from cardinal.errors import ConfigurationError, CursorInvalidError, CursorMismatchError, TopicError
from cardinal.transports import parse_url
from cardinal_devkit.testing.memory import MemoryBroker
from waiting import until

HASH = bytes(32)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("start", value) for value in (b"c1:AAAA", 3.5, True, ["earliest"])),
        *(("whitelist", value) for value in ({3: "0x" + HASH.hex()}, {"3": HASH}, {3: HASH[1:]}, [HASH])),
        *(("blacklist", value) for value in (["0x" + HASH.hex()], [b"short"], HASH)),
        *(("skip", value) for value in ([("topic", 0)], [("topic", "0", 1)], ["topic"])),
        *(("max_open_bytes", value) for value in (0, None)),
        *(("idle_timeout", value) for value in (-1, "5", "", float("nan"))),
        *(("topics_timeout", value) for value in (-0.5, "10")),
        *(("tracked", value) for value in (b"a/", 3, ["a/", 5])),
        *(("producers", value) for value in ("one", ("a", "a"))),
        ("on_incomplete", "wait"),
        *(("on_finality_violation", value) for value in ("", "ask")),
        *(("policy", value) for value in ("quorum", "quorum:0", "quorum:4", "most")),
        *(("until", value) for value in ("now", "20", -1, True, 2.0, b"end")),
        ("content", "ranges"),  # with a quorum
        ("max_update", 0),
        *((name, 3) for name in ("heal", "on_event")),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(broker: MemoryBroker, option: str, value: object) -> None:
    publish(broker, line(1, 3))
    options = {"producers": ("a", "b", "c"), "policy": "quorum:2", option: value}
    with pytest.raises(ConfigurationError) as caught:
        Consumer(broker.url, Blocks(), **options)  # type: ignore[arg-type] # wrong on purpose
    assert caught.value.setting == option


def test_a_last_block_below_the_first_is_refused(broker: MemoryBroker) -> None:
    publish(broker, line(1, 3))
    with pytest.raises(ConfigurationError, match=r"until=2 lies below start=3") as caught:
        Consumer(broker.url, Blocks(), start=3, until=2)
    assert caught.value.setting == "until"


def test_content_ranges_takes_nothing_that_is_on_no_topic(broker: MemoryBroker) -> None:
    publish(broker, line(1, 3))
    with pytest.raises(ConfigurationError, match="no heal") as caught:
        Consumer(broker.url, Blocks(), content="ranges", heal=lambda _: ())
    assert caught.value.setting == "content"
    with Consumer(broker.url, Blocks(), content="ranges") as reading, pytest.raises(ConfigurationError) as caught:
        reading.supply(())
    assert caught.value.setting == "content"


@pytest.mark.parametrize("start", ["start", "", "Earliest", "17", "2026-01-13T22:00:00Z"])
def test_text_that_is_no_start_position_is_refused_with_what_is_one(
    broker: MemoryBroker, tmp_path: Path, start: str
) -> None:
    publish(broker, line(1, 3))
    says = f"start must be 'earliest', 'latest', a number, a time, or the text of a cursor, .* not '{start}'"
    with pytest.raises(CursorInvalidError, match=says):
        Consumer(broker.url, Blocks(), start=start)
    with pytest.raises(CursorInvalidError, match=says):
        Recorder(broker.url, f"file://{tmp_path}", Blocks(), start=start)


@pytest.mark.parametrize("app", ["evm", "blob"])
def test_chain_id_that_is_no_number_is_refused_by_name(broker: MemoryBroker, app: str) -> None:
    with pytest.raises(ConfigurationError, match="chain_id must be a number, not str") as caught:
        Consumer(broker.url, app, chain_id="1337")  # type: ignore[arg-type] # wrong on purpose
    assert caught.value.setting == "chain_id"


def test_a_stream_that_appears_later_is_waited_for_so_long(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TopicError, match="start a producer"):
        Consumer(broker.url, Blocks(), topics_timeout=0.1)
    with caplog.at_level("INFO"), ThreadPoolExecutor() as threads:
        found = threads.submit(find_application, broker.url, "evm", wait=60)
        until(lambda: "waiting for it for 60 seconds" in caplog.text)
        broker.sink(apps.get("evm", chain_id=5), producer_id="one")
        assert found.result().default_topic == "cardinal-5"


def test_the_one_stream_of_a_broker_is_found_by_the_applications_name(broker: MemoryBroker) -> None:
    with pytest.raises(TopicError, match="cardinal produce"):
        find_application(broker.url, "evm")
    for topic in ("other-7", "cardinal-99", "cardinal-31337-claims-0", "cardinal-31337-claims-1"):
        broker.create(topic)  # no stream: the other topics are missing
    broker.sink(apps.get("evm", chain_id=31337), producer_id="one")
    assert find_application(broker.url, "evm") == apps.get("evm", chain_id=31337)
    broker.sink(apps.get("evm", chain_id=5), producer_id="one")
    with pytest.raises(ConfigurationError, match=r"31337.*5|5.*31337") as caught:
        find_application(broker.url, "evm")
    assert caught.value.setting == "chain_id"
    with Consumer(broker.url, "evm", chain_id=5) as consumer:
        assert consumer.app.default_topic == "cardinal-5"


def test_a_cursor_decides_the_chain_where_others_have_appeared(broker: MemoryBroker) -> None:
    first, second = (apps.get("blob", chain_id=chain) for chain in (7, 8))
    publish(broker, line(1, 2), app=first)
    with Consumer(broker.url, "blob", until="end") as consumer:
        (update,) = consumer
    publish(broker, line(1, 3), app=second)
    for start in (update.cursor, str(update.cursor)):
        with Consumer(broker.url, "blob", start=start, until="end") as consumer:
            assert consumer.app == first
    with pytest.raises(ConfigurationError, match="choose one by chain_id"):
        Consumer(broker.url, "blob")
    with pytest.raises(CursorMismatchError, match="blob:7"):
        Consumer(broker.url, "blob", chain_id=8, start=update.cursor)
    printed = CliRunner().invoke(tail, [broker.url, "--app", "blob", "--start", str(update.cursor), "--exit-at-end"])
    assert printed.exit_code == 0, printed.output
    assert printed.output.startswith("blob:7 on ")


def test_a_recording_is_continued_where_other_chains_have_appeared(broker: MemoryBroker, tmp_path: Path) -> None:
    arguments = ["--from", broker.url, "--to", f"file://{tmp_path}", "--app", "blob", "--exit-at", "end"]
    for chain in (7, 8):
        publish(broker, line(1, 2), app=apps.get("blob", chain_id=chain))
        done = CliRunner().invoke(record, arguments)
        assert done.exit_code == 0, done.output
    assert [*find_streams(parse_url(f"file://{tmp_path}"), "blob")] == [7]
