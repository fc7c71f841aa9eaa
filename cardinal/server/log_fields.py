"""Fields of log records: a call logs its values by name, and text and JSON lines show them each in its own way.

``LOG.info("block %(block)d is sent again: %(error)s", {"block": 7, "error": error})`` is one sentence as text, and the
sentence and its fields as JSON. The field ``kind`` names the event. :data:`SENTENCE` logs a sentence made
before.
"""

from __future__ import annotations

from typing import Final

from cardinal.texts import short_hash

SENTENCE: Final = "%(message)s"
"""The text of a record whose fields hold its sentence as ``message``."""


class LoggedHash(bytes):
    """Hash of a block in a log record: short as text, complete as JSON."""

    __slots__ = ()

    def __str__(self) -> str:
        return short_hash(self)
