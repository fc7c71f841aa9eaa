"""The laws of a feed, held by the one in `ledger_feed.py`, against a ledger that grows and reorganises."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import pytest
from ledger_feed import open_feed

from cardinal.config.url import parse_node_url
from cardinal.errors import ConfigurationError, WrongChainError
from cardinal.feeds import BlockFeed
from cardinal.protocols.streams import BlockRef
from cardinal.testing.feeds import LAWS, FeedRoom


class Ledger:
    """A ledger of ten blocks behind its HTTP API."""

    def __init__(self) -> None:
        self.chain: list[dict[str, Any]] = []
        self._branch = 0
        ledger = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, _, number = self.path.rpartition("/")
                found: dict[str, Any] | None = {"id": 7} if number == "chain" else ledger.block(int(number))
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"ledger://127.0.0.1:{self._server.server_port}"
        self.add(10)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def block(self, number: int) -> dict[str, Any] | None:
        """The block of this number."""
        chain = self.chain
        return chain[number] if number < len(chain) else None

    def add(self, blocks: int, depth: int = 0) -> None:
        """Replace the `depth` highest blocks by others."""
        chain = self.chain[: len(self.chain) - depth]
        self._branch += 1
        for number in range(len(chain), len(chain) + blocks):
            name = sha256(f"{number} {self._branch}".encode()).hexdigest()
            parent = chain[-1]["hash"] if chain else "00" * 32
            values = {"account/ann": number.to_bytes(4).hex()}
            chain.append({"number": number, "hash": name, "parent": parent, "values": values})
        self.chain = chain


class Room:
    """What the laws ask for: feeds of a chain, and controls that move it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def open(self) -> BlockFeed:
        return open_feed(parse_node_url(self._ledger.url))

    async def canonical(self) -> list[BlockRef]:
        return [BlockRef(block["number"], bytes.fromhex(block["hash"])) for block in self._ledger.chain]

    async def grow(self, blocks: int) -> None:
        self._ledger.add(blocks)

    async def reorg(self, depth: int, blocks: int) -> None:
        self._ledger.add(blocks, depth)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_feed_holds(law: Callable[[FeedRoom], Awaitable[None]]) -> None:
    with Ledger() as ledger:
        asyncio.run(law(Room(ledger)))


def test_another_chain_and_an_unknown_option_are_refused() -> None:
    with Ledger() as ledger:
        with pytest.raises(WrongChainError, match="chain 7, not 8"):
            asyncio.run(open_feed(parse_node_url(ledger.url), chain_id=8).chain_id())
        with pytest.raises(ConfigurationError, match="no option 'lag'"):
            open_feed(parse_node_url(f"{ledger.url}#lag=2"))
