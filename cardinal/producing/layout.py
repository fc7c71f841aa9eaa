"""Layout of a stream: the part of an application that a producer uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Stream(Protocol):
    """Topics and schema of a stream: :class:`cardinal.apps.Application` has it.

    Its ``reorg_threshold``, where it has one, says from which depth on a reorg goes through a channel.
    """

    @property
    def default_topic(self) -> str:
        """Where Batches go."""
        ...

    @property
    def all_topics(self) -> Sequence[str]:
        """Every topic of the stream."""
        ...

    @property
    def topics(self) -> Mapping[str, str]:
        """The schema: regular expression to topic."""
        ...
