"""The public surface as users write against it: checked, never run. A wrong line names the error that it must give."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime
from typing import assert_type

import cardinal
import cardinal_ethereum as evm
from cardinal import apps
from cardinal_devkit import ChainGenerator, MemoryBroker


def reads(url: str) -> None:
    with cardinal.Consumer(url, "evm", start="latest", chain_id=1, until="end", on_event=reports) as consumer:
        for update in consumer:
            assert_type(update, cardinal.ChainUpdate)
            assert_type(update.change, cardinal.Change)
            assert_type(update.removed, tuple[cardinal.AnyPayload, ...])
            for block in update.added:
                if isinstance(block, cardinal.MissingPayload):
                    assert_type(block.ref, cardinal.BlockRef)
                else:
                    assert_type(block, cardinal.Payload)
                    applies(block)
            assert_type(update.finality, cardinal.Finality | None)
            assert_type(update.cursor, cardinal.Cursor)
        assert_type(consumer.head, cardinal.BlockRef | None)
        assert_type((consumer.connected, consumer.ready, consumer.lag), tuple[bool, bool, int])
        assert_type(consumer.explain("0x" + "11" * 32), cardinal.Explanation)


async def reads_asynchronously(url: str, cursor: cardinal.Cursor) -> None:
    async with cardinal.Consumer(url, start=cursor, options=cardinal.ConsumerOptions(tracked="logs")) as consumer:
        async for update in consumer:
            assert_type(update, cardinal.ChainUpdate)


def starts(url: str) -> None:
    for start in ("earliest", 5, datetime(2026, 1, 1, tzinfo=UTC), "c1:AAAA", None):
        cardinal.Consumer(url, start=start).close()


def reports(event: cardinal.Event | cardinal.HealingFailed) -> None:
    match event:
        case cardinal.Incomplete():
            assert_type(event.explanation, cardinal.Explanation)
        case cardinal.Divergence():
            assert_type(event.kept, bytes)
        case _:
            pass


def applies(payload: cardinal.Payload) -> None:
    block = evm.decode(payload)
    for log in block.logs:
        transaction = block.transaction_of(log)
        assert_type(None if transaction is None else transaction.hash, bytes | None)


def publishes(url: str, payload: cardinal.Payload) -> None:
    app = apps.get("evm", chain_id=1)
    with cardinal.Producer(url, app, producer_id="a", redundancy="standby") as producer:
        assert_type(producer.add(payload), Future[None])


def tests_a_handler() -> None:
    with MemoryBroker("name") as broker:
        assert_type(broker.url, str)
    ChainGenerator(seed=1)


def ends_with_a_block(url: str) -> None:
    cardinal.Consumer(url, until=20)


def is_wrong(url: str, payload: cardinal.AnyPayload) -> None:
    cardinal.Consumer(url, on_incomplete="wait")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cardinal.Consumer(url, until="never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cardinal.Consumer(url, start=3.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cardinal.Consumer(url, traked="logs")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    applies(payload)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    evm.frames([], integers="float")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cardinal.Producer(url, apps.get("evm"), producer_id="a", redundancy="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
