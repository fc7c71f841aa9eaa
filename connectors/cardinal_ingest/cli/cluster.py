"""`cardinal cluster`: begin a cluster of ingest nodes, watch it, change its members, and make their keys."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from cardinal import apps
from cardinal.cli.common import app_option, config_option, stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.apps import Application
    from cardinal.transports import TransportUrl
    from cardinal_ingest.cluster.admin import Begun, Signer
    from cardinal_ingest.cluster.config import ClusterFile
    from cardinal_ingest.cluster.node_reports import NodeReport
    from cardinal_ingest.cluster.status import ClusterStatus

    _Command = TypeVar("_Command", bound=Callable[..., Any])

_File: Final = click.Path(path_type=Path, dir_okay=False)
_COLUMNS: Final = "  {:<9}  {:>7}  {:>10}  {:>7}  {:>12}  {:>9}  {:>9}  {:<19}  {}"

_cluster_option = click.option(
    "--cluster", "cluster_file", required=True, type=_File, help="Members of the cluster (TOML)."
)
_node_id_option = click.option("--node-id", required=True, help="Member that signs the record.")
_key_option = click.option("--key", required=True, type=_File, help="File of its secret key.")


def _stream_options(command: _Command) -> _Command:
    """Options that name the stream; the command gets ``url`` and ``app``."""

    @config_option
    @click.option("--topic", help="Default topic, where it is not the application's own.")
    @click.option("--chain-id", type=click.IntRange(0), default=1, show_default=True, help="Chain id of the stream.")
    @app_option
    @click.option("--to", "to_url", required=True, metavar="URL", help="Stream: kafka://host:port.")
    @functools.wraps(command)
    def with_stream(
        *, to_url: str, app_name: str, chain_id: int, topic: str | None, config: Path | None, **options: object
    ) -> object:
        app = apps.get(app_name, chain_id=chain_id, topic=topic) if topic else apps.get(app_name, chain_id=chain_id)
        return command(url=stream(to_url, config), app=app, **options)

    return cast("_Command", with_stream)


@click.group()
def cluster() -> None:
    """Ingest nodes that agree on every block: keys, the first epoch, the state, and changes of the members.

    `cluster.toml` names the members, and is the same on all nodes: name = "main", epoch = 0, and for each member a
    table [members.ID] with key (the public key that keygen prints), address (HOST:PORT of the links), and, as needed,
    bodies (HOST:PORT of block bodies; default: the next port) and metrics (HOST:PORT, for status). Three members
    tolerate the loss of one, five of two.

    \b
    Examples:
      cardinal cluster keygen a.key
      cardinal cluster init --cluster cluster.toml --to kafka://localhost:9092 --node-id a --key a.key --start 0
      cardinal cluster status --cluster cluster.toml --to kafka://localhost:9092
    """


@cluster.command()
@click.argument("file", type=_File)
def keygen(file: Path) -> None:
    """Write a new secret key to FILE, with mode 0600, and print the public key.

    The public key goes into cluster.toml; the secret key stays on its node. A file that exists is not overwritten.

    \b
    Example:
      cardinal cluster keygen a.key
    """
    from cardinal_ingest.cluster.keys import generate_key  # noqa: PLC0415 - the extra of one command

    click.echo(generate_key(file).public.hex())


@cluster.command()
@_cluster_option
@_node_id_option
@_key_option
@click.option("--start", type=click.IntRange(0), help="Number of the first block, where the topics are empty.")
@_stream_options
def init(
    *, url: TransportUrl, app: Application, cluster_file: Path, node_id: str, key: Path, start: int | None
) -> None:
    """Create the claim log and the topic of markers, and begin epoch 0.

    On topics with blocks the cluster continues after the newest complete one: stop their producers before. It is done
    once, before the nodes start.

    \b
    Example:
      cardinal cluster init --cluster cluster.toml --to kafka://localhost:9092 --node-id a --key a.key --start 0
    """
    from cardinal_ingest.cluster.admin import begin_cluster  # noqa: PLC0415 - the extra of one command

    file = _load(cluster_file)
    _print_begun(file, begin_cluster(url, app, file, _signer(node_id, key), start))


@cluster.command()
@_cluster_option
@click.option("--from", "from_file", required=True, type=_File, help="Members until now (TOML).")
@_node_id_option
@_key_option
@_stream_options
def reconfigure(
    *, url: TransportUrl, app: Application, cluster_file: Path, from_file: Path, node_id: str, key: Path
) -> None:
    """End the epoch of --from and begin the next one, with the members and keys of --cluster.

    The new file has the same name and the next epoch. Stop the publishers, leave the nodes running until all blocks are
    agreed and on the topics, run this, and restart the nodes with the new file and empty data folders. It refuses while
    something is in progress, warns of members whose metrics do not say so, and may be repeated after an interruption.
    The signing member is one of both files, with the same key.

    \b
    Example:
      cardinal cluster reconfigure --from cluster.toml --cluster new.toml --to kafka://localhost:9092 \\
          --node-id a --key a.key
    """
    from cardinal_ingest.cluster.admin import reconfigure_cluster  # noqa: PLC0415 - the extra of one command

    old, new = _load(from_file), _load(cluster_file)
    _print_begun(new, reconfigure_cluster(url, app, old, new, _signer(node_id, key)))


@cluster.command()
@_cluster_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_stream_options
def status(*, url: TransportUrl, app: Application, cluster_file: Path, as_json: bool) -> None:
    """Show who leads, what is agreed, promoted and pending, why, and who is behind.

    Claims and markers are read from the topics. Members whose metrics address is in the file are queried; one that does
    not answer is shown so.

    \b
    Example:
      cardinal cluster status --cluster cluster.toml --to kafka://localhost:9092 --json
    """
    from cardinal_ingest.cluster.status import cluster_status  # noqa: PLC0415 - the extra of one command

    found = cluster_status(url, app, _load(cluster_file))
    if as_json:
        click.echo(json.dumps(_values(found)))
    else:
        _print(f"{found.name}, epoch {found.epoch}: {found.chain} on {url}", found)


def _load(file: Path) -> ClusterFile:
    from cardinal_ingest.cluster.config import load_cluster  # noqa: PLC0415 - the extra of one command

    return load_cluster(file)


def _signer(node_id: str, key: Path) -> Signer:
    from cardinal_ingest.cluster.admin import Signer  # noqa: PLC0415 - the extra of one command
    from cardinal_ingest.cluster.keys import load_key  # noqa: PLC0415 - the same

    return Signer(node_id, load_key(key))


def _print_begun(file: ClusterFile, begun: Begun) -> None:
    _warn(begun.warnings)
    after = f"with block {begun.start}" if begun.head is None else f"after block {begun.head.number}"
    had = "had begun before" if begun.already else "has begun"
    click.echo(f"epoch {file.epoch} of {file.name} {had}, and continues {after}: {begun.claim_log}")


def _warn(sentences: tuple[str, ...]) -> None:
    for one in sentences:
        click.echo(f"warning: {one}", err=True)


def _print(title: str, found: ClusterStatus) -> None:
    _warn(found.warnings)
    click.echo(click.style(title, bold=True))
    if found.closed:
        click.echo(click.style("  closed     the epoch has ended: run the nodes with the next one's file", fg="red"))
    head = "nothing" if found.head is None else f"block {found.head.number} 0x{found.head.hash.hex()}"
    click.echo(f"  leader     {found.leader}")
    click.echo(f"  agreed     batch {found.agreed}: {head}; highest block {found.highest}")
    click.echo(f"  promoted   {_promoted(found)}")
    refused = ", ".join(f"{count} {reason}" for reason, count in found.refused.items())
    click.echo(
        f"  claim log  {found.claim_log}, records {found.begin} to {found.end - 1}"
        + (f"; not counted: {refused}" if refused else "")
    )
    click.echo(_COLUMNS.format("", "claims", "agreed", "behind", "acknowledged", "unagreed", "pool", "links", "member"))
    nodes = {node.member: node for node in found.nodes}
    for member in found.members:
        click.echo(_row(found, member, nodes.get(member)))
    for node in found.nodes:
        for reason in filter(None, (node.error, node.waits_for, *node.pending)):
            click.echo(click.style(f"  {node.member}: {reason}", fg="red"))


def _promoted(found: ClusterStatus) -> str:
    if found.promoted is None:
        return "unknown: there is no marker"
    by = "" if found.promoter is None else f", by {found.promoter}"
    waiting = f"; waiting batches: {found.unpromoted}" if found.unpromoted else ""
    return f"batch {found.promoted}{by}{waiting}"


def _row(found: ClusterStatus, member: str, node: NodeReport | None) -> str:
    claims = found.claims[member]
    if node is None or node.error:
        state = "" if node is None else click.style("no answer", fg="red")
        return _COLUMNS.format(state, claims, *"-" * 5, "-", member)
    links = "-" if node.connected is None else f"{node.connected}/{len(found.members) - 1} up"
    if node.suspected:
        links += f", {node.suspected} suspected"
    state = click.style("waits    ", fg="red") if node.waits_for else click.style("ready    ", fg="green")
    numbers = (node.agreed_block, found.behind(node), node.acknowledged_block, node.unagreed_blocks)
    pool = "-" if node.pool_bytes is None else f"{node.pool_bytes / (1 << 20):.1f} MB"
    return _COLUMNS.format(state, claims, *("-" if one is None else one for one in numbers), pool, links, member)


def _values(found: ClusterStatus) -> dict[str, object]:
    head, marker = found.head, found.marker
    return {
        "name": found.name,
        "epoch": found.epoch,
        "chain": found.chain,
        "closed": found.closed,
        "leader": found.leader,
        "agreed": {
            "batch": found.agreed,
            "head": head and {"number": head.number, "hash": f"0x{head.hash.hex()}"},
            "highest": found.highest,
        },
        "promoted": {
            "batch": found.promoted,
            "waiting": found.unpromoted,
            "promoter": found.promoter,
            "marker": marker and {"batch": marker.num, "blocks": marker.index, "writer": marker.writer},
        },
        "claim_log": {
            "topic": found.claim_log, "begin": found.begin, "end": found.end, "refused": dict(found.refused),
        },
        "claims": dict(found.claims),
        "members": [_member_values(found, name) for name in found.members],
        "warnings": list(found.warnings),
    }  # fmt: skip


def _member_values(found: ClusterStatus, name: str) -> dict[str, object]:
    node = next((node for node in found.nodes if node.member == name), None)
    if node is None:
        return {"member": name}
    return {
        "member": name,
        "error": node.error,
        "ready": not node.error and not node.waits_for,
        "waits_for": node.waits_for,
        "leader": node.leader,
        "agreed": {"batch": node.agreed_batch, "block": node.agreed_block, "behind": found.behind(node)},
        "promoted_batch": node.promoted_batch,
        "acknowledged_block": node.acknowledged_block,
        "unagreed_blocks": node.unagreed_blocks,
        "pool_bytes": node.pool_bytes,
        "links": {"connected": node.connected, "suspected": node.suspected},
        "promotes": node.promotes,
        "pending": list(node.pending),
    }
