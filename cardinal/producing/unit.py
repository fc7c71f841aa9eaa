"""What moves through a producer as one: a block, or a reorg, which goes by the hash of its last block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cardinal.transports.posting import new_future

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Routed
    from cardinal.transports.posting import Done

Step: TypeAlias = "Callable[[Unit, Done], None]"
"""Sends something of a unit, and has it told when that is acknowledged. Raises CardinalError where nothing was sent."""


class ProducerStats(NamedTuple):
    """What a producer has done: sealed blocks, their messages and bytes; blocks under way; blocks left to others."""

    blocks: int
    messages: int
    bytes: int
    under_way: int
    skipped: int = 0


def ended() -> Future[None]:
    """A future that has ended."""
    future = new_future()
    future.set_result(None)
    return future


def nothing(unit: Unit, done: Done) -> None:
    """The step of a unit that has nothing to send yet."""
    del unit
    done(None)


@dataclass(slots=True, eq=False)
class Unit:
    """What is sealed as one.

    Attributes:
        hash: 32 bytes; of a reorg its last block's.
        parent: 32 bytes; of a reorg the ancestor's.
        batch: the block's Batch; None for a reorg.
        content: the other messages, until they are sent.
        start: sends what need not wait.
        finish: sends the rest, when the queue says so.
        blocks, messages, size: what it counts for; size in bytes.
        announced: ids of sub batches whose content is still to be acknowledged, also before the unit is begun.
        future: whom to tell.

    """

    hash: bytes
    parent: bytes
    batch: Routed | None
    content: list[Routed]
    start: Step
    finish: Step
    blocks: int
    messages: int
    size: int
    announced: set[bytes] = field(default_factory=set)
    future: Future[None] = field(default_factory=new_future)
    failed: bool = False
