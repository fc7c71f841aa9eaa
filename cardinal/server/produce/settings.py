"""Settings of the producing service, and the observer of its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from cardinal.errors import ConfigurationError
from cardinal.producing.survey.batch_index import is_repairing

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload


@dataclass(frozen=True, slots=True)
class ProduceSettings:
    """Settings of the service.

    Attributes:
        producer_id: the producer's configured id.
        redundancy: see :class:`cardinal.Producer`.
        allow_coverage_change: continue although recent blocks have other entries on the topics.
        reorg_channels: see :class:`cardinal.Producer`.
        look_again_seconds: time after which partially published blocks are searched once more.
        watch_seconds: time between two looks at what may hold the service up.
        query_seconds: time between two queries of a broker that is in doubt.
        stalled_seconds: time without a published block after which the service counts as stalled, where there is one
            to publish.

    Raises:
        ConfigurationError: the id is one that marks repairs.

    """

    producer_id: str
    redundancy: Literal["all", "standby"] = "all"
    allow_coverage_change: bool = False
    reorg_channels: bool = True
    look_again_seconds: float = 30.0
    watch_seconds: float = 1.0
    query_seconds: float = 5.0
    stalled_seconds: float = 60.0

    def __post_init__(self) -> None:
        if is_repairing(self.producer_id):
            raise ConfigurationError(
                f"{self.producer_id!r} ends as the ids of repairs do, and a start would skip what it sent: "
                "choose another producer id",
                setting="producer_id",
            )


class Observer(Protocol):
    """Receives events of a service, on its event loop."""

    def published(self, payload: Payload, seconds: float, behind: int) -> None:
        """A block was sealed, ``seconds`` after the feed yielded it, ``behind`` blocks below what the feed goes to."""
        ...

    def reorged(self, depth: int) -> None:
        """The node's chain left ``depth`` blocks."""
        ...
