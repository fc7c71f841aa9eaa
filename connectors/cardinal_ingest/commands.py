"""Commands of ingest nodes."""

from typing import Final

from cardinal.cli.deferred import Deferred

CLUSTER: Final = Deferred(
    "Ingest nodes that agree on every block: keys, the first epoch, the state, and changes of the members.",
    "cardinal_ingest.cli.cluster:cluster",
)
INGEST: Final = Deferred(
    "Accept blocks from publishers, acknowledge them when they are verified and durable, and publish them.",
    "cardinal_ingest.cli.ingest:ingest",
)
