"""Every feed of ours under the contract of :mod:`cardinal_devkit.testing.feeds`, and feeds that break it."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from cardinal.errors import ConfigurationError, IntegrityError, NodeAnswerError, WrongChainError
from cardinal.feeds import BlockFeed
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import BlockRef
from cardinal_devkit.devchain import open_feed as open_dev
from cardinal_devkit.testing.feeds import LAWS, CannotMoveError, FeedLawBrokenError, FeedRoom
from cardinal_ethereum.archive import open_feed as open_archive
from cardinal_ethereum.feed import open_feed as open_node

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from anvil_node import Anvil, anvil
from ethereum_blocks import Built, grow, raw, replay
from feeding import QUICK, serving

Law = Callable[[FeedRoom], Awaitable[None]]
SCRIPT = "dev://?seed=5&blocks=40&chain-id=77"


class Room:
    """What the rooms share: a chain that stands still."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def begin(self) -> None: ...

    async def grow(self, blocks: int) -> None:
        del blocks
        raise CannotMoveError

    async def reorg(self, depth: int, blocks: int) -> None:
        del depth, blocks
        raise CannotMoveError


class ReplayRoom(Room):
    async def begin(self) -> None:
        self._chain: list[Built] = grow(None, 12)
        self._served = replay(self._chain)
        self._node = await self._stack.enter_async_context(serving(self._served))
        self._branch = "b"

    def open(self) -> BlockFeed:
        return open_node(self._node.url, settings=QUICK)

    async def canonical(self) -> list[BlockRef]:
        return [BlockRef(block.number, block.hash) for block in self._chain]

    async def grow(self, blocks: int) -> None:
        await self._become(self._chain, blocks, "a")

    async def reorg(self, depth: int, blocks: int) -> None:
        self._branch += "b"
        await self._become(self._chain[:-depth], blocks, self._branch)

    async def _become(self, trunk: list[Built], blocks: int, branch: str) -> None:
        fresh = grow(trunk[-1], blocks, branch)
        self._chain = [*trunk, *fresh]
        for one in fresh:
            self._served.add(one.block, one.receipts)
        self._served.set_head(self._chain[-1].name, announce="final")


class AnvilRoom(Room):
    async def begin(self) -> None:
        self._node: Anvil = await self._stack.enter_async_context(anvil())
        await self._node.mine(11)

    def open(self) -> BlockFeed:
        return open_node(self._node.ws_url, settings=QUICK)

    async def canonical(self) -> list[BlockRef]:
        return [BlockRef(int(block["number"], 16), raw(block["hash"])) for block in await self._node.chain()]

    async def grow(self, blocks: int) -> None:
        await self._node.mine(blocks)

    async def reorg(self, depth: int, blocks: int) -> None:
        await self._node.ask("anvil_reorg", depth, [])
        await self._node.mine(blocks - depth)


class DevRoom(Room):
    """A script that plays with its reorgs; the chain that it ends with is the one to be had."""

    def open(self) -> BlockFeed:
        return open_dev(SCRIPT)

    async def canonical(self) -> list[BlockRef]:
        payloads = {payload.hash: payload async for payload in self.open().follow()}
        head = max(payloads.values(), key=lambda payload: payload.weight)
        chain = [head]
        while chain[-1].parent in payloads:
            chain.append(payloads[chain[-1].parent])
        return [BlockRef(payload.number, payload.hash) for payload in reversed(chain)]


class ArchiveRoom(Room):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._chain = grow(None, 12)
        record(folder, self._chain)

    def open(self) -> BlockFeed:
        return open_archive(f"archive://{self._folder}?chain-id=1337")

    async def canonical(self) -> list[BlockRef]:
        return [BlockRef(block.number, block.hash) for block in self._chain]


