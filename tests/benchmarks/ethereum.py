"""Cost of a feed: a node's responses to messages, compared with other tools.

    python tests/benchmarks/ethereum.py              # 2,000 blocks of 20 transactions
    python tests/benchmarks/ethereum.py --quick      # 200 blocks
    python tests/benchmarks/ethereum.py --install    # fetch ethereum-etl and cryo into environments of their own

Every client reads the same blocks with their receipts from the same replay server, in a process of its own; measured is
that process's CPU time (and its children's), since wall time is shared with whatever else runs. What it takes for a
single block is its start, and is taken off where blocks are compared. The
rounds are interleaved; shown is the median. ``raw`` is the limit: aiohttp, JSON parsed, nothing looked at. Ours are
verified whole and split into messages. ethereum-etl (2.4.2) writes CSV, cryo (0.3.2) Parquet; neither verifies.

Before the table: one such block, and one mainnet block of the fixtures, stage by stage, the least of many rounds; and
what an ingest node's worker takes to verify each mainnet block from its body.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from ethereum_blocks import Built, build, replay

from cardinal import apps
from cardinal.protocols.streams import split
from cardinal_devkit.testing.node import JsonRpcNode
from cardinal_ethereum.chains import chain_of
from cardinal_ethereum.checks.integrity import verify
from cardinal_ethereum.feed import open_feed
from cardinal_ethereum.feed.settings import FeedSettings
from cardinal_ethereum.from_rpc.payload import payload_of
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcReceipt
from cardinal_ingest.body import frame, items_of
from cardinal_ingest.node.blocks import blocks_of
from cardinal_ingest.protocols.publish import BlockId
from recorded_blocks import mainnet

TRANSACTIONS: Final = 20
RAW_BATCH: Final = 10
ETL_PACKAGES: Final = (
    *("ethereum-etl==2.4.2", "parsimonious==0.10.0", "ethereum-dasm==0.1.4", "evmdasm"),
    *(
        "web3==5.31.4",
        "eth-utils==1.10.0",
        "eth-abi==2.2.0",
        "eth-account==0.5.9",
        "eth-hash==0.3.3",
        "eth-keyfile==0.5.1",
    ),
    *("eth-keys==0.3.4", "eth-rlp==0.2.1", "eth-typing==2.3.0", "hexbytes==0.3.1", "rlp==2.0.1", "click==8.1.7"),
    *("python-dateutil<3", "urllib3<2", "regex", "six", "base58", "tabulate", "colorama", "requests", "aiohttp"),
    *("websockets==9.1", "protobuf==3.19.5", "lru-dict", "jsonschema", "ipfshttpclient==0.8.0a2", "cytoolz==0.12.3"),
    *("toolz", "pycryptodome", "multiaddr==0.2.0", "trio", "trio-typing", "netaddr", "varint", "py-cid==0.5.0"),
    *("bitarray<3", "lazy-importer", "py-multibase", "py-multicodec<1", "py-multihash", "morphys", "setuptools<81"),
)
"""For Python 3.11, without resolving: the release's own bounds name a parsimonious that no longer imports."""
ETL_NEEDS: Final = ("requests", "urllib3<2", "aiohttp", "trio", "jsonschema", "idna")
"""Of those, what has to come with all that it needs."""


# --- one block --------------------------------------------------------------------------------------------------


def stages(rounds: int) -> None:
    """Parse, verify, encode and split a block, in milliseconds of CPU time."""
    built: list[Built] = []
    for _ in range(50):
        built.append(build(built[-1] if built else None, transactions=TRANSACTIONS, difficulty=1))
    one_block("block", 1337, [(_json(one.block), _json(one.receipts)) for one in built], rounds)
    recorded = [(_json(one.block), _json(one.receipts)) for one in mainnet()]
    if recorded:
        one_block("mainnet block", 1, recorded, rounds, goal="; goal 8")
        published(recorded, rounds)
    else:
        _say("mainnet block: skipped, there are no fixtures beside the project")


def one_block(name: str, chain_id: int, raws: list[tuple[bytes, bytes]], rounds: int, goal: str = "") -> None:
    """One line: the least of many rounds, on average over these blocks."""
    chain, app = chain_of(chain_id), apps.get("evm", chain_id=chain_id)
    transactions = sum(len(msgspec.json.decode(block)["transactions"]) for block, _ in raws) / len(raws)
    best: dict[str, float] = {}
    for _ in range(rounds):
        parsed = _timed(best, "parse", lambda: [_parsed(*texts) for texts in raws])
        shown: Any = parsed
        written = _timed(best, "verify", lambda pairs=shown: [verify(*pair, chain=chain) for pair in pairs])
        payloads = _timed(
            best, "encode", lambda all_=written: [payload_of(one, chain_id=chain_id, chain=chain) for one in all_]
        )
        _timed(best, "split", lambda all_=payloads: [split(one, app.topics, app.default_topic) for one in all_])
    each = {name: seconds / len(raws) * 1000 for name, seconds in best.items()}
    parts = ", ".join(f"{name} {milliseconds:.3f}" for name, milliseconds in each.items())
    _say(f"{name} of {transactions:.0f} transactions: {sum(each.values()):.3f} ms CPU ({parts}){goal}")


