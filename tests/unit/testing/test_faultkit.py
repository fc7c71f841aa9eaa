"""Fault kit for handlers: chains, feeds, scripts, and the failures of handlers that are wrong."""

from __future__ import annotations

import random
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import fault_handlers
from cardinal import ChainUpdate, MissingPayload, Payload
from cardinal.cli.main import cardinal
from cardinal.errors import ConfigurationError, CursorError
from cardinal_devkit.faultkit import APPS, Chain, FaultKit, Settings, find_failure
from cardinal_devkit.faultkit.feed import Feed
from cardinal_devkit.faultkit.script import Kill, Read, Restart, Script, parse, random_script, smaller
from cardinal_ethereum import decode

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
HANDLERS = fault_handlers.__file__
NOT_THE_CHAIN = "the state is not that of the chain"


def applied(updates: list[ChainUpdate], chain: Chain, names: list[str]) -> list[str]:
    """The chain after these updates, which must fit."""
    for update in updates:
        for block in update.removed:
            assert names.pop() == chain.name(block.hash)
        names += [chain.name(block.hash) for block in update.added]
    return names


# --- chains and feeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("app", APPS)
def test_a_chain_has_forks_and_its_updates_lead_to_its_heaviest_block(app: str) -> None:
    chain = Chain(3, 12, app=app)
    assert Chain(3, 12, app=app).payloads == chain.payloads != Chain(4, 12, app=app).payloads
    updates = chain.updates()
    assert any(update.removed for update in updates)
    assert tuple(applied(updates, chain, [])) == chain.heaviest()
    for update in updates:
        assert all(block == chain.payloads[chain.name(block.hash)] for block in (*update.removed, *update.added))


def test_blocks_of_an_evm_chain_can_be_decoded() -> None:
    chain = Chain(1, 6, app="evm")
    blocks = [decode(block) for update in chain.updates() for block in update.added]
    assert any(block.transactions for block in blocks)
    assert {block.header.number for block in blocks} == set(range(7))


@pytest.mark.parametrize("seed", range(4))
def test_a_feed_that_is_resumed_from_any_cursor_comes_to_the_same_chain(seed: int) -> None:
    chain = Chain(seed, 12)
    updates = chain.updates()
    for at, update in enumerate(updates, 1):
        feed = Feed(chain.application)
        for payload in chain.payloads.values():
            feed.publish(payload)
        feed.open(str(update.cursor))
        names = applied(list(feed.updates()), chain, applied(updates[:at], chain, []))
        assert tuple(names) == chain.heaviest()


def test_blocks_without_content_are_missing_payloads_on_both_sides() -> None:
    chain = Chain(3, 12)
    reorg = next(update for update in chain.updates() if update.removed)
    gone = {reorg.removed[0].hash, reorg.added[0].hash}
    feed = Feed(chain.application, gone)
    for payload in chain.payloads.values():
        feed.publish(payload)
    blocks = [block for update in feed.updates() for block in (*update.removed, *update.added)]
    assert {block.hash for block in blocks if isinstance(block, MissingPayload)} <= gone
    assert all(isinstance(block, MissingPayload if block.hash in gone else Payload) for block in blocks)


def test_a_feed_refuses_text_that_is_not_a_cursor() -> None:
    with pytest.raises(CursorError, match="not a cursor"):
        Feed(Chain(0, 3).application).open("7")


def test_an_unknown_application_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigurationError, match="choose one of generated, evm"):
        Chain(app="utxo")


# --- scripts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_a_random_script_is_read_back_from_its_text_and_so_is_whatever_is_smaller(seed: int) -> None:
    chain = Chain(seed, 12)
    script = random_script(chain, random.Random(seed), [10, 20], missing=seed % 2 == 1)
    assert parse(str(script), chain) == script
    assert script.names == list(chain.payloads)[: len(script.names)]
    reductions = [one for one in smaller(script, chain) if one.final(chain)]
    assert reductions
    for one in reductions:
        assert parse(str(one), chain) == one != script
        assert len(one.names) <= len(script.names)


