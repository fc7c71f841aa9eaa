"""Repeated reports: unreachable servers are reported and read again, and a signal ends the command with 0."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial

import click
import pytest
from click.testing import CliRunner

from cardinal import apps
from cardinal.cli.status import status
from cardinal.cli.watching import watch
from cardinal.errors import ConfigurationError, TopicError, UnreachableError
from cardinal.protocols.streams.events import Explanation

HASH = bytes(range(32))


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_reports_follow_each_other_also_after_errors_that_time_can_heal(capsys: pytest.CaptureFixture[str]) -> None:
    errors: list[Exception] = [UnreachableError("nobody is there", address="a:1"), TopicError("no stream", topic="t")]

    def report() -> Callable[[], None]:
        if errors:
            raise errors.pop(0)
        errors.append(ConfigurationError("the end", setting="url"))
        return partial(click.echo, "a report")

    with pytest.raises(ConfigurationError, match="the end"):
        watch(report, 0.0)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["error: nobody is there", "error: no stream"]
    assert captured.out.splitlines() == ["a report"]  # not a terminal: nothing is cleared


def test_a_block_that_is_not_published_yet_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Explanation(HASH, None, "unknown"), Explanation(HASH, 7, "delivered")]
    monkeypatch.setattr("cardinal.cli.status.streams", lambda *_: [apps.get("evm", chain_id=1)])
    monkeypatch.setattr("cardinal.cli.status.explain_block", lambda *_: found.pop(0))
    monkeypatch.setattr("time.sleep", lambda _: None if found else signal.raise_signal(signal.SIGTERM))
    done = CliRunner().invoke(status, ["kafka://127.0.0.1:1", "--hash", HASH.hex(), "--watch"])
    assert (done.exit_code, done.stdout) == (0, "block 7 of evm:1 is delivered\n")
    assert "is not on the topics of evm:1" in done.stderr


def test_a_terminal_is_cleared_before_a_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(click, "clear", lambda: steps.append("cleared"))

    def show() -> None:
        steps.append("shown")
        signal.raise_signal(signal.SIGTERM)

    def report() -> Callable[[], None]:
        steps.append("read")
        return show

    with pytest.raises(SystemExit) as stopped:
        watch(report, 0.0)
    assert stopped.value.code == 0
    assert steps == ["read", "cleared", "shown"]
    assert "Ctrl-C ends it" in capsys.readouterr().out
