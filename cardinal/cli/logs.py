"""Logging of the commands: one set-up for all of them, on standard error, as text or as JSON lines.

Only our own loggers (``cardinal.…`` and those of the connectors and of Spark) take the chosen level. Libraries stay at
``warning``: some of them log requests with their headers at ``debug``.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from cardinal import plugins

__all__ = ["LEVELS", "report_error", "set_up"]

LEVELS: Final = ("debug", "info", "warning", "error")
_FIRST: Final = ("time", "level", "logger", "message")


class _Stderr(logging.Handler):
    """Stream that writes to the current standard error, which a progress bar replaces while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except OSError:
            self.handleError(record)


class _Lines(logging.Formatter):
    """Times in UTC."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the library's name
        """The record's time, ISO 8601."""
        del datefmt
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Text(_Lines):
    """``2026-01-13T22:00:00.000Z info    sentence``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        text = super().format(record)
        return text.replace(record.levelname, record.levelname.lower(), 1)


class _Json(_Lines):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, the record's fields, and ``traceback``.

    Fields are the values that a record names (:mod:`cardinal.server.log_fields`), each under its name.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = record.args if isinstance(record.args, Mapping) else {}
        line = {name: _value(value) for name, value in fields.items()} | {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: line[name] for name in (*_FIRST, *line)}, ensure_ascii=False)


def _value(value: object) -> object:
    """A field as JSON: hashes in full, whatever has no form of its own as its text."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def set_up(level: str, form: Literal["text", "json"]) -> None:
    """Send the log to standard error; a second call replaces the first."""
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _Stderr)]:
        root.removeHandler(handler)
    handler = _Stderr()
    handler.setFormatter(_Json() if form == "json" else _Text())
    root.addHandler(handler)
    for name in ("cardinal", *plugins.packages()):
        logging.getLogger(name).setLevel(level.upper())


def report_error(sentence: str, kind: str) -> None:
    """Print the final error of a command: ``error: …`` on standard error, or a JSON line where the log is JSON."""
    ours = [each for each in logging.getLogger().handlers if isinstance(each, _Stderr)]
    if ours and isinstance(ours[0].formatter, _Json):
        logging.getLogger("cardinal.cli").error("%(message)s", {"kind": kind, "message": sentence})
    else:
        sys.stderr.write(f"error: {sentence}\n")