def record(folder: Path, blocks: Sequence[Built]) -> None:
    for one in blocks:
        content: dict[str, Any] = {"block": one.block, "receipts": one.receipts, "uncles": one.uncles}
        (folder / f"{one.number}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))


async def hold(room: Any, law: Law) -> None:  # noqa: ANN401 - any of the rooms
    async with room:
        assert isinstance(room.open(), BlockFeed)
        try:
            await law(room)
        except CannotMoveError:
            pytest.skip("this chain cannot be moved")


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_replayed_node(law: Law) -> None:
    asyncio.run(hold(ReplayRoom(), law))


@pytest.mark.node
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_anvil(law: Law) -> None:
    asyncio.run(hold(AnvilRoom(), law))


STILL = [
    law for law in LAWS if "reorg" not in law.__name__ and "branch" not in law.__name__ and "head" not in law.__name__
]


@pytest.mark.parametrize("law", STILL, ids=lambda law: law.__name__)
def test_development_chain(law: Law) -> None:
    asyncio.run(hold(DevRoom(), law))


@pytest.mark.parametrize("law", STILL, ids=lambda law: law.__name__)
def test_archive(law: Law, tmp_path: Path) -> None:
    asyncio.run(hold(ArchiveRoom(tmp_path), law))


# --- feeds that break it ----------------------------------------------------------------------------------------


class Broken:
    """A feed around another one, with one fault."""

    def __init__(self, feed: BlockFeed, fault: str) -> None:
        self._feed, self._fault = feed, fault

    async def chain_id(self) -> int:
        return await self._feed.chain_id()

    async def close(self) -> None:
        await self._feed.close()

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        if self._fault == "forgets what is published":
            published = ()
        if self._fault == "overlooks another chain" and published and published[0].hash == b"\xee" * 32:
            return
        held: Payload | None = None
        count = 0
        async for payload in self._feed.follow(published, start=start, until=until):
            count += 1
            if self._fault == "leaves one out" and payload.number == 4:
                continue
            if self._fault == "swaps two" and payload.number == 4:
                held = payload
                continue
            yield payload
            if held is not None:
                yield held
                held = None
            if self._fault == "gives one twice" and payload.number == 4:
                yield payload
            if self._fault == "ends early" and count == 9:
                return


FAULTS = ["forgets what is published", "overlooks another chain", "leaves one out", "swaps two", "gives one twice"]


@pytest.mark.parametrize("fault", [*FAULTS, "ends early"])
def test_feed_that_breaks_a_law_is_found(fault: str) -> None:
    class BrokenRoom(ReplayRoom):
        def open(self) -> BlockFeed:
            return Broken(super().open(), fault)

    async def broken() -> None:
        for law in LAWS:
            async with BrokenRoom() as room:
                await law(room)

    with pytest.raises(FeedLawBrokenError):
        asyncio.run(broken())


# --- archives ---------------------------------------------------------------------------------------------------


async def read(folder: Path) -> list[Payload]:
    return [payload async for payload in open_archive(f"archive://{folder}", chain_id=1337).follow()]


def test_archive_that_lies_lacks_or_mixes_blocks_is_refused(tmp_path: Path) -> None:
    chain = grow(None, 6)
    record(tmp_path, chain)
    chain[3].receipts[0]["status"] = "0x0"
    record(tmp_path, chain[3:4])
    with pytest.raises(IntegrityError):
        asyncio.run(read(tmp_path))
    record(tmp_path, grow(chain[2], 1, "b"))
    with pytest.raises(WrongChainError, match="two chains"):
        asyncio.run(read(tmp_path))
    (tmp_path / "3.json.gz").write_bytes(b"torn")
    with pytest.raises(NodeAnswerError, match="cannot be read"):
        asyncio.run(read(tmp_path))
    (tmp_path / "3.json.gz").unlink()
    with pytest.raises(NodeAnswerError, match="lacks block 3"):
        asyncio.run(read(tmp_path))


def test_archive_gives_any_block_by_its_hash(tmp_path: Path) -> None:
    chain = grow(None, 4)
    record(tmp_path, chain)
    feed: Any = open_archive(f"archive://{tmp_path}", chain_id=1337)
    assert asyncio.run(feed.block(chain[2].hash)).hash == chain[2].hash
    assert asyncio.run(feed.block(b"\x01" * 32)) is None


@pytest.mark.parametrize(
    "url",
    ["archive://relative?chain-id=1", "archive:///a", "archive:///a?chain-id=x", "archive:///a?speed=1&chain-id=1"],
)
def test_archive_that_cannot_be_named_so_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_archive(url)
    with pytest.raises(ConfigurationError, match="is of chain 5"):
        open_archive("archive:///a?chain-id=5", chain_id=6)


def test_archive_without_a_block_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    for folder, says in (
        (tmp_path / "none", "none cannot be read: No such file or directory"),
        (tmp_path, "holds no block: name a folder with files NUMBER.json.gz"),
    ):
        with pytest.raises(ConfigurationError, match=says) as caught:
            open_archive(f"archive://{folder}?chain-id=1")
        assert caught.value.setting == "from"
        (tmp_path / "latest.json.gz").touch()
