"""A real geth for tests: built once by Go into the cache folder, driven over its Engine API."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from ethereum_blocks import text
from geth_chains import CHAIN_ID, GethChain, cancun
from signing import Wallet

from cardinal._directories import cache_folder
from cardinal_devkit.kafka import free_port

VERSION = "1.16.9"
BUILD_SECONDS = 280
SECRET = hashlib.sha256(b"geth").digest()
EMPTY_HASH = "0x" + "00" * 32


def geth_binary() -> Path:
    """The binary in the cache folder; skips the test where it is not there and cannot be built."""
    folder = cache_folder() / f"geth-{VERSION}"
    binary = folder / "geth"
    if binary.exists():
        return binary
    if shutil.which("go") is None:
        pytest.skip("Go is not installed: no geth")
    environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-p=1"}
    command = ["go", "install", f"github.com/ethereum/go-ethereum/cmd/geth@v{VERSION}"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"Go did not build geth {VERSION} within {BUILD_SECONDS} s; what it has built is kept")
    if not binary.exists():
        pytest.skip(f"Go could not build geth {VERSION}: {result.stderr.strip()[-200:]}")
    return binary


class Geth:
    """A running node, and who tells it what the chain is."""

    def __init__(
        self, folder: Path, chain: GethChain, ports: Sequence[int], wallet: Wallet, session: aiohttp.ClientSession
    ) -> None:
        http, ws, engine = ports
        self.url, self.ws_url = f"http://127.0.0.1:{http}", f"ws://127.0.0.1:{ws}"
        self.ipc_url = f"ipc://{folder}/geth.ipc"
        self.wallet = wallet
        self._chain = chain
        self._engine = f"http://127.0.0.1:{engine}"
        self._key = bytes.fromhex((folder / "jwt").read_text())
        self._session = session

    async def ask(self, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
        return await self._post(self.url, method, params, {})

    async def block(self, named: str) -> dict[str, Any]:
        """A block with whole transactions, by number or tag; for a moment a busy geth has not even a latest one."""
        async with asyncio.timeout(60):
            while (found := await self.ask("eth_getBlockByNumber", named, *(True,))) is None:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.02)
        return dict(found)

    async def choose(self, head: str, finalized: str = EMPTY_HASH, attributes: object = None) -> Any:  # noqa: ANN401
        """Make a block the head."""
        state = {"headBlockHash": head, "safeBlockHash": finalized, "finalizedBlockHash": finalized}
        told = await self._command("engine_forkchoiceUpdatedV3", state, attributes)
        assert told["payloadStatus"]["status"] == "VALID", told
        return told

    async def build(
        self, transactions: Sequence[bytes], withdrawals: int = 1, *, choose: bool = True
    ) -> dict[str, Any]:
        """A child of the head with these transactions, which becomes the head; returns the calls to repeat."""
        for one in transactions:
            await self._send(text(one))
        head = await self.block("latest")
        number, stamp = int(head["number"], 16) + 1, int(head["timestamp"], 16) + 12
        paid = [
            {
                "index": hex(number * 10 + at),
                "validatorIndex": hex(at),
                "address": "0x" + "77" * 20,
                "amount": hex(at + 1),
            }
            for at in range(withdrawals)
        ]
        async with asyncio.timeout(60):
            for attempt in itertools.count(1):
                attributes = {
                    "timestamp": hex(stamp),
                    "prevRandao": f"0x{attempt:064x}",  # another payload than that of the attempt before
                    "suggestedFeeRecipient": "0x" + "11" * 20,
                    "withdrawals": paid,
                    "parentBeaconBlockRoot": self._chain.root(number),
                }
                payload_id = (await self.choose(head["hash"], attributes=attributes))["payloadId"]
                await asyncio.sleep(
                    0.02 * attempt
                )  # geth fills a payload in the background, and stops when it is requested
                built: dict[str, Any] = await self._command(f"engine_getPayload{self._chain.payloads}", payload_id)
                if len(built["executionPayload"]["transactions"]) == len(transactions):
                    break
        return await self.have(built, choose=choose)

    async def have(self, built: dict[str, Any], *, choose: bool = True) -> dict[str, Any]:
        """Tell the node a block that was built before."""
        payload = built["executionPayload"]
        root = self._chain.root(int(payload["blockNumber"], 16))
        parts = [payload, versioned_hashes(built), root]
        parts += [requests] if (requests := built.get("executionRequests")) is not None else []
        told = await self._command(f"engine_newPayload{self._chain.told}", *parts)
        assert told["status"] == "VALID", told
        if choose:
            await self.choose(payload["blockHash"])
        return built

    async def _send(self, transaction: str) -> None:
        """Into the pool, which learns of another head a moment after the chain has it.

        Till then nonces are too low, and an account with a blob under way may send nothing else.
        """
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.ask("eth_sendRawTransaction", transaction)
                except AssertionError as refused:
                    if not any(reason in str(refused) for reason in ("nonce too low", "address already reserved")):
                        raise
                    await asyncio.sleep(0.02)
                else:
                    return

    async def _command(self, method: str, *params: object) -> Any:  # noqa: ANN401 - JSON
        head = _base64(b'{"alg":"HS256","typ":"JWT"}') + b"." + _base64(json.dumps({"iat": int(time.time())}).encode())
        token = head + b"." + _base64(hmac.new(self._key, head, hashlib.sha256).digest())
        return await self._post(self._engine, method, params, {"Authorization": "Bearer " + token.decode()})

    async def _post(self, url: str, method: str, params: Sequence[object], headers: dict[str, str]) -> Any:  # noqa: ANN401
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        async with self._session.post(url, json=body, headers=headers) as answer:
            reply = await answer.json()
        assert "error" not in reply, (method, reply)
        return reply["result"]


def hash_of(built: dict[str, Any]) -> str:
    return str(built["executionPayload"]["blockHash"])


def versioned_hashes(built: dict[str, Any]) -> list[str]:
    commitments = built["blobsBundle"]["commitments"]
    return ["0x01" + hashlib.sha256(bytes.fromhex(one[2:])).hexdigest()[2:] for one in commitments]


@asynccontextmanager
async def geth(folder: Path, chain: Callable[[Path, Wallet], GethChain] = cancun, *more: str) -> AsyncIterator[Geth]:
    """A node of a fresh chain; ended at the end. ``more`` are options of geth for its first block and for its run."""
    wallet = Wallet(SECRET, CHAIN_ID)
    binary, made = await asyncio.to_thread(_prepared, folder, chain, wallet, more)
    ports = http, ws, engine = free_port(), free_port(), free_port()
    options = [
        *("--networkid", str(CHAIN_ID), "--nodiscover", "--maxpeers", "0", "--config", str(folder / "geth.toml")),
        *("--http", "--http.port", str(http), "--http.api", "eth,debug,net"),
        *("--ws", "--ws.port", str(ws), "--ws.api", "eth", "--ipcpath", str(folder / "geth.ipc")),
        *("--authrpc.port", str(engine), "--authrpc.jwtsecret", str(folder / "jwt")),
        *("--syncmode", "full", "--gcmode", "archive", "--verbosity", "1", "--cache", "128"),
        "--txpool.nolocals",  # else geth sends what was cut off with a branch again within a minute
        *more,
    ]
    process = await asyncio.create_subprocess_exec(
        str(binary), "--datadir", str(folder / "data"), *options, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as session:
            node = Geth(folder, made, ports, wallet, session)
            await _answers(node, process)
            yield node
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _prepared(
    folder: Path, chain: Callable[[Path, Wallet], GethChain], wallet: Wallet, more: Sequence[str]
) -> tuple[Path, GethChain]:
    """The binary, and the chain whose first block the folder holds afterwards."""
    binary = geth_binary()
    made = chain(binary, wallet)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jwt").write_text(os.urandom(32).hex())
    (folder / "genesis.json").write_text(json.dumps(made.genesis))
    (folder / "geth.toml").write_text('[Node.P2P]\nListenAddr = ""\n')  # --port names no address: it is all interfaces
    command = [str(binary), "init", "--datadir", str(folder / "data"), *more, str(folder / "genesis.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return binary, made


async def _answers(node: Geth, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(40):
        while True:
            assert process.returncode is None, "geth ended before it answered"
            try:
                await node.ask("eth_chainId")
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
            else:
                return


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
