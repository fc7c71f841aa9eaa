"""A real anvil node for tests: fetched once by npm into the cache folder, started on a free port."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cardinal._directories import cache_folder

VERSION = "1.7.1"
FETCH_SECONDS = 240
LISTENS = b"Listening on "

FULL = (True,)
"""The parameter that asks for whole transactions."""

LOGGING_CODE = "0x602a60006000a100"
"""Init code that emits one log without data and with the topic 42: PUSH1 42, PUSH1 0, PUSH1 0, LOG1, STOP."""


def anvil_binary() -> Path:
    """The binary in the cache folder; skips the test where it is not there and cannot be fetched."""
    folder = cache_folder() / f"anvil-{VERSION}"
    found = _binary(folder)
    if found is not None:
        return found
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: no anvil node")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent"]
    result = subprocess.run(
        [*command, f"@foundry-rs/anvil@{VERSION}"], capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
    )
    found = _binary(folder)
    if found is None:
        pytest.skip(f"npm could not fetch anvil {VERSION}: {result.stderr.strip()[-200:]}")
    return found


def _binary(folder: Path) -> Path | None:
    return next(iter(folder.glob("node_modules/@foundry-rs/anvil-*/bin/anvil")), None)


class Anvil:
    """A running node."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.ws_url = f"ws://127.0.0.1:{port}"
        self._session = session
        self._accounts: list[str] = []
        self._sent = 0

    async def ask(self, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self._session.post(self.url, json=body) as answer:
            reply = await answer.json()
        assert "error" not in reply, (method, reply)
        return reply["result"]

    async def send(self, count: int) -> None:
        """Transactions of types 0, 1 and 2, transfers and calls that log, into the pool."""
        self._accounts = self._accounts or await self.ask("eth_accounts")
        for _ in range(count):
            sender = self._accounts[self._sent % 5]
            kind = self._sent % 4
            transaction: dict[str, Any] = {"from": sender, "gas": hex(200_000), "value": hex(self._sent)}
            if kind == 3:
                transaction |= {"data": LOGGING_CODE, "value": "0x0", "type": "0x2"}
            else:
                transaction |= {"to": self._accounts[5], "type": hex(kind)}
            if kind in {0, 1}:
                transaction["gasPrice"] = hex(10_000_000_000)
            if kind == 1:
                transaction["accessList"] = [{"address": self._accounts[6], "storageKeys": ["0x" + "01" * 32]}]
            await self.ask("eth_sendTransaction", transaction)
            self._sent += 1

    async def mine(self, blocks: int, transactions: int = 3) -> None:
        """So many blocks with so many transactions each."""
        for _ in range(blocks):
            await self.send(transactions)
            await self.ask("evm_mine")

    async def chain(self) -> list[dict[str, Any]]:
        """The canonical blocks with full transactions, oldest first."""
        head = int(await self.ask("eth_blockNumber"), 16)
        return [await self.ask("eth_getBlockByNumber", hex(number), *FULL) for number in range(head + 1)]


@asynccontextmanager
async def anvil(*options: str) -> AsyncIterator[Anvil]:
    """An anvil node that mines on request; killed at the end."""
    command = [str(anvil_binary()), "--port", "0", "--no-mining", *options]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    drain: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(60):
            while LISTENS not in (line := await process.stdout.readline()):
                assert line, "anvil ended before it listened"
        drain = asyncio.create_task(process.stdout.read())
        async with aiohttp.ClientSession() as session:
            yield Anvil(int(line.rsplit(b":", 1)[1]), session)
    finally:
        if process.returncode is None:
            process.kill()
        if drain is not None:
            await drain
        await process.wait()
