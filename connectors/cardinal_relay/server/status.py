"""Status of a server: a snapshot, and metrics for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, get_type_hints

from cardinal.metrics import Collector, CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PREFIX: Final = "cardinal_serve_"


@dataclass(slots=True)
class Totals:
    """Counters since the start, of all clients.

    Attributes:
        bytes, records: sent.
        slow, refused: clients closed because they accepted nothing, or broke the protocol.
        unauthorized: connections without a valid token.

    """

    bytes: int = 0
    records: int = 0
    slow: int = 0
    refused: int = 0
    unauthorized: int = 0


@dataclass(frozen=True, slots=True)
class ServeStatus:
    """Snapshot of a server. Names and descriptions are those of the metrics."""

    clients: Annotated[int, "Connected clients."]
    clients_without_credit: Annotated[int, "Clients that read and wait to grant more credit: they accept nothing now."]
    sent_bytes_total: Annotated[int, "Bytes of records sent."]
    sent_records_total: Annotated[int, "Records sent, to all clients together."]
    unsent_bytes: Annotated[int, "Bytes in the sockets' buffers of all clients."]
    ring_bytes: Annotated[int, "Recent records in memory, once for all clients."]
    ring_oldest_record_age_seconds: Annotated[
        float, "Age of the oldest record in memory; older clients need a catch-up read."
    ]
    catch_up_clients: Annotated[
        int, "Clients that read through a source of their own because they are older than memory."
    ]
    catch_up_waiting_clients: Annotated[int, "Clients that wait for such a source."]
    catch_ups_total: Annotated[int, "Catch-up reads begun."]
    lag_records: Annotated[int, "Records that the slowest client has to be sent yet."]
    lag_seconds: Annotated[float, "Seconds since the newest record that the slowest client was sent."]
    head_age_seconds: Annotated[float | None, "Age of the newest block's Batch; absent before the first one is read."]
    read_records_total: Annotated[int, "Records read from the stream."]
    upstream_connected: Annotated[int, "1 while the stream is being read."]
    upstream_errors_total: Annotated[int, "Failed reads of the stream."]
    slow_clients_closed_total: Annotated[int, "Clients closed because they accepted nothing for too long."]
    protocol_errors_total: Annotated[int, "Clients closed because they broke the protocol."]
    unauthorized_total: Annotated[int, "Connections refused without a valid token."]


class StatusCollector(Collector):
    """Collector of a status at every scrape.

    Arguments:
        status: returns the status; called on the thread of the scrape.

    """

    def __init__(self, status: Callable[[], ServeStatus]) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """Nothing: registering the collector must not request a status."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All numbers."""
        status = self._status()
        for name, hint in get_type_hints(ServeStatus, include_extras=True).items():
            if (value := getattr(status, name)) is not None:
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield family(_PREFIX + name, hint.__metadata__[0], value=value)
