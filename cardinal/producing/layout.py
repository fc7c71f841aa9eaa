"""Layout of a stream: the part of an application that a producer uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cardinal.transports.registry import Topics

if TYPE_CHECKING:
    from collections.abc import Mapping


class Stream(Topics, Protocol):
    """Topics and schema of a stream: :class:`cardinal.apps.Application` has it.

    Its ``reorg_threshold``, where it has one, says from which depth on a reorg goes through a channel.
    """

    @property
    def topics(self) -> Mapping[str, str]:
        """The schema: regular expression to topic."""

    @property
    def finality_paths(self) -> tuple[str, str] | None:
        """The paths of the highest safe and the highest finalized block number; None without such."""
