"""What is not there yet is waited for as long as --wait says; what no wait heals is refused at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from click import Command
from click.testing import CliRunner

from blocks import DEADLINE, line, publish
from cardinal import apps
from cardinal.cli.status import status
from cardinal.cli.tail import tail
from cardinal.consumer import Consumer
from cardinal.consuming.patience import Patience
from cardinal.errors import CardinalError, ConfigurationError, RefusedError, TopicError, UnreachableError
from cardinal_devkit.testing.memory import MemoryBroker
from waiting import until

APP = apps.get("blob", chain_id=7)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex) as broker:
        yield broker


class Attempts:
    """A call that fails with these errors, one after the other."""

    def __init__(self, *errors: CardinalError) -> None:
        self._errors = [*errors]
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        if self._errors:
            raise self._errors.pop(0)
        return self.count


AWAY = UnreachableError("away", address="here")
ABSENT = TopicError("absent", topic="here")


def test_what_may_appear_is_waited_for() -> None:
    assert Patience(DEADLINE).answer(Attempts(AWAY, ABSENT)) == 3


@pytest.mark.parametrize("seconds", [None, 0, 0.01])
def test_it_ends_with_the_patience(seconds: float | None) -> None:
    with pytest.raises(UnreachableError):
        Patience(seconds).answer(Attempts(*[AWAY] * 1_000))


@pytest.mark.parametrize("error", [RefusedError("no"), ConfigurationError("wrong")])
def test_what_no_wait_heals_is_refused_at_once(error: CardinalError) -> None:
    attempts = Attempts(error)
    with pytest.raises(type(error)):
        Patience(DEADLINE).answer(attempts)
    assert attempts.count == 1


def test_a_block_that_is_not_published_yet_may_appear_and_one_that_has_expired_may_not(broker: MemoryBroker) -> None:
    broker.sink(APP, producer_id="one")
    with pytest.raises(ConfigurationError, match="the stream is empty, so it does not hold block 0 yet") as empty:
        Consumer(broker.url, APP, start=0)
    assert "lower" not in str(empty.value)
    publish(broker, line(5, 8), app=APP)
    with pytest.raises(ConfigurationError, match="its highest is 8") as above:
        Consumer(broker.url, APP, start=9)
    with pytest.raises(ConfigurationError, match="from block 5 on") as below:
        Consumer(broker.url, APP, start=3)
    assert [caught.value.retriable for caught in (empty, above, below)] == [True, True, False]


def test_a_command_waits_for_the_stream_and_the_block_where_it_begins(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def produce() -> None:
        until(lambda: "there is no blob stream" in caplog.text)
        publish(broker, line(1, 4), app=APP)

    arguments = ["--app", "blob", "--start", "3", "--stop", "4", "--wait", str(DEADLINE)]
    with caplog.at_level("INFO", "cardinal.wait"), ThreadPoolExecutor() as threads:
        produced = threads.submit(produce)
        result = CliRunner().invoke(tail, [broker.url, *arguments])
        produced.result(DEADLINE)
    assert result.exit_code == 0, result.output
    assert [text.split()[1] for text in result.stdout.splitlines()[2:]] == ["3", "4"]


@pytest.mark.parametrize("command", [tail, status])
def test_a_memory_broker_of_another_process_is_refused_at_once(command: Command) -> None:
    refused = CliRunner().invoke(command, ["memory://elsewhere", "--wait", str(DEADLINE)])
    assert isinstance(refused.exception, ConfigurationError)
    assert "write kafka://host:port" in str(refused.exception)
