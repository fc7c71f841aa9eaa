"""Whose clock stamps a stream's records: ranks of producers need one that is everybody's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cardinal.errors import TopicError

if TYPE_CHECKING:
    from cardinal.transports.base import Sink


@runtime_checkable
class _Clocked(Protocol):
    """A sink that knows whose clock stamps its records."""

    def foreign_clock(self) -> str | None:
        """A topic whose records are stamped by the clocks of their producers, if there is one."""
        ...


def refuse_foreign_clocks(sink: Sink) -> None:
    """TopicError where producers cannot be ranked, because no clock is everybody's."""
    topic = sink.foreign_clock() if isinstance(sink, _Clocked) else None
    if topic is not None:
        raise TopicError(
            f"the topic {topic} is stamped by its producers' clocks, and standby needs the broker's: set "
            "message.timestamp.type=LogAppendTime for all topics of the stream, or use redundancy=all",
            topic=topic,
        )