def published(raws: list[tuple[bytes, bytes]], rounds: int) -> None:
    """One line: from the body of each mainnet block to the verdict, the least of many rounds."""
    chain, blocks = chain_of(1), blocks_of(apps.get("evm", chain_id=1))
    best: dict[str, float] = {}
    for texts in raws:
        shown: Any = _parsed(*texts)
        payload = payload_of(verify(*shown, chain=chain), chain_id=1, chain=chain)
        block, parent = BlockId(payload.number, payload.hash), BlockId(payload.number - 1, payload.parent)
        body = frame(items_of(payload, chain_id=1))
        for _ in range(rounds):
            _timed(best, block.hash.hex(), lambda of=(block, parent, body): [blocks.verify(*of)])
    costs = [seconds * 1000 for seconds in best.values()]
    _say(f"published mainnet block, verified: median {statistics.median(costs):.1f} ms, worst {max(costs):.1f} ms CPU")


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _parsed(block: bytes, receipts: bytes) -> tuple[RpcBlock, list[RpcReceipt]]:
    return msgspec.json.decode(block, type=RpcBlock), msgspec.json.decode(receipts, type=list[RpcReceipt])


def _timed(best: dict[str, float], name: str, work: Callable[[], list[Any]]) -> list[Any]:
    began = time.process_time()
    result = work()
    best[name] = min(best.get(name, 1e9), time.process_time() - began)
    return result


# --- the server -------------------------------------------------------------------------------------------------


