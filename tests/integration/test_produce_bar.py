"""The bar of a backfill: on a terminal only, true, and gone without a trace where it does not belong."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest
from commands import command
from ethereum_blocks import Built, grow, replay
from feeding import asynchronous, serving
from terminals import COLUMNS, cursor_is_shown, on_terminal, screen

from cardinal.errors import NodeAnswerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.process

BLOCKS = 240
DRAWN = r"block (\d+) of (\d+) .*? (\?|[\d.]+) blocks/s (-:--:--|\d:\d\d:\d\d) to go"
LOGGED = r"\S+Z (?:info|warning) +"
PACE = ("batch=24", "connections=1", "workers=0")


@pytest.fixture(scope="module")
def blocks() -> list[Built]:
    return grow(None, BLOCKS + 1, difficulty=1000)


def produce(url: str, folder: Path, *options: str) -> tuple[str, ...]:
    node = f"{url}#{'&'.join(PACE)}"
    return ("produce", "--from", node, "--to", f"file://{folder}/log", "--start", "earliest", *options)


@asynchronous
async def test_the_bar_of_a_backfill_ends_full(blocks: list[Built], tmp_path: Path) -> None:
    async with serving(replay(blocks)) as node:
        node.delay = 0.15
        async with on_terminal(*produce(node.url, tmp_path, "--stop", str(BLOCKS))) as terminal:
            assert await terminal.end() == 0
            assert terminal.process.stdout is not None
            assert await terminal.process.stdout.read() == b""
    seen = [found.groups() for found in re.finditer(DRAWN, re.sub(r"\x1b\[[\d;]*m", "", terminal.written))]
    numbers = [int(number) for number, _, _, _ in seen]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 3, "it moves"
    assert {target for _, target, _, _ in seen} == {str(BLOCKS)}
    assert any(float(rate) > 0 for _, _, rate, _ in seen if rate != "?")
    assert any(left not in ("-:--:--", "0:00:00") for _, _, _, left in seen), "the time that is left"
    shown = screen(terminal.written)
    assert re.fullmatch(rf"{LOGGED}the stream \S+ begins with the feed's first block", shown[0]), shown
    assert re.fullmatch(DRAWN, shown[1]), shown
    assert shown[1].startswith(f"block {BLOCKS} of {BLOCKS} ")
    assert len(shown[1]) <= COLUMNS
    assert re.match(rf"{LOGGED}{BLOCKS + 1} blocks, \d+ messages in ", shown[2]), shown
    assert not any(shown[3:])
    assert cursor_is_shown(terminal.written)


@asynchronous
async def test_log_lines_are_printed_whole_above_the_bar(blocks: list[Built], tmp_path: Path) -> None:
    def fails(method: str, params: Sequence[object]) -> None:
        if method == "eth_getBlockByNumber" and params[1] and int(str(params[0]), 16) >= BLOCKS // 2:
            raise NodeAnswerError("missing trie node", code=-32000)

    async with serving(replay(blocks)) as one, serving(replay(blocks)) as two:
        one.before = fails
        one.delay = two.delay = 0.06
        async with on_terminal(*produce(f"{one.url},{two.url}", tmp_path, "--stop", str(BLOCKS))) as terminal:
            assert await terminal.end() == 0
    shown = screen(terminal.written)
    (at,) = [row for row, line in enumerate(shown) if re.match(rf"{LOGGED}the node at {one.url} answers", line)]
    (bar,) = [row for row, line in enumerate(shown) if re.fullmatch(DRAWN, line)]
    assert at < bar
    said = " ".join(shown[at:bar])
    assert said.endswith(f"missing trie node; switching to the node at {two.url}"), shown
    assert terminal.written.count("switching to") == 1


@asynchronous
async def test_an_interrupt_restores_the_terminal(blocks: list[Built], tmp_path: Path) -> None:
    async with serving(replay(blocks)) as node:
        node.delay = 0.06
        async with on_terminal(*produce(node.url, tmp_path)) as terminal:
            await terminal.shows(r"[\d.]+ blocks/s")
            terminal.process.send_signal(signal.SIGINT)
            assert await terminal.end() == 0
    shown = screen(terminal.written)
    assert re.fullmatch(DRAWN, shown[1]), shown
    assert re.match(rf"{LOGGED}\d+ blocks, \d+ messages in ", shown[2]), shown
    assert cursor_is_shown(terminal.written)


@asynchronous
async def test_a_failure_is_printed_on_a_line_of_its_own(blocks: list[Built], tmp_path: Path) -> None:
    def fails(method: str, params: Sequence[object]) -> None:
        if method == "eth_getBlockByNumber" and params[1] and int(str(params[0]), 16) >= BLOCKS // 2:
            raise NodeAnswerError("missing trie node", code=-32000)

    async with serving(replay(blocks)) as node:
        node.before = fails
        node.delay = 0.06
        async with on_terminal(*produce(node.url, tmp_path)) as terminal:
            assert await terminal.end() == 1
    shown = screen(terminal.written)
    assert [line for line in shown if line][-1].startswith("error: the node at ")
    assert cursor_is_shown(terminal.written)


@asynchronous
async def test_the_bar_disappears_at_the_head(blocks: list[Built], tmp_path: Path) -> None:
    chain = replay(blocks)
    chain.set_head(blocks[-2].name, announce="silent")
    async with serving(chain) as node:
        node.delay = 0.03
        async with on_terminal(*produce(node.url, tmp_path, "--stop", str(BLOCKS))) as terminal:
            await terminal.shows(rf"block {BLOCKS - 1} of {BLOCKS - 1} ")
            chain.set_head(blocks[-1].name)
            assert await terminal.end() == 0
    shown = screen(terminal.written)
    assert shown[1].startswith(f"block {BLOCKS - 1} of {BLOCKS - 1} ")
    assert f"block {BLOCKS} of" not in terminal.written


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}], ids=["", "forced"])
@asynchronous
async def test_no_bar_is_written_to_a_pipe(
    blocks: list[Built], tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with serving(replay(blocks)) as node:
        async with command(tmp_path / "said", *produce(node.url, tmp_path, "--stop", str(BLOCKS))) as process:
            out, _ = await process.communicate()
        assert process.returncode == 0
    assert out == b""
    said = (tmp_path / "said").read_text()
    assert "\x1b" not in said
    assert "\r" not in said
    assert not re.search(DRAWN, said)


@asynchronous
async def test_chains_without_a_node_have_a_bar_too(tmp_path: Path) -> None:
    node = "dev://?blocks=60&rate=50&reorg-rate=0"
    async with on_terminal("produce", "--from", node, "--to", f"file://{tmp_path}/log") as terminal:
        assert await terminal.end() == 0
    assert screen(terminal.written)[1].startswith("block 60 of 60 ")


@asynchronous
async def test_a_dumb_terminal_gets_lines(blocks: list[Built], tmp_path: Path) -> None:
    async with (
        serving(replay(blocks)) as node,
        on_terminal(*produce(node.url, tmp_path, "--stop", str(BLOCKS)), TERM="dumb") as terminal,
    ):
        assert await terminal.end() == 0
    assert "\x1b" not in terminal.written
    assert not re.search(DRAWN, terminal.written)
    assert f"{BLOCKS + 1} blocks, " in terminal.written
