"""File settings: the options of a ``file://`` URL."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from cardinal.transports.options import TransportOptions

if TYPE_CHECKING:
    from cardinal.config.url import TransportUrl

_SEGMENT_MIN: Final = 1_000


class Fsync(Enum):
    """Policy for syncing written data to the disk."""

    ALWAYS = "always"
    NEVER = "never"


class Recover(Enum):
    """The policy for damage that no crash explains."""

    REFUSE = "refuse"
    CUT = "cut"


class FileSettings(TransportOptions):
    """The options of a URL."""

    fsync: Fsync = Fsync.ALWAYS
    """Policy for syncing written data to the disk: ``always`` (before every acknowledgement; what was sent meanwhile
    shares one sync), ``never`` (acknowledged when the operating system has it: survives the death of the process, not
    of the machine)."""

    segment_bytes: Annotated[int, Field(ge=_SEGMENT_MIN)] = 16 << 20
    """The size at which the next segment begins. A reader that begins in the middle of a segment, and a writer that
    opens the folder, read one segment from its beginning."""

    retention_bytes: Annotated[int, Field(ge=-1)] = -1
    """The size of all segments above which the oldest ones are deleted; -1 keeps all."""

    recover: Recover = Recover.REFUSE
    """A writer's policy for damage in the middle of the newest segment: ``refuse``, or ``cut``, which deletes
    everything from there on. A torn tail, which a crash leaves, is always cut. A power cut can leave more: of blocks
    that were written together, a later one may exist and an earlier one not. That is refused as well, because nothing
    distinguishes it from damage; with ``fsync=always`` nothing from there on was acknowledged, and ``cut`` loses
    nothing that was."""

    partitions: Annotated[int, Field(ge=1, le=10_000, alias="cardinal.partitions")] = 2
    """Partitions of topics that are created."""

    max_message_bytes: Annotated[int, Field(ge=1_000, alias="cardinal.max.message.bytes")] = 10_000_024
    """The largest message."""

    queue_bytes: Annotated[int, Field(ge=1, alias="cardinal.queue.bytes")] = 64 << 20
    """Bytes that may be sent and not yet acknowledged before a producer waits."""


def file_settings(url: TransportUrl) -> FileSettings:
    """The settings of a URL. ConfigurationError names the option that cannot work."""
    return FileSettings.of(url)
