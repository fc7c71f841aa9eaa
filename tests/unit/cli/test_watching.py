"""Repeated reports: unreachable servers are reported and read again, and a signal ends the command with 0."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial

import click
import pytest

from cardinal.cli.watching import watch
from cardinal.errors import ConfigurationError, TopicError, UnreachableError


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
