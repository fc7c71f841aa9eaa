"""Status of a server: its numbers at one moment, and as metrics for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

try:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    from cardinal.errors import MissingExtraError

    raise MissingExtraError("cardinal serve", "server") from absent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PREFIX: Final = "cardinal_serve_"


@dataclass(slots=True)
class Totals:
    """Counts since the beginning, of all clients.

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
    """Numbers of a server at one moment. Field names are those of the metrics, whose help is in :data:`_HELP`."""

    clients: int
    clients_without_credit: int
    sent_bytes_total: int
    sent_records_total: int
    unsent_bytes: int
    ring_bytes: int
    ring_oldest_record_age_seconds: float
    catch_up_clients: int
    catch_up_waiting_clients: int
    catch_ups_total: int
    lag_records: int
    lag_seconds: float
    head_age_seconds: float
    read_records_total: int
    upstream_connected: int
    upstream_errors_total: int
    slow_clients_closed_total: int
    protocol_errors_total: int
    unauthorized_total: int


_HELP: Final = {
    "clients": "Connected clients.",
    "clients_without_credit": "Clients that read and wait to grant more credit: they accept nothing now.",
    "sent_bytes_total": "Bytes of records sent.",
    "sent_records_total": "Records sent, to all clients together.",
    "unsent_bytes": "Bytes in the sockets' buffers of all clients.",
    "ring_bytes": "Recent records in memory, once for all clients.",
    "ring_oldest_record_age_seconds": "Age of the oldest record in memory; older clients need a catch-up read.",
    "catch_up_clients": "Clients that read through a source of their own because they are older than memory.",
    "catch_up_waiting_clients": "Clients that wait for such a source.",
    "catch_ups_total": "Catch-up reads begun.",
    "lag_records": "Records that the slowest client has to be sent yet.",
    "lag_seconds": "Seconds since the newest record that the slowest client was sent.",
    "head_age_seconds": "Age of the newest block's Batch.",
    "read_records_total": "Records read from the stream.",
    "upstream_connected": "1 while the stream is being read.",
    "upstream_errors_total": "Failed reads of the stream.",
    "slow_clients_closed_total": "Clients closed because they accepted nothing for too long.",
    "protocol_errors_total": "Clients closed because they broke the protocol.",
    "unauthorized_total": "Connections refused for want of a valid token.",
}


class StatusCollector(Collector):
    """A status as metrics, taken at every scrape.

    Arguments:
        status: takes it; called on the thread of the scrape.

    """

    def __init__(self, status: Callable[[], ServeStatus]) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """Nothing: to register it must not take a status."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All numbers."""
        status = self._status()
        for field in fields(status):
            family = CounterMetricFamily if field.name.endswith("_total") else GaugeMetricFamily
            yield family(_PREFIX + field.name, _HELP[field.name], value=getattr(status, field.name))
