"""The service that runs a handler: resumes, stops between updates, waits for its stream, reports errors."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from blocks import DEADLINE, Blocks, block, line, publish
from cardinal import ChainUpdate
from cardinal.cli.main import cardinal
from cardinal.consumer import Consumer
from cardinal.consuming.metrics import ConsumerMetrics
from cardinal.errors import ConfigurationError, CursorError, TopicError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.server.handler_service import HandlerService
from cardinal_devkit.testing.memory import MemoryBroker
from fault_handlers import Rows


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        yield broker


def connected(broker: MemoryBroker, cursor: Cursor | None) -> Consumer:
    start = "earliest" if cursor is None else cursor
    return Consumer(broker.url, Blocks(), start=start, until="end", idle_timeout=DEADLINE)


class Calls(Rows):
    """Runs a function after each update."""

    then: Callable[[ChainUpdate], object] = staticmethod(lambda _: None)

    def handle(self, update: ChainUpdate) -> None:
        super().handle(update)
        self.then(update)


def test_a_handler_resumes_from_its_cursor_and_follows_a_reorg(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 3))
    HandlerService(Rows(tmp_path), partial(connected, broker)).run()
    publish(broker, [block("3b", "2a", 9), block("4b", "3b", 10)])
    updates: list[ChainUpdate] = []
    resumed = Calls(tmp_path)
    resumed.then = updates.append
    HandlerService(resumed, partial(connected, broker)).run()
    assert [(len(update.removed), len(update.added)) for update in updates] == [(1, 2)]
    assert len(Rows(tmp_path).rows) == 4


def test_a_stop_waits_for_the_update_in_hand_and_a_second_one_does_not(broker: MemoryBroker, tmp_path: Path) -> None:
    publish(broker, line(1, 3))
    handler = Calls(tmp_path)
    service = HandlerService(handler, partial(connected, broker))
    handler.then = lambda _: service.stop()
    with pytest.raises(SystemExit) as stopped:
        service.run()
    assert stopped.value.code == 0
    assert len(Rows(tmp_path).rows) == 3
    ended: list[str] = []

    def stop_twice(_: ChainUpdate) -> None:
        service.stop()
        ended.append("the first")
        service.stop()
        ended.append("the second")

    (tmp_path / "rows.json").unlink()
    handler = Calls(tmp_path)
    handler.then = stop_twice
    service = HandlerService(handler, partial(connected, broker))
    with pytest.raises(SystemExit):
        service.run()
    assert ended == ["the first"]


def test_a_stop_between_updates_ends_at_once(broker: MemoryBroker, tmp_path: Path) -> None:
    service = HandlerService(Rows(tmp_path), partial(connected, broker))
    with pytest.raises(SystemExit):
        service.stop()


def test_an_error_of_the_handler_is_logged_and_ends_with_1(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(broker, line(1, 3))

    class Fails(Rows):
        def handle(self, update: ChainUpdate) -> None:
            raise KeyError(update.seq)

    with pytest.raises(SystemExit) as failed:
        HandlerService(Fails(tmp_path), partial(connected, broker)).run()
    assert failed.value.code == 1
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.getMessage() == "the handler failed in the update of seq 1 to 3; the next start resumes with it"
    assert record.exc_info is not None
    HandlerService(Rows(tmp_path), partial(connected, broker)).run()
    assert len(Rows(tmp_path).rows) == 3


def test_a_stream_that_does_not_exist_is_waited_for_and_metrics_say_so(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cardinal.server.handler_service._RETRY_SECONDS", 0.0)
    waited: list[str] = []
    metrics: list[ConsumerMetrics] = []

    def connect(cursor: Cursor | None) -> Consumer:
        waited.append(service.waits_for)
        if len(waited) < 3:
            raise TopicError("there is no stream", topic="")
        publish(broker, line(1, 3))
        return connected(broker, cursor)

    def observe(consumer: Consumer) -> ConsumerMetrics:
        metrics.append(ConsumerMetrics(consumer))
        return metrics[0]

    handler = Calls(tmp_path)
    service = HandlerService(handler, connect)
    service.run(observe)
    assert waited == ["the stream is not open yet", "there is no stream", "there is no stream"]
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING] == [
        "there is no stream; the service waits"
    ]
    added = metrics[0].registry.get_sample_value("cardinal_consumer_blocks_total", {"change": "added"})
    assert added == 3


def test_a_cursor_that_is_none_is_refused(broker: MemoryBroker, tmp_path: Path) -> None:
    handler = Rows(tmp_path)
    handler.position = "somewhere"
    with pytest.raises(CursorError):
        HandlerService(handler, partial(connected, broker)).run()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "fault_handlers",
            "the handler fault_handlers cannot be imported: ImportError: fault_handlers names no handler",
        ),
        ("nothing.py:Rows", "the handler nothing.py:Rows cannot be imported: FileNotFoundError"),
        ("fault_handlers:Nothing", "cannot be imported: AttributeError"),
        ("json:dumps", "the handler json:dumps cannot be opened: TypeError"),
        ("pathlib:PurePath", "pathlib:PurePath is no handler: it has no method handle and no cursor"),
    ],
)
def test_what_is_no_handler_is_refused_in_one_sentence(tmp_path: Path, name: str, says: str) -> None:
    done = CliRunner().invoke(cardinal, ["run", name, "--from", "kafka://127.0.0.1:1", "--data", str(tmp_path / "new")])
    assert isinstance(done.exception, ConfigurationError)
    assert says in str(done.exception)