async def serve(blocks: int) -> None:
    """Serve a chain until the standard input ends; the address is the first line of the output."""
    chain: list[Built] = []
    for _ in range(blocks):
        chain.append(build(chain[-1] if chain else None, transactions=TRANSACTIONS, difficulty=1))
    node = JsonRpcNode(replay(chain, chain_id=1337))
    logs = [[log for receipt in block.receipts for log in receipt["logs"]] for block in chain]
    written = [[msgspec.Raw(msgspec.json.encode(log)) for log in of_block] for of_block in logs]

    def get_logs(params: list[object]) -> object:
        asked: Any = params[0]
        first, last = int(asked["fromBlock"], 16), int(asked["toBlock"], 16)
        return [log for of_block in written[first : last + 1] for log in of_block]

    node._handlers["eth_getLogs"] = get_logs
    async with node:
        sys.stdout.write(f"{node.url}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


# --- the clients ------------------------------------------------------------------------------------------------


async def raw(url: str, blocks: int) -> None:
    """Ask for everything, parse it, and look at nothing."""
    async with aiohttp.ClientSession() as session:
        for first in range(0, blocks, RAW_BATCH):
            numbers = [hex(number) for number in range(first, min(first + RAW_BATCH, blocks))]
            calls = [("eth_getBlockByNumber", [number, True]) for number in numbers]
            calls += [("eth_getBlockReceipts", [number]) for number in numbers]
            body = [
                {"jsonrpc": "2.0", "id": at, "method": method, "params": params}
                for at, (method, params) in enumerate(calls)
            ]
            async with session.post(url, data=msgspec.json.encode(body)) as answer:
                msgspec.json.decode(await answer.read())


async def ours(url: str, blocks: int, workers: int) -> None:
    """The feed, and the messages of every payload; processes beside it are started at once."""
    feed = open_feed(url, settings=FeedSettings(workers=workers, worker_blocks=0, worker_bytes=0))
    app = apps.get("evm", chain_id=await feed.chain_id())
    messages = 0
    async for payload in feed.follow(until=blocks - 1):
        messages += len(split(payload, app.topics, app.default_topic))
    await feed.close()
    sys.stdout.write(f"{messages} messages\n")


def clients(url: str, blocks: int, installed: dict[str, Path | str], folder: Path) -> dict[str, list[list[str]]]:
    """The commands of every client that is there."""
    own = [sys.executable, __file__]
    made = {
        "raw": [[*own, "--client", "raw", "--url", url, "--blocks", str(blocks)]],
        "cardinal, 1 process": [[*own, "--client", "ours", "--url", url, "--blocks", str(blocks)]],
        "cardinal, 1 worker": [[*own, "--client", "ours", "--url", url, "--blocks", str(blocks), "--workers", "1"]],
        "cardinal, 2 workers": [[*own, "--client", "ours", "--url", url, "--blocks", str(blocks), "--workers", "2"]],
    }
    if isinstance(etl := installed["ethereum-etl"], Path):
        tool, span = str(etl), ["-s", "0", "-e", str(blocks - 1), "-p", url, "-w", "1", "-b", "50"]
        files = {name: str(folder / f"{name}.csv") for name in ("blocks", "transactions", "hashes", "receipts", "logs")}
        export = ["--blocks-output", files["blocks"], "--transactions-output", files["transactions"]]
        outputs = ["--receipts-output", files["receipts"], "--logs-output", files["logs"]]
        made["ethereum-etl"] = [
            [tool, "export_blocks_and_transactions", *span, *export],
            [tool, "extract_csv_column", "-i", files["transactions"], "-o", files["hashes"], "-c", "hash"],
            [tool, "export_receipts_and_logs", "-t", files["hashes"], "-p", url, "-w", "1", "-b", "50", *outputs],
        ]
    if isinstance(cryo := installed["cryo"], Path):
        settings = {"blocks": [f"0:{blocks}"], "rpc": url, "output_dir": str(folder / "cryo"), "overwrite": True}
        code = f"import cryo; cryo.freeze(['blocks', 'transactions', 'logs'], **{settings!r})"
        made["cryo"] = [[str(cryo), "-c", code]]
    return made


def measured(commands: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Seconds of CPU and of wall time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command[:3]}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - began


def install(name: str, folder: Path, resolved: Sequence[str], bare: Sequence[str], *, binary: str) -> Path | str:
    """A program in an environment of its own, or why it is not there: packages with what they need, then bare ones."""
    program = folder / name / "bin" / binary
    if not program.exists():
        venv.create(folder / name, with_pip=True)
        command = [str(folder / name / "bin" / "pip"), "install", "--quiet"]
        for packages in (resolved, ("--no-deps", *bare)) if bare else (resolved,):
            done = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
            if done.returncode:
                return f"it cannot be installed: {done.stderr.strip().splitlines()[-1]}"
    return program


def compare(blocks: int, rounds: int, installed: dict[str, Path | str]) -> None:
    """The table."""
    command = [sys.executable, __file__, "--serve", "--blocks", str(blocks)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        if server.stdout is None or server.stdin is None:
            raise SystemExit("the server has no pipes")
        url = server.stdout.readline().strip()
        made = clients(url, blocks, installed, Path(folder))
        single = clients(url, 1, installed, Path(folder))
        starts: dict[str, list[float]] = {name: [] for name in made}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
        for _ in range(rounds):
            for name, commands in made.items():
                starts[name].append(measured(single[name])[0])
                found[name].append(measured(commands))
        server.stdin.close()
    start = {name: statistics.median(of) for name, of in starts.items()}
    cpu = {name: statistics.median(one for one, _ in of) for name, of in found.items()}
    wall = {name: statistics.median(one for _, one in of) for name, of in found.items()}
    each = {name: (cpu[name] - start[name]) / blocks * 1000 for name in made}
    _say(f"{'client':22}{'CPU s':>8}{'start':>8}{'ms/block':>10}{'raw ÷':>8}{'wall s':>9}{'blocks/s':>10}")
    for name in made:
        costs = f"{start[name]:8.2f}{each[name]:10.3f}{each['raw'] / each[name]:8.2f}"
        _say(f"{name:22}{cpu[name]:8.2f}{costs}{wall[name]:9.2f}{blocks / wall[name]:10.0f}")
    for name, why in installed.items():
        if isinstance(why, str):
            _say(f"{name}: skipped, {why}")
        else:
            _say(f"cardinal, 1 process = {each[name] / each['cardinal, 1 process']:.1f} × {name}, by CPU time a block")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true")
    options.add_argument("--install", action="store_true")
    options.add_argument("--tools", type=Path, default=Path(tempfile.gettempdir()) / "cardinal-benchmark-tools")
    options.add_argument("--blocks", type=int)
    options.add_argument("--rounds", type=int)
    options.add_argument("--serve", action="store_true")
    options.add_argument("--client", choices=["raw", "ours"])
    options.add_argument("--workers", type=int, default=0)
    options.add_argument("--url", default="")
    given = options.parse_args()
    blocks = given.blocks or (200 if given.quick else 2_000)
    if given.serve:
        asyncio.run(serve(blocks))
    elif given.client:
        asyncio.run(raw(given.url, blocks) if given.client == "raw" else ours(given.url, blocks, given.workers))
    else:
        stages(10 if given.quick else 40)
        tools: dict[str, Path | str] = {}
        wanted = {"ethereum-etl": (ETL_NEEDS, ETL_PACKAGES, "ethereumetl"), "cryo": (("cryo==0.3.2",), (), "python")}
        for name, (resolved, bare, binary) in wanted.items():
            there = (given.tools / name / "bin" / binary).exists()
            tools[name] = (
                install(name, given.tools, resolved, bare, binary=binary)
                if given.install or there
                else "run with --install"
            )
        compare(blocks, given.rounds or (1 if given.quick else 3), tools)


if __name__ == "__main__":
    main()
