"""Reports of a cluster's members, from their metrics endpoints."""

from __future__ import annotations

import http.client
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cardinal.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal_ingest.cluster.config import ClusterFile

_SECONDS: Final = 3.0
_OK: Final = 200
_UNAVAILABLE: Final = 503
_PREFIX: Final = "cardinal_ingest_"
_CLUSTER: Final = f"{_PREFIX}cluster_"
_TEXT_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A member as it sees itself; a number is None where it does not report it.

    Attributes:
        member: its id.
        error: why there is no report; empty where there is one.
        waits_for: why it is not ready; empty where it is.
        leader: the member that leads.
        agreed_batch, agreed_block: of the part of the claim log that it has read.
        promoted_batch: by the last marker that it has read.
        acknowledged_block: the highest block that it acknowledged to publishers.
        unagreed_blocks: acknowledged blocks that no batch has.
        pool_bytes: bytes of stored blocks that are not on the topics.
        connected, suspected: links to other members.
        promotes: it puts blocks on the topics at this moment.
        pending: reasons why blocks wait.

    """

    member: str
    error: str = ""
    waits_for: str = ""
    leader: str | None = None
    agreed_batch: int | None = None
    agreed_block: int | None = None
    promoted_batch: int | None = None
    acknowledged_block: int | None = None
    unagreed_blocks: int | None = None
    pool_bytes: int | None = None
    connected: int | None = None
    suspected: int | None = None
    promotes: bool = False
    pending: tuple[str, ...] = ()


@dataclass(slots=True)
class _Samples:
    """Samples of one scrape: numbers by name, and the labels of those that are 1."""

    numbers: dict[str, int] = field(default_factory=dict)
    labels: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        if not labels:
            self.numbers[name] = int(value)
        elif value:
            self.labels[name] += labels.values()


def node_reports(file: ClusterFile) -> tuple[NodeReport, ...]:
    """Reports of all members whose metrics address is set, requested at once.

    Raises:
        MissingExtraError: what reads metrics is not installed.

    """
    addresses = {name: one.metrics_address for name, one in sorted(file.members.items())}
    queried = [(name, address) for name, address in addresses.items() if address is not None]
    if not queried:
        return ()
    with ThreadPoolExecutor(len(queried)) as threads:
        return tuple(threads.map(lambda one: _report(*one), queried))


def _report(member: str, address: tuple[str, int]) -> NodeReport:
    try:
        status, ready = _get(address, "/readyz")
        found, text = _get(address, "/metrics")
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return NodeReport(member, f"it does not answer: {why}")
    if status not in {_OK, _UNAVAILABLE} or found != _OK:
        return NodeReport(member, f"no ingest node serves its metrics there: status {found}")
    try:
        samples = _samples(text)
    except ValueError:
        return NodeReport(member, "no ingest node serves its metrics there: they are not readable")
    if f"{_PREFIX}ready" not in samples.numbers:
        return NodeReport(member, "no ingest node serves its metrics there")
    return _read(member, "" if status == _OK else ready.strip() or "it is not ready", samples)


def _read(member: str, waits_for: str, samples: _Samples) -> NodeReport:
    def number(name: str) -> int | None:
        return samples.numbers.get(_CLUSTER + name)

    return NodeReport(
        member,
        waits_for=waits_for,
        leader=next(iter(samples.labels[f"{_CLUSTER}leader"]), None),
        agreed_batch=number("agreed_batch"),
        agreed_block=number("agreed_block"),
        promoted_batch=number("promoted_batch"),
        acknowledged_block=number("acknowledged_block"),
        unagreed_blocks=number("unagreed_blocks"),
        pool_bytes=samples.numbers.get(f"{_PREFIX}pool_bytes"),
        connected=number("peers_connected"),
        suspected=number("peers_suspected"),
        promotes=bool(number("promoter")),
        pending=tuple(samples.labels[f"{_CLUSTER}pending"]),
    )


def _get(address: tuple[str, int], path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(_TEXT_MAX).decode("utf-8", "replace")
    finally:
        connection.close()


def _samples(text: str) -> _Samples:
    try:
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - an extra of its own
    except ImportError as absent:  # pragma: no cover - the development environment has every extra
        raise MissingExtraError("To read the metrics of members", "server") from absent
    samples = _Samples()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            samples.add(one.name, one.labels, one.value)
    return samples
