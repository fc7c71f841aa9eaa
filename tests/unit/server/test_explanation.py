"""A block that was replaced is explained by its reorg, whichever order its records are read in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from blocks import Blocks, block, hash_of, line, publish
from cardinal.cli.status import status
from cardinal.server.explanation import explain_block
from cardinal.transports import parse_url
from cardinal_devkit.testing.memory import MemoryBroker


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        yield broker


def summary(broker: MemoryBroker, name: str) -> str:
    return explain_block(parse_url(broker.url), Blocks(), hash_of(name)).summary


@pytest.mark.parametrize("head", [8, 60])
def test_both_blocks_of_a_branch_that_was_replaced_left_the_chain_where_it_began(
    broker: MemoryBroker, head: int
) -> None:
    publish(broker, [*line(1, 4), *line(3, 4, "b", "2a"), *line(5, head)])
    assert {summary(broker, name) for name in ("3b", "4b")} == {"left the chain in the reorg at 3"}
    assert summary(broker, "3a") == summary(broker, f"{head}a") == "is delivered"


def test_a_block_whose_branch_began_below_what_is_retained_left_the_chain_too(broker: MemoryBroker) -> None:
    publish(broker, [*line(5, 20), block("6b", "5b"), block("7b", "6b")])
    assert summary(broker, "7b") == "left the chain in a reorg that began below block 6"


def test_the_hash_of_zeros_is_refused() -> None:
    refused = CliRunner().invoke(status, ["kafka://localhost:1", "--hash", "0x" + "00" * 32])
    assert refused.exit_code == 2
    assert "the hash of zeros is no block" in " ".join(refused.output.split())
