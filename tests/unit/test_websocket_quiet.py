from __future__ import annotations

import logging

import pytest
from websockets.exceptions import InvalidMessage

from cardinal.transports.websocket.quiet import QuietLogger


@pytest.mark.parametrize(
    "error", [InvalidMessage("no HTTP"), ConnectionResetError(104, "reset"), EOFError("ended"), TimeoutError()]
)
def test_a_connection_that_breaks_is_no_traceback(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise error
    except type(error):
        QuietLogger("quiet").error("it failed", exc_info=True)
    assert caplog.record_tuples == [("quiet", logging.ERROR, f"it failed: {type(error).__name__}")]
    assert "Traceback" not in caplog.text


def test_what_is_a_bug_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        int("no number")
    except ValueError:
        QuietLogger("quiet").error("it failed", exc_info=True)
    assert "Traceback" in caplog.text


def test_nothing_is_debugged_whatever_levels_are_set(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logger = QuietLogger("quiet")
    assert not logger.isEnabledFor(logging.DEBUG)
    logger.debug("> Authorization: Bearer token")
    logger.info("shown")
    assert caplog.messages == ["shown"]
