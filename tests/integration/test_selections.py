"""Logs that `cardinal tail` selects by address and topic: those of the blocks that join and of those that leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Processes, fresh_chain_id

from cardinal import Consumer, Payload, apps
from cardinal_ethereum import decode

pytestmark = pytest.mark.process

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


def test_the_selected_logs_are_those_of_the_updates(tmp_path: Path) -> None:
    chain_id = fresh_chain_id()
    url = f"file://{tmp_path / 'stream'}"
    feed = f"dev://?seed=7&reorg-rate=0.3&blocks=30&chain-id={chain_id}"
    options = ("--start", "0", "--exit-at-end")
    with Processes(tmp_path) as commands:
        produce = ("produce", "--producer-id", "one", "--from", feed, "--to", url, "--start", "earliest")
        assert commands.run(*produce)[0] == 0
        expected = [log for log in logs(url, chain_id) if log[3] == TRANSFER]
        assert {sign for sign, *_ in expected} == {"+", "-"}
        address = expected[0][2]
        status, out, said = commands.run("tail", url, *options, "--format", "json", "--topic0", TRANSFER)
        assert status == 0, said
        assert printed(out) == expected
        both = ("--topic0", TRANSFER, "--topic0", f"0x{bytes(32).hex()}", "--address", address)
        _, out, _ = commands.run("tail", url, *options, "--format", "json", *both)
        assert printed(out) == [log for log in expected if log[2] == address]
        _, out, _ = commands.run("tail", url, *options, *both, "-n", "1")
        (line,) = out.splitlines()[-1:]
        assert line.split()[0] == "+"
        assert address in line


def logs(url: str, chain_id: int) -> list[tuple[str, int, str, str]]:
    """Sign, block, address and first topic of every log of the stream."""
    found = []
    with Consumer(url, apps.get("evm", chain_id=chain_id), start=0, until="end") as consumer:
        for update in consumer:
            for sign, blocks in (("-", update.removed), ("+", update.added)):
                for block in blocks:
                    assert isinstance(block, Payload)
                    found += [
                        (sign, block.number, f"0x{log.address.hex()}", f"0x{log.topics[0].hex()}" if log.topics else "")
                        for log in decode(block).logs
                    ]
    return found


def printed(out: str) -> list[tuple[str, int, str, str]]:
    """The same of printed lines."""
    return [
        (sign, block["number"], log["address"], log["topics"][0])
        for line in map(json.loads, out.splitlines())
        for sign, side in (("-", "removed"), ("+", "added"))
        for block in line[side]
        for log in block["logs"]
    ]
