"""How far a feed goes, which it says for those who wait: archives and development chains (nodes: test_feed_range)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from ethereum_blocks import grow
from feeding import asynchronous, everything, take

from cardinal.errors import ConfigurationError
from cardinal_connectors.archive.feed import ArchiveFeed
from cardinal_connectors.dev import DevFeed, DevSettings


@asynchronous
async def test_target_of_an_archive_is_its_last_file_or_the_block_asked_for(tmp_path: Path) -> None:
    for one in grow(None, 8):
        content = {"block": one.block, "receipts": one.receipts}
        (tmp_path / f"{one.number}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    feed = ArchiveFeed(tmp_path, chain_id=1337)
    assert feed.target is None
    for until, target in ((None, 7), (4, 4), (90, 7)):
        payloads = await everything(feed.follow(until=until))
        assert (feed.target, payloads[-1].number) == (target, target)
    with pytest.raises(ConfigurationError, match="holds blocks 0 to 7, not block 9"):
        await everything(feed.follow(start=9))
    assert feed.target is None, "nothing will come"


@asynchronous
async def test_target_of_a_development_chain_is_its_last_block_or_the_block_asked_for() -> None:
    feed = DevFeed(DevSettings(blocks=12, reorg_rate=0.0))
    assert feed.target is None
    for until, target in ((None, 12), (5, 5), (90, 12)):
        payloads = feed.follow(until=until)
        await take(payloads, 1)
        assert feed.target == target
        rest = await everything(payloads)
        assert rest[-1].number == target
