"""Origin of a new stream's weights, which its producers agree on through the default topic.

Two producers that start on an empty stream, at different blocks, could count weights from different origins: for ever
two Batches of each block, none of them wrong. So each sends its proposal, reads the topic, and takes the first:

1. A proposal is a heartbeat with a header. All of them have the same, empty key, so they are in one partition, whose
   order every reader sees alike. The first one counts, whoever sent it and however the producers overlap.
2. A producer sends nothing else before it has read the first proposal: its own at the latest.
3. It is on the topics before the first block. If the producer dies in between, the next one adopts its origin.

Other readers pass heartbeats over.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import UnreachableError
from cardinal.protocols.streams.types import ORIGIN_HEADER, PRODUCER_HEADER, Record
from cardinal.transports.null import NullSink

if TYPE_CHECKING:
    from cardinal.transports.base import Sink

_SECONDS: Final = 60.0
"""As long as the transaction of another producer may hide what follows it."""
_PAUSE_SECONDS: Final = 0.05
_RECORDS: Final = 100_000
"""Records of a partition that are read: pings of a stream without blocks, of some producers for weeks."""


def settle_origin(sink: Sink, topic: str, producer_id: str, proposal: str, *, stamp_ms: int) -> str:
    """The first proposal on a topic; sends this one where there is none.

    Arguments:
        sink: of the stream.
        topic: its default topic.
        producer_id: who proposes.
        proposal: the origin as the feed writes it.
        stamp_ms: time of the record, for transports that keep it.

    Raises:
        UnreachableError: it does not become readable within a minute.
        TransportError: it is not acknowledged.

    """
    if (settled := _first(sink)) is not None:
        return settled
    headers = ((PRODUCER_HEADER, producer_id.encode()), (ORIGIN_HEADER, proposal.encode()))
    sink.replay([Record(topic, 0, 0, b"", b"", stamp_ms, headers)]).result(_SECONDS)
    if isinstance(sink, NullSink):
        return proposal
    deadline = time.monotonic() + _SECONDS
    while (settled := _first(sink)) is None:
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"the origin of the stream's weights was sent to {topic} and cannot be read after {_SECONDS:.0f} s: "
                "another producer's transaction is open there; start again when it has ended",
                address=topic,
            )
        time.sleep(_PAUSE_SECONDS)
    return settled


def _first(sink: Sink) -> str | None:
    """The earliest proposal; of several members the first one's."""
    proposals = (
        (value or b"").decode("utf-8", "replace")
        for record in sink.recent(_RECORDS)
        if not record.key
        for name, value in record.headers
        if name == ORIGIN_HEADER
    )
    return next(proposals, None)
