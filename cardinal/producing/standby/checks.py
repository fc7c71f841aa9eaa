"""Preconditions of ``standby``: one place where all producers write, and one clock for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from cardinal.errors import ConfigurationError, TopicError

if TYPE_CHECKING:
    from cardinal.transports.base import Sink
    from cardinal.transports.url import TransportUrl

_REDUNDANCIES: Final = ("all", "standby")


@runtime_checkable
class _Clocked(Protocol):
    """A sink that knows the clock of its records."""

    def foreign_clock(self) -> str | None:
        """A topic whose records are stamped by the clocks of their producers, if there is one."""
        ...


def is_standby(redundancy: str, url: TransportUrl) -> bool:
    """Return True for ``standby``; ConfigurationError where that is impossible, and for an unknown redundancy."""
    if redundancy not in _REDUNDANCIES:
        raise ConfigurationError(
            f"redundancy is {' or '.join(_REDUNDANCIES)}, not {redundancy!r}", setting="redundancy"
        )
    standby = redundancy == "standby"
    if standby and url.members:
        raise ConfigurationError(
            "standby leaves out blocks that others have sealed, and of a mux one member may have them and another not: "
            "use redundancy=all, or produce to one of the members",
            setting="redundancy",
        )
    return standby


def refuse_foreign_clocks(sink: Sink) -> None:
    """TopicError where producers cannot be ranked, because no clock is everybody's."""
    topic = sink.foreign_clock() if isinstance(sink, _Clocked) else None
    if topic is not None:
        raise TopicError(
            f"the topic {topic} is stamped by its producers' clocks, and standby needs the broker's: set "
            "message.timestamp.type=LogAppendTime for all topics of the stream, or use redundancy=all",
            topic=topic,
        )
