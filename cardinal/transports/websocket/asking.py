"""Questions to a server: asked on a link, their refusals mapped to errors of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeVar

from cardinal.errors import (
    CursorExpiredError,
    RemoteProtocolError,
    TopicError,
    TransportError,
    UnreachableError,
)

from .frames import (
    Answer,
    Failed,
    MarkList,
    Names,
    OffsetList,
    Reading,
    Reason,
    Records,
    Request,
    Topics,
)
from .link import Link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cardinal.protocols.streams.types import Partition

    from .settings import WebsocketSettings

Answered = TypeVar("Answered", Names, MarkList, OffsetList, Reading)


class _NoListener:
    """Of a link that only asks."""

    def greeting(self, number: Callable[[], int]) -> Sequence[Request]:
        del number
        return ()

    def take(self, frame: Records, size: int) -> NoReturn:
        raise RemoteProtocolError(f"the server sent {size} bytes of records ({frame.id}) that nobody asked for")

    def answered(self, frame: Answer) -> None:
        """It changes nothing."""

    def refused(self, frame: Failed) -> None:
        """Nothing was asked for."""

    def ended(self) -> None:
        """Nobody waits."""


def served_topics(settings: WebsocketSettings) -> frozenset[str]:
    """The names of all topics that a server gives."""
    link = Link(settings, _NoListener())
    try:
        return frozenset(ask(link, Topics, Names, "for topics", settings.address).topics)
    finally:
        link.close()


def ask(link: Link, make: Callable[[int], Request], kind: type[Answered], doing: str, address: str) -> Answered:
    """Ask, and map a refusal to its error."""
    answer: Answer = link.ask(make, doing)
    if isinstance(answer, Failed):
        raise error_of(answer, address)
    if not isinstance(answer, kind):
        link.close()
        raise RemoteProtocolError(f"the server at {address} answers another question than was asked")
    return answer


def error_of(frame: Failed, address: str) -> TransportError | CursorExpiredError:
    """The error for a request, or a reading, that has failed on the server's side."""
    match frame.reason:
        case Reason.TOPIC if frame.places:
            (topic, number), _ = next(iter(frame.places.items()))
            return TopicError(
                f"there is no partition {number} of {topic} at {address}: the topic was made anew; start again",
                topic=topic,
            )
        case Reason.TOPIC:
            return TopicError(
                f"the topic {frame.topic} is not served at {address}: start a producer first, or check application and "
                "chain id",
                topic=frame.topic,
            )
        case Reason.EXPIRED:
            return _expired(dict(frame.places), address)
        case Reason.AWAY:
            return UnreachableError(
                f"the server at {address} is there, but what it reads from is not, or it has no room now: try again",
                address=address,
            )
        case Reason.FAILED:
            return TransportError(f"the server at {address} failed, and its log says why")


def _expired(missing: dict[Partition, tuple[int, int]], address: str) -> CursorExpiredError:
    if not missing:
        return CursorExpiredError(f"positions are not kept any more at {address}: start again", missing={})
    (topic, number), (position, limit) = next(iter(missing.items()))
    more = f" and {len(missing) - 1} more partitions" if len(missing) > 1 else ""
    if position == limit:
        return CursorExpiredError(
            f"{topic}:{number}{more} has other records below {position} at {address} than were read: the topic was "
            "made anew; start again",
            missing=missing,
        )
    if position > limit:
        return CursorExpiredError(
            f"{topic}:{number}{more} ends at {limit} at {address}, before the position {position}: the topic was made "
            "anew; start again",
            missing=missing,
        )
    return CursorExpiredError(
        f"retention has removed the records from {position} to {limit} of {topic}:{number}{more} at {address}: "
        "start from a newer cursor or from the start of what is kept",
        missing=missing,
    )
