"""Recorded blocks from a folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError
from cardinal_devkit.testing.replay import ReplayChain, read_recorded
from recorded_blocks import geth


def test_a_folder_of_recorded_blocks_is_a_chain_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No recorded blocks"):
        read_recorded(tmp_path)
    blocks = geth()[:12]
    for one in blocks:
        content = {"block": one.block, "receipts": one.receipts, "values": {}}
        for name in (f"{one.number}.json.gz", f"{one.number}.messages.json.gz"):
            (tmp_path / name).write_bytes(gzip.compress(json.dumps(content).encode()))
    found = read_recorded(tmp_path)
    assert found == [(one.block, one.receipts) for one in blocks]
    chain = ReplayChain(found, chain_id=blocks[0].chain.chain_id)
    assert chain.head() == 11
    assert [chain.hash_at(at) for at in range(12)] == [one.block["hash"] for one in blocks]
