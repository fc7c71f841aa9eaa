"""Blocks as an ingest node sees them: what is no block of the stream's application is refused before it is kept."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cardinal.apps import get
from cardinal.errors import ApplicationError, ConfigurationError
from cardinal.protocols.streams import Payload
from cardinal_ingest.body import frame, items_of
from cardinal_ingest.node.blocks import Blocks, blocks_of
from cardinal_ingest.protocols.publish import BlockId

PAYLOAD = Payload(5, b"h" * 32, b"p" * 32, 5, {"c/1/b/x": b"1"})
BLOCK, PARENT = BlockId(5, b"h" * 32), BlockId(4, b"p" * 32)
BLOB, EVM, ITEMS = (blocks_of(get(name, chain_id=1)) for name in ("blob", "evm", "items"))


def body(payload: Payload = PAYLOAD, chain_id: int = 1) -> bytes:
    return frame(items_of(payload, chain_id=chain_id))


def refused(blocks: Blocks, data: bytes, why: str, block: BlockId = BLOCK, parent: BlockId = PARENT) -> None:
    with pytest.raises(ApplicationError, match=why):
        blocks.verify(block, parent, data)


def test_a_payload_is_promoted_as_it_was_published() -> None:
    BLOB.verify(BLOCK, PARENT, body())
    assert BLOB.payload(5, body()) == PAYLOAD


@pytest.mark.parametrize("name", ["blob", "items"])
def test_a_block_that_no_topic_accepts_is_refused_before_it_is_stored(name: str) -> None:
    payload = Payload(5, b"h" * 32, b"p" * 32, 5, {"c/1/b/x": bytes(9_000)})
    data = body(payload) if name == "blob" else frame([bytes(9_000)])
    app = get(name, chain_id=1)
    blocks_of(app, largest=20_000).verify(BLOCK, PARENT, data)
    refused(blocks_of(app, largest=10_000), data, "the topics accept 10,000")


def test_a_body_of_another_block_chain_or_application_is_refused() -> None:
    refused(BLOB, body(), "header is of another", BlockId(6, b"h" * 32))
    refused(BLOB, body(), "header is of another", BlockId(5, b"q" * 32))
    refused(BLOB, body(), "header is of another", parent=BlockId(4, b"q" * 32))
    refused(BLOB, body(chain_id=2), "of chain 2, not of 1")
    refused(BLOB, b"", "no body")
    refused(EVM, body(), "lacks its header")


def test_a_payload_that_cannot_be_split_is_refused_before_it_is_acknowledged() -> None:
    contradiction = Payload(5, b"h" * 32, b"p" * 32, 5, {"x": b"1"}, frozenset({"x"}))
    refused(BLOB, body(contradiction), "does not fit the topics: 'x' is both updated and deleted")


def test_a_file_describes_the_chain_of_an_evm_stream_and_of_no_other(tmp_path: Path) -> None:
    file = tmp_path / "chain.toml"
    file.write_text('chain_id = 5\nname = "mine"\nunchecked = ["gas"]\n')
    refused(blocks_of(get("evm", chain_id=5), file), body(chain_id=5), "lacks its header or its difficulty on chain 5")
    with pytest.raises(ConfigurationError, match="describes chain 5, and the stream is of chain 1"):
        blocks_of(get("evm", chain_id=1), file)
    for name in ("blob", "items"):
        with pytest.raises(ConfigurationError, match="takes no file of a chain"):
            blocks_of(get(name, chain_id=5), file)


def test_items_are_taken_as_they_are() -> None:
    ITEMS.verify(BlockId(5), BlockId(4), frame([b"\x25abcd"]))


@pytest.mark.parametrize("blocks", [BLOB, EVM], ids=["blob", "evm"])
def test_blocks_go_to_worker_processes(blocks: Blocks) -> None:
    copy: Blocks = pickle.loads(pickle.dumps(blocks))  # noqa: S301 - our own
    refused(copy, body(chain_id=2), "of chain 2")
