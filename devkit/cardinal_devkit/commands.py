"""Commands of the developer kit."""

from typing import Final

from cardinal.cli.deferred import Deferred

BROKER: Final = Deferred(
    "A real Kafka broker on this machine, without Docker and without a system Java.",
    "cardinal_devkit.cli.broker:broker",
)
DEMO: Final = Deferred(
    "Node, two producers, Kafka, a consumer and Spark on this machine, until the lake equals the chain.",
    "cardinal_devkit.cli.demo:demo",
)
FAULTS: Final = Deferred(
    "Run a handler on chains with forks while its process is killed, and compare its state with the chain's.",
    "cardinal_devkit.cli.faults:faults",
)
