"""Ingest nodes of the demo: one, or a cluster of three.

A cluster's keys, its ``cluster.toml`` and its first epoch are made in the demo's folder, by an operator's commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal import apps
from cardinal.config.url import parse_url
from cardinal_devkit.kafka import free_port

from .cast import cardinal

if TYPE_CHECKING:
    from pathlib import Path

STARTED: Final = "publishers are served on port"
"""Logged by a node when it accepts publishers."""
_MEMBERS: Final = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class IngestNode:
    """An ingest node before it is started.

    Attributes:
        name: of the child process.
        address: for publishers.
        arguments: its command.

    """

    name: str
    address: str
    arguments: tuple[str, ...]


def _node(node_id: str, name: str, folder: Path, *stream: str) -> IngestNode:
    address = _address()
    arguments = ("ingest", "--node-id", node_id, "--listen", address, "--data", str(folder / name), *stream)
    return IngestNode(name, address, arguments)


def _address() -> str:
    return f"127.0.0.1:{free_port()}"


def one_node(url: str, chain_id: int, folder: Path) -> IngestNode:
    """A node that acknowledges on its own."""
    return _node("demo", "ingest", folder, "--to", url, "--chain-id", str(chain_id))


class DemoCluster:
    """Three members: keys, file, and the first epoch.

    Arguments:
        url, chain_id: the stream.
        folder: for keys, file and data.

    Attributes:
        nodes: the members, to be started.

    Raises:
        MissingExtraError: what members need is not installed.
        ChildFailedError: the epoch could not begin.

    """

    def __init__(self, url: str, chain_id: int, folder: Path) -> None:
        from cardinal_ingest.cluster.keys import generate_key  # noqa: PLC0415 - the extra of one option

        self._url = url
        self._chain_id = chain_id
        self._file = folder / "cluster.toml"
        stream = ("--to", url, "--chain-id", str(chain_id), "--cluster", str(self._file))
        lines, nodes = ['name = "demo"'], []
        for one in _MEMBERS:
            key, metrics = folder / f"{one}.key", _address()
            public = generate_key(key).public.hex()
            lines += [f"[members.{one}]", f'key = "{public}"', f'address = "{_address()}"', f'bodies = "{_address()}"']
            lines += [f'metrics = "{metrics}"']
            nodes.append(_node(one, f"ingest-{one}", folder, *stream, "--key", str(key), "--metrics", metrics))
        self._file.write_text("\n".join(lines))
        cardinal("cluster", "init", *stream, "--node-id", "a", "--key", str(folder / "a.key"), "--start", "0")
        self.nodes = tuple(nodes)

    def leader(self) -> str:
        """Name of the member's process that leads, as most members report it; empty while there is none."""
        from cardinal_ingest.cluster.config import load_cluster  # noqa: PLC0415 - the extra of one option
        from cardinal_ingest.cluster.status import cluster_status  # noqa: PLC0415 - the same

        app = apps.get("evm", chain_id=self._chain_id)
        leader = cluster_status(parse_url(self._url), app, load_cluster(self._file)).leader
        return f"ingest-{leader}" if leader else ""

    def level(self) -> bool:
        """True where every member answers, is ready, and has read and promoted the same batch."""
        from cardinal_ingest.cluster.config import load_cluster  # noqa: PLC0415 - the extra of one option
        from cardinal_ingest.cluster.node_reports import node_reports  # noqa: PLC0415 - the same

        reports = node_reports(load_cluster(self._file))
        seen = {(one.agreed_batch, one.promoted_batch) for one in reports}
        return len(seen) == 1 and all(not one.error and not one.waits_for for one in reports)
