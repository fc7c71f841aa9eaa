"""`cardinal ingest`: accept blocks from publishers, keep them, acknowledge them, and put them on the topics."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from cardinal import apps
from cardinal.cli.common import config_option, metrics_option, stream
from cardinal.cli.stopping import cancelled_when_told
from cardinal.errors import ConfigurationError

_PORT = 40840
_File = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--node-id", required=True, help="Name of this node, unique among those of the stream.")
@click.option(
    "--listen",
    default=f"127.0.0.1:{_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for publishers (gRPC).",
)
@click.option("--to", "to_url", required=True, metavar="URL", help="Stream: kafka://host:port.")
@click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the blocks that are not on the topics yet; one for each node.",
)
@click.option("--app", "app_name", default="evm", show_default=True, help="Application: evm, blob or items.")
@click.option("--chain-id", type=click.IntRange(0), default=1, show_default=True, help="Chain id of the stream.")
@click.option("--chain", type=_File, help="Parameters of an Ethereum-like chain (TOML), where its preset does not fit.")
@click.option("--topic", help="Default topic, where it is not the application's own.")
@click.option("--first", type=click.IntRange(0), help="First block of an empty node; default: the first one offered.")
@click.option(
    "--pool-mb",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    help="Blocks that are not on the topics, in MiB; when they are so many, publishers wait.",
)
@click.option(
    "--memory-mb",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Memory for blocks that are received, verified or stored, in MiB.",
)
@click.option(
    "--max-publishers", type=click.IntRange(1), default=256, show_default=True, help="Publishers connected at once."
)
@click.option(
    "--peers",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Other ingest nodes of the same blocks: bodies that this node lacks are fetched from them.",
)
@click.option("--peer-listen", metavar="HOST:PORT", help="Address where other nodes fetch bodies from this one.")
@click.option(
    "--retain-blocks",
    type=click.IntRange(0),
    default=1_000,
    show_default=True,
    help="With --peer-listen: blocks on the topics whose bodies are retained for other nodes.",
)
@click.option("--cluster", type=_File, help="Members of the cluster (TOML) with which this node agrees on every block.")
@click.option("--key", type=_File, help="With --cluster: the secret key of this member, of `cardinal cluster keygen`.")
@click.option("--cert-file", type=_File, help="Use TLS with this certificate chain (PEM), for publishers and peers.")
@click.option("--key-file", type=_File, help="Private key (PEM), if it is not in --cert-file.")
@click.option(
    "--ca-file",
    type=_File,
    help="Accept only publishers and peers with a certificate of these authorities (PEM); it names them.",
)
@metrics_option
@config_option
def ingest(  # noqa: PLR0917 - click passes options by name
    node_id: str,
    listen: str,
    to_url: str,
    data: Path,
    app_name: str,
    chain_id: int,
    chain: Path | None,
    topic: str | None,
    first: int | None,
    pool_mb: int,
    memory_mb: int,
    max_publishers: int,
    peers: str | None,
    peer_listen: str | None,
    retain_blocks: int,
    cluster: Path | None,
    key: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    ca_file: Path | None,
    metrics: str | None,
    config: Path | None,
) -> None:
    """Accept blocks from publishers, acknowledge them when they are verified and durable, and publish them.

    Publishers push over gRPC, as they do to Hiero's block nodes; of several copies of a block one wins. A broker that
    is unreachable is waited for: blocks are accepted meanwhile. SIGINT and SIGTERM stop the node; a restart continues.
    /readyz fails while blocks are not accepted or not promoted, and names the reason.

    With --peers a node that was down catches up by itself: what its publishers no longer hold it fetches from other
    nodes, which serve it with --peer-listen, and verifies it as a published block. Each node still acknowledges and
    publishes on its own, to topics of its own or to shared ones; nodes agree on nothing, and a block is on one disk
    when it is acknowledged. A node can fetch what another one has not published yet, and its last --retain-blocks. An
    empty node fetches nothing before it has a first block: set --first, or connect a publisher. Peers are trusted as
    publishers are: use --ca-file outside a private network.

    With --cluster this node is a member of a cluster: a block is acknowledged when a majority of the members has stored
    it, all members agree on the order of blocks, and one of them puts each block on the topics.

    \b
    Example:
      cardinal ingest --node-id a --to kafka://localhost:9092 --data /var/lib/cardinal/a --app items
      cardinal ingest --node-id a --to kafka://localhost:9092 --data ./a --cluster cluster.toml --key a.key
    """
    from cardinal_ingest.body_exchange.settings import (  # noqa: PLC0415 - the extra of one command
        PeerSettings,
        address_of,
        addresses_of,
    )
    from cardinal_ingest.node.limits import MEBIBYTE, Limits  # noqa: PLC0415 - the extra of one command
    from cardinal_ingest.node.service import IngestSettings, run_ingest  # noqa: PLC0415 - the extra of one command

    app = apps.get(app_name, chain_id=chain_id, topic=topic) if topic else apps.get(app_name, chain_id=chain_id)
    limits = Limits(memory_mb * MEBIBYTE, pool_mb * MEBIBYTE, publishers=max_publishers)
    linking = PeerSettings(
        addresses_of(peers, "peers") if peers else (),
        address_of(peer_listen, "peer-listen") if peer_listen else None,
        retain_blocks,
    )
    settings = IngestSettings(
        node_id, listen, data, first, limits, cert_file, key_file, ca_file, metrics, chain, linking
    )
    url = stream(to_url, config)
    if cluster is None:
        if key is not None:
            raise ConfigurationError("--key is of no use without --cluster: set both", setting="key")
        running: Callable[[], Coroutine[None, None, None]] = partial(run_ingest, url, app, settings, _say)
    else:
        from cardinal_ingest.cluster.service import member_of  # noqa: PLC0415 - the extra of one command

        running = member_of(url, app, settings, cluster, key, _say)

    async def run() -> None:
        with cancelled_when_told(), suppress(asyncio.CancelledError):
            await running()

    asyncio.run(run())


def _say(port: int) -> None:
    """Tell a program that reads standard output; on a terminal the log says it."""
    if not sys.stdout.isatty():
        click.echo(f"publishers are served on port {port}")
