"""What promoters of tests write, in this process and in others."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kafka_streams import DEADLINE, a_block

from cardinal.errors import UnreachableError
from cardinal_ingest.cluster.promotion_writer import Agreed, PromotionWriter
from cardinal_ingest.cluster.topics import ClusterTopics

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.protocols.streams import Payload


def promoter(url: str, app: Application) -> PromotionWriter:
    """A promoter of the cluster `c`."""
    markers = ClusterTopics(url, app.default_topic).ensure_promoted()
    return PromotionWriter(url, app, cluster="c", key=b"eth", markers=markers)


def run_of(at: int, count: int) -> list[tuple[Agreed, Payload]]:
    """The next blocks of an agreed chain, three of them in each batch, of which so many come before."""
    numbers = range(at, at + count)
    return [(Agreed(number // 3, number % 3), a_block(f"{number + 1}a", f"{number}a")) for number in numbers]


async def taken(writer: PromotionWriter) -> int:
    """Take promotion, as soon as the broker answers; the number of blocks that the last marker counts."""
    async with asyncio.timeout(DEADLINE):
        while True:
            with contextlib.suppress(UnreachableError):
                last = await writer.take()
                assert isinstance(last, bytes)
                return int(last)


async def write(writer: PromotionWriter, at: int, count: int = 1) -> None:
    """Write the next blocks; the marker is the number of blocks."""
    await writer.write(run_of(at, count), str(at + count).encode())
