"""Feed of a ledger with an HTTP API: `cardinal produce --from ledger://host:port --app blob --to kafka://…`.

The ledger answers `GET /chain` with `{"id": 11}` and `GET /blocks/<number>` with a block of its chain:
`{"number": 5, "hash": "<64 hex digits>", "parent": "…", "values": {"account/ann": "<hex>"}}`; 404 above its head.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any

from cardinal.apps.blob import Blob, payload
from cardinal.config.url import NodeUrl
from cardinal.errors import (
    ConfigurationError,
    NodeAnswerError,
    NodeUnreachableError,
    ReorgTooDeepError,
    WrongChainError,
)
from cardinal.protocols.streams import BlockRef, Payload

POLL_SECONDS = 0.2


def open_feed(url: NodeUrl, *, chain_id: int | None = None) -> LedgerFeed:
    """The feed of `ledger://host:port`; Cardinal calls this by the entry point in `pyproject.toml`."""
    if url.options:
        raise ConfigurationError(f"a ledger has no option {next(iter(url.options))!r}", setting="from")
    return LedgerFeed(url.nodes[0].parts.netloc, chain_id)


class LedgerFeed:
    """Blocks of a ledger, in an order in which they can be published."""

    def __init__(self, host: str, chain_id: int | None) -> None:
        self._host = host
        self._expected = chain_id

    async def chain_id(self) -> int:
        """The ledger's chain id. WrongChainError where it is not the expected one."""
        found = int((await self._get("/chain"))["id"])
        if self._expected not in {None, found}:
            raise WrongChainError(f"{self._host} serves chain {found}, not {self._expected}")
        return found

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        """Yield blocks behind those that are published, then follow the head."""
        chain = list(published)  # what was yielded and is on the ledger's chain, the head last
        first = chain[0].number if chain else start or 0
        while True:
            if until is not None and chain and chain[-1].number >= until and not await self._left(chain[-1]):
                return
            block = await self._block(chain[-1].number + 1 if chain else first)
            if block is not None and (not chain or block.parent == chain[-1].hash):
                chain.append(BlockRef(block.number, block.hash))
                yield payload(block)
            elif chain and await self._left(chain[-1]):
                oldest = chain.pop()  # a reorg: back to the common ancestor
                if published and not chain:
                    raise ReorgTooDeepError(
                        f"{self._host} has none of the published blocks from {oldest.number} on: is it another ledger?",
                        number=oldest.number,
                        block_hash=oldest.hash,
                    )
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        """Nothing is held open."""

    async def _left(self, block: BlockRef) -> bool:
        """Whether the ledger's chain has left this block."""
        current = await self._block(block.number)
        return current is None or current.hash != block.hash

    async def _block(self, number: int) -> Blob | None:
        """The block of this number, None above the head."""
        found = await self._get(f"/blocks/{number}")
        if found is None:
            return None
        values = {key: bytes.fromhex(value) for key, value in found["values"].items()}
        return Blob(found["number"], bytes.fromhex(found["hash"]), bytes.fromhex(found["parent"]), values)

    async def _get(self, path: str) -> Any:
        return await asyncio.to_thread(self._read, path)

    def _read(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://{self._host}{path}", timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise NodeAnswerError(f"{self._host} answers {error.code} to {path}", code=error.code) from error
        except OSError as error:
            raise NodeUnreachableError(f"{self._host} does not answer", address=f"ledger://{self._host}") from error
