"""The options of a ``file://`` URL.

* ``fsync``: ``always`` (default: every group of sends is on the disk before it is acknowledged), ``interval`` (the
  same, but the disk is asked at most every ``fsync.interval.ms``, so acknowledgements wait for so long), ``never``
  (acknowledged when the operating system has it: survives the death of the process, not of the machine).
* ``segment.bytes``: when a segment is this large, the next one is begun.
* ``retention.bytes``: the oldest segments go when all of them are larger than this; -1 (default) keeps everything.
* ``recover``: what a writer does with damage in the middle of the newest segment: ``refuse`` (default) or ``cut``
  (drop everything from there on). A torn tail, which is what a crash leaves, is always cut. A power cut can leave more:
  of blocks that were on their way to the disk together, a later one may be there and an earlier one not. That is
  refused as well, because nothing tells it from damage; with ``fsync=always`` nothing from there on was acknowledged,
  and ``cut`` loses nothing that was.
* ``cardinal.partitions`` (of topics that are created, default 2), ``cardinal.max.message.bytes``,
  ``cardinal.queue.bytes``: as for ``kafka://``.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cardinal.errors import ConfigurationError
from cardinal.transports.unused import refuse_login

if TYPE_CHECKING:
    from cardinal.transports.url import TransportUrl

_SEGMENT_MIN: Final = 1_000
_INTERVAL: Final = "fsync.interval.ms"


class Fsync(Enum):
    """When the disk is asked to have what was written."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class Recover(Enum):
    """What to do about damage that no crash explains."""

    REFUSE = "refuse"
    CUT = "cut"


class FileSettings(BaseModel):
    """A URL's options, checked. See the module for their meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    fsync: Fsync = Fsync.ALWAYS
    fsync_interval_ms: Annotated[int, Field(ge=1, le=60_000, alias=_INTERVAL)] = 50
    segment_bytes: Annotated[int, Field(ge=_SEGMENT_MIN, alias="segment.bytes")] = 64 << 20
    retention_bytes: Annotated[int, Field(ge=-1, alias="retention.bytes")] = -1
    recover: Recover = Recover.REFUSE
    partitions: Annotated[int, Field(ge=1, le=10_000, alias="cardinal.partitions")] = 2
    max_message_bytes: Annotated[int, Field(ge=1_000, alias="cardinal.max.message.bytes")] = 10_000_024
    queue_bytes: Annotated[int, Field(ge=1, alias="cardinal.queue.bytes")] = 64 << 20


def file_settings(url: TransportUrl) -> FileSettings:
    """The options of a URL. ConfigurationError names the one that cannot work."""
    refuse_login(url)
    settings = _checked(url)
    if "fsync_interval_ms" in settings.model_fields_set and settings.fsync is not Fsync.INTERVAL:
        raise ConfigurationError(
            f"{_INTERVAL} is for fsync=interval only: add that, or leave it out", setting=_INTERVAL
        )
    return settings


def _checked(url: TransportUrl) -> FileSettings:
    try:
        return FileSettings.model_validate(dict(url.options))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(field.alias or key for key, field in FileSettings.model_fields.items()))
            raise ConfigurationError(f"there is no option {name} of file:// URLs: use {known}", setting=name) from None
        raise ConfigurationError(f"the option {name} cannot be used: {first['msg']}", setting=name) from None
