"""``file://DIR``: a stream in a folder, and the format of recordings. See :mod:`.settings` for a URL's options."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from cardinal.errors import ConfigurationError
from cardinal.transports.read_range import read_recent

from .container import SCHEMA
from .log import Log
from .segments import readable
from .settings import FileSettings, Fsync, Recover, file_settings
from .sink import FileSink
from .source import FileSource
from .writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.config.url import TransportUrl
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.registry import Topics

__all__ = [
    "SCHEMA",
    "FileSettings",
    "FileSink",
    "FileSource",
    "Fsync",
    "LogWriter",
    "Recover",
    "file_settings",
    "folder_of",
    "list_topics",
    "open_sink",
    "open_source",
    "open_writer",
]


def open_writer(url: TransportUrl) -> LogWriter:
    """The folder's writer, for callers that keep the offsets of records.

    Raises:
        ConfigurationError, LogInUseError, LogDamagedError, TransportError: see :class:`.writer.LogWriter`.

    """
    return LogWriter(folder_of(url), file_settings(url))


def open_sink(url: TransportUrl, app: Topics, *, producer_id: str) -> FileSink:
    """A sink for the application's topics. The folder and missing topics are made."""
    settings = file_settings(url)
    folder = folder_of(url)
    writer = LogWriter(folder, settings)

    def recent(limit: int) -> list[Record]:
        with closing(FileSource(folder, (app.default_topic,))) as source:
            return read_recent(source, limit)

    try:
        return FileSink(writer, settings, app.all_topics, producer_id=producer_id, recent=recent)
    except BaseException:
        writer.close()
        raise


def open_source(url: TransportUrl, app: Topics | None, *, topics: Sequence[str] | None, wait: float) -> FileSource:
    """A source of these topics; of all where ``topics`` is None."""
    del app
    file_settings(url)  # a wrong option is refused here too
    return FileSource(folder_of(url), topics, wait=wait)


def list_topics(url: TransportUrl) -> frozenset[str]:
    """The names of all existing topics."""
    file_settings(url)  # as for a source
    log = Log(folder_of(url))
    try:
        with readable(log.folder):
            return frozenset(topic for topic, _ in log.partitions())
    finally:
        log.close()


def folder_of(url: TransportUrl) -> Path:
    """The folder that a URL names; ``~`` is the user's home. ConfigurationError where there is no such user."""
    try:
        return Path(url.address).expanduser()
    except RuntimeError:
        raise ConfigurationError(f"no user's home is known for {url.address}: write the folder in full") from None
