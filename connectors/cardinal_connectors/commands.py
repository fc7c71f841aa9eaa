"""Commands of the parts of Cardinal that are not its core."""

from typing import Final

from cardinal.cli.deferred import Deferred

BROKER: Final = Deferred(
    "A real Kafka broker on this machine, without Docker and without a system Java.", "cardinal_devkit.cli.broker:broker"
)
CLUSTER: Final = Deferred(
    "Ingest nodes that agree on every block: keys, the first epoch, the state, and changes of the members.",
    "cardinal_ingest.cli.cluster:cluster",
)
DEMO: Final = Deferred(
    "Node, two producers, Kafka, a consumer and Spark on this machine, until the lake equals the chain.",
    "cardinal_devkit.cli.demo:demo",
)
FAULTS: Final = Deferred(
    "Run a handler on chains with forks while its process is killed, and compare its state with the chain's.",
    "cardinal_devkit.cli.faults:faults",
)
INGEST: Final = Deferred(
    "Accept blocks from publishers, acknowledge them when they are verified and durable, and publish them.",
    "cardinal_ingest.cli.ingest:ingest",
)
SERVE: Final = Deferred("Send a stream to many clients over websockets; it is read once.", "cardinal_relay.cli:serve")
