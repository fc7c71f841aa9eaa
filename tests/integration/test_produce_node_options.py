"""`cardinal produce --state` and `--workers`: as options, in the settings file, in the environment, and refused."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anvil_node import Anvil, anvil
from click.testing import CliRunner
from commands import COMMAND, Processes, command, fresh_chain_id
from ethereum_blocks import grow, keccak, raw, replay
from feeding import asynchronous, looks, serving
from geth_chains import CHAIN_ID, prague_of_many
from geth_node import geth

from cardinal import Consumer
from cardinal.cli.main import cardinal
from serving import until

if TYPE_CHECKING:
    from cardinal.protocols.streams import Payload


def consumed(folder: Path) -> list[Payload]:
    """The blocks of the stream in a folder, with their state."""
    with Consumer(f"file://{folder}", idle_timeout=0.5) as consumer:
        return [block for update in consumer for block in update.added]  # type: ignore[misc] # nothing is missing here


async def balances(node: Anvil, payload: Payload, chain_id: int) -> None:
    """What the block says of its senders is what the node says of them, and nothing less."""
    block = await node.ask("eth_getBlockByNumber", hex(payload.number), *(True,))
    assert raw(block["hash"]) == payload.hash
    for sender in {one["from"] for one in block["transactions"]}:
        account = payload.updates[f"c/{chain_id:x}/a/{keccak(raw(sender)).hex()}/d"]
        balance = int(await node.ask("eth_getBalance", sender, hex(payload.number)), 16)
        assert balance.to_bytes((balance.bit_length() + 7) // 8, "big") in account


async def _published_with_state(folder: Path, how: str) -> None:
    chain_id = fresh_chain_id()
    async with anvil("--chain-id", str(chain_id)) as node:
        await node.mine(5)
        source, options, environment = node.url, [], {}
        if how == "option":
            options = ["--state"]
        elif how == "file":
            (folder / "c.toml").write_text(f"[nodes.own]\nurl = '{node.url}'\noptions = {{ state = true, lag = 1 }}")
            source, options = "own", ["--config", str(folder / "c.toml")]
            await node.mine(1)
        elif how == "environment":
            source, environment = "own", {"CARDINAL_OWN_URL": f"{node.url}#state=yes"}
        arguments = ("produce", "--from", source, "--to", f"file://{folder}/log", "--start", "2", "--stop", "5")
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *arguments, *options, env={**os.environ, **environment}, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 0, said.decode()
        payloads = await asyncio.to_thread(consumed, folder / "log")
        assert [payload.number for payload in payloads] == [2, 3, 4, 5]
        for payload in payloads:
            await balances(node, payload, chain_id)


@pytest.mark.node
@pytest.mark.parametrize("how", ["option", "file", "environment"])
def test_state_is_published_with_the_option(tmp_path: Path, how: str) -> None:
    asyncio.run(_published_with_state(tmp_path, how))


@pytest.mark.slow  # compiles geth
@pytest.mark.node
@asynchronous
async def test_a_stream_with_state_begins_with_the_whole_genesis_state(tmp_path: Path) -> None:
    async with geth(tmp_path / "geth", prague_of_many) as node:
        await node.build([node.wallet.legacy(b"\x22" * 20)])
        await node.build([])
        arguments = ("produce", "--from", node.ipc_url, "--to", f"file://{tmp_path}/log", "--start", "earliest")
        arguments = (*arguments, "--stop", "2", "--state")
        with Processes(tmp_path) as processes:
            status, _, said = await asyncio.to_thread(processes.run, *arguments)
            assert status == 0, said
    payloads = await asyncio.to_thread(consumed, tmp_path / "log")
    assert [payload.number for payload in payloads] == [0, 1, 2]
    alloc = json.loads((tmp_path / "geth" / "genesis.json").read_text())["alloc"]
    assert {path for path in payloads[0].updates if "/a/" in path} == {
        f"c/{CHAIN_ID:x}/a/{keccak(raw(address)).hex()}/d" for address in alloc
    }
    assert all("/s/" in " ".join(payload.updates) for payload in payloads[1:]), "the slots of system contracts"


@pytest.mark.node
@asynchronous
async def test_a_stream_without_state_cannot_be_continued_with_state(tmp_path: Path) -> None:
    async with anvil("--chain-id", str(fresh_chain_id())) as node:
        await node.mine(6)
        arguments = ("produce", "--from", node.url, "--to", f"file://{tmp_path}/log", "--start", "2", "--stop")
        with Processes(tmp_path) as processes:
            assert (await asyncio.to_thread(processes.run, *arguments, "4"))[0] == 0
            status, _, said = await asyncio.to_thread(processes.run, *arguments, "6", "--state")
            assert status == 1
            assert "--allow-coverage-change" in said
            status, _, said = await asyncio.to_thread(
                processes.run, *arguments, "6", "--state", "--allow-coverage-change"
            )
            assert status == 0, said
        payloads = await asyncio.to_thread(consumed, tmp_path / "log")
        assert [any("/a/" in path for path in payload.updates) for payload in payloads] == [False] * 3 + [True] * 2


@pytest.mark.process
@pytest.mark.parametrize("workers", ["0", "2"])
@asynchronous
async def test_a_backfill_is_verified_by_the_configured_number_of_processes(tmp_path: Path, workers: str) -> None:
    blocks = grow(None, 1_100)
    most: list[int] = []
    async with serving(replay(blocks)) as node:
        arguments = ("produce", "--from", node.url, "--to", f"file://{tmp_path}/log?fsync=never")
        arguments = (*arguments, "--start", "earliest", "--stop", "1099")
        async with command(tmp_path / "said", *arguments, "--workers", workers) as process:
            node.before = lambda *_: most.append(_children(process.pid))
            assert await process.wait() == 0, (tmp_path / "said").read_text()
    assert max(most) == int(workers)
    payloads = await asyncio.to_thread(consumed, tmp_path / "log")
    assert [payload.hash for payload in payloads] == [block.hash for block in blocks]


def _children(pid: int) -> int:
    """How many processes of ours it has started."""
    folder = Path(f"/proc/{pid}/task")
    if not folder.exists():
        pytest.skip("this system does not say which processes another one has started")
    return sum(len((one / "children").read_text().split()) for one in folder.iterdir())


@pytest.mark.process
@asynchronous
async def test_only_finalized_blocks_are_published_with_the_option(tmp_path: Path) -> None:
    blocks = grow(None, 20)
    chain = replay(blocks)
    chain.safe, chain.finalized = 9, 4
    async with serving(chain) as node:
        for tag, last in (("safe", 9), ("finalized", 4)):
            arguments = (
                "produce",
                "--from",
                f"{node.url}#poll=0.02",
                "--to",
                f"file://{tmp_path}/{tag}",
                "--start",
                "0",
            )
            async with command(tmp_path / "said", *arguments, "--finality", tag, "--stop", str(last + 1)) as process:
                await looks(node, 40)
                assert process.returncode is None, "one more block is there, and not as final as asked for"
                setattr(chain, tag, last + 1)
                assert await process.wait() == 0, (tmp_path / "said").read_text()
            payloads = await asyncio.to_thread(consumed, tmp_path / tag)
            assert [payload.number for payload in payloads] == list(range(last + 2))


CONFLICTS = [
    (["--from", "http://127.0.0.1:1#state=no", "--state"], "state is 'no' behind the URL's # and another by --state"),
    (["--from", "http://127.0.0.1:1#lag=2", "--lag", "3"], "lag is '2' behind the URL's # and another by --lag"),
    (["--from", "http://127.0.0.1:1", "--state", "--workers", "2"], "leave workers out"),
    (["--from", "http://127.0.0.1:1#workers=1", "--state"], "leave workers out"),
    (["--from", "dev://", "--state"], "no option state"),
    (["--from", "dev://", "--workers", "1"], "no option workers"),
    (["--from", "archive:///x?chain-id=1", "--state"], "no option state"),
    (["--from", "http://127.0.0.1:1", "--workers", "-1"], "-1 is not in the range"),
]


@pytest.mark.parametrize(("options", "says"), CONFLICTS)
def test_conflicting_options_are_refused_in_one_sentence(tmp_path: Path, options: list[str], says: str) -> None:
    ran = CliRunner().invoke(cardinal, ["produce", "--to", f"file://{tmp_path}/log", *options])
    assert ran.exit_code != 0
    assert says in f"{ran.output}{ran.exception}"
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("options", "arguments", "environ"),
    [
        ("{ workers = 2 }", ["--state"], {}),
        ("{ state = true }", ["--workers", "2"], {}),
        ("{ state = true, workers = 2 }", [], {}),
        ("{ workers = 2 }", [], {"CARDINAL_OWN_URL": "http://127.0.0.1:1#state=yes"}),
    ],
)
def test_worker_processes_for_state_are_refused(
    tmp_path: Path, options: str, arguments: list[str], environ: dict[str, str]
) -> None:
    """One sentence that says what to leave out; nothing is connected to, and nothing begun."""
    (tmp_path / "c.toml").write_text(f"[nodes.own]\nurl = 'http://127.0.0.1:1'\noptions = {options}")
    given = ["produce", "--from", "own", "--config", f"{tmp_path}/c.toml", "--to", f"file://{tmp_path}/log"]
    ran = CliRunner().invoke(cardinal, [*given, *arguments], env=environ)
    assert ran.exit_code != 0
    assert str(ran.exception) == (
        "state deltas are made without worker processes, since the node's proofs take longer: leave workers out, "
        "or write 0"
    )
    assert not (tmp_path / "log").exists()


@pytest.mark.process
def test_an_option_equal_to_the_urls_is_accepted(tmp_path: Path) -> None:
    """The node is not there: that is what is found wrong, and waited for."""
    with Processes(tmp_path) as processes:
        node = "http://127.0.0.1:1#attempts=1&state=yes&lag=2"
        process = processes.start(
            "produce", "--from", node, "--to", f"file://{tmp_path}/log", "--state", "--lag", "2", "--workers", "0"
        )
        until(lambda: "no node answers at http://127.0.0.1:1" in (tmp_path / "0.err").read_text())
        process.terminate()
        assert processes.end(process)[0] == 0