def test_a_script_is_text() -> None:
    chain = Chain(0, 12)
    first = list(chain.payloads)[:3]
    script = parse(f"{first[0]} !7 {first[1]}+{first[2]}? restart", chain)
    steps = (Read((first[0],)), Kill(7), Read((first[1], first[2])), Restart())
    assert script == Script(steps, frozenset({first[2]}))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0a kill", "'kill' is no step"),
        ("0a 99z", "there is no block 99z"),
        ("1a", "every parent"),
        ("", "every parent"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        parse(text, Chain(0, 12))


# --- handlers ------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("handler", [fault_handlers.Rows, fault_handlers.OnlyInMemory])
def test_a_handler_that_is_right_passes_every_run(handler: type[fault_handlers.Rows]) -> None:
    with FaultKit(handler, Settings(seeds=6, missing=True)) as kit:
        assert kit.search() is None
        counts = kit.counts
    assert counts.runs == 7
    assert min(counts.blocks, counts.reorgs, counts.kills, counts.restarts) > 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("IgnoresRemoved", NOT_THE_CHAIN),
        ("CountsInMemory", NOT_THE_CHAIN),
        ("CursorFirst", NOT_THE_CHAIN),
        ("CursorLast", NOT_THE_CHAIN),
        ("WritesInPlace", "the handler raised an error"),
        ("ReadsMissing", "the handler raised an error"),
        ("StoresNoCursor", "the handler raised an error"),
        ("no_store", "the handler raised an error"),
        ("KeepsNothing", "that of a handler without any"),
        ("Clock", "two runs without faults"),
        ("ShowsAddresses", "the handler raised an error"),
        ("Exits", "ended with status 7"),
    ],
)
def test_a_mistake_is_found_and_its_script_repeats_it(handler: str, reason: str) -> None:
    with FaultKit(f"{HANDLERS}:{handler}", Settings(blocks=6, missing=handler == "ReadsMissing")) as kit:
        failure = kit.search()
        assert failure is not None
        assert reason in failure.reason
        assert failure.story.startswith(failure.reason)
        kit.settings = replace(kit.settings, first=failure.seed)
        repeated = kit.play(failure.script)
    assert repeated is not None
    assert repeated.reason == failure.reason


@pytest.mark.process
def test_a_handler_that_hangs_is_ended() -> None:
    chain = Chain(1, 12)
    reorg = next(at for at, update in enumerate(chain.updates()) if update.removed)
    assert reorg
    script = " ".join(chain.payloads)
    failure = find_failure(f"{HANDLERS}:Hangs", Settings(first=1, timeout=1), script=script)
    assert failure is not None
    assert failure.reason == "the handler was not done after 1 s"


@pytest.mark.process
def test_the_story_names_the_line_before_which_the_process_was_killed() -> None:
    failure = find_failure(f"{HANDLERS}:CursorFirst")
    assert failure is not None
    lines = [line.strip() for line in failure.story.splitlines()]
    assert lines[2:4] == ["open       from the beginning", "deliver    +0a"]
    assert lines[4].startswith("killed before fault_handlers.py:")
    assert lines[5] == "open       from the cursor of 0a"
    assert "- {'0': '<0a>'}" in lines
    assert "+ {}" in lines
    assert lines[-1].startswith(f"repeat: cardinal faults --handler {HANDLERS}:CursorFirst --seed 0 ")


@pytest.mark.process
@pytest.mark.parametrize(
    "name", ["nowhere.at_all:handler", "fault_handlers:nothing", "nowhere.py:handler", "nowhere.py"]
)
def test_a_handler_that_cannot_be_imported_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the handler {name} cannot be imported"):
        find_failure(name)


def test_a_handler_inside_a_function_is_refused() -> None:
    class Inside(fault_handlers.Rows):
        pass

    with pytest.raises(ConfigurationError, match="define it at the top of a module"):
        find_failure(Inside)


# --- the command, the example, the fixtures ----------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cardinal, ["faults", *arguments])


@pytest.mark.process
def test_the_bug_of_the_example_is_found_and_the_printed_command_repeats_it() -> None:
    found = run("--handler", f"{EXAMPLES}/balances_buggy.py:Balances", "--app", "evm")
    assert found.exit_code == 1, found.output
    story, _, command = found.output.strip().rpartition("\n\nrepeat: ")
    assert story.startswith(NOT_THE_CHAIN)
    assert story.count("killed before balances_buggy.py:") == 1
    program, *arguments = shlex.split(command)
    assert program == "cardinal"
    repeated = CliRunner().invoke(cardinal, arguments)
    assert repeated.exit_code == 1
    assert repeated.output == found.output


@pytest.mark.process
def test_the_mended_example_passes() -> None:
    passed = run("--handler", f"{EXAMPLES}/balances.py:Balances", "--app", "evm", "--seeds", "5", "--missing")
    assert passed.exit_code == 0, passed.output
    assert passed.output.startswith("6 runs of ")
    assert "the state is the chain's after every run" in passed.output


TESTS = """
from fault_handlers import CursorFirst, Rows

def test_chain(cardinal_chain):
    chain = cardinal_chain(seed=3, blocks=6)
    assert [block.number for update in chain.updates() for block in update.added][-1] == 6

def test_right(cardinal_faults):
    cardinal_faults(Rows, seeds=2)

def test_wrong(cardinal_faults):
    cardinal_faults(CursorFirst, seeds=5)
"""


@pytest.mark.process
def test_fixtures_run_the_kit_and_fail_with_the_story(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    paths = [str(Path(HANDLERS).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(path for path in paths if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "killed before fault_handlers.py:" in done.stdout
    assert "repeat: cardinal faults --handler " in done.stdout
