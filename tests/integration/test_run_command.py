"""`cardinal run`: the example's handler in processes that are stopped, killed and restarted."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from commands import Processes, fresh_chain_id

from cardinal.handlers import load_factory
from serving import until

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
HANDLER = f"{ROOT / 'docs/examples/balances.py'}:Balances"


def reply(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=10) as answer:  # noqa: S310 - of our own process
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def head(metrics: str) -> int:
    found = re.search(r"^cardinal_consumer_head ([\d.e+]+)$", metrics, re.MULTILINE)
    return -1 if found is None else int(float(found[1]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_handler_that_ends_amid_the_stream_resumes_to_the_same_state(tmp_path: Path, number: signal.Signals) -> None:
    chain_id = fresh_chain_id()
    stream = f"file://{tmp_path / 'stream'}"
    feed = f"dev://?seed=3&reorg-rate=0.3&blocks=30&chain-id={chain_id}"

    def command(data: str) -> tuple[str, ...]:
        return "run", HANDLER, "--from", stream, "--data", str(tmp_path / data)

    def state(data: str) -> object:
        balances = load_factory(HANDLER, ROOT)(tmp_path / data)
        try:
            return balances.state()
        finally:
            balances.db.close()

    with Processes(tmp_path) as commands:
        produce = ("produce", "--producer-id", "one", "--to", stream, "--from", feed, "--start", "earliest")
        assert commands.run(*produce, "--stop", "10")[0] == 0
        running = commands.start(*command("stopped"), "--metrics", "127.0.0.1:0")
        log = tmp_path / "1.err"
        until(lambda: "metrics at " in log.read_text() or running.poll() is not None)
        address = re.search(r"metrics at (http://[\d.:]+)/", log.read_text())
        assert address is not None, log.read_text()
        until(lambda: head(reply(address[1], "/metrics")[1]) >= 10)
        until(lambda: reply(address[1], "/readyz") == (200, "ok\n"))
        running.send_signal(number)
        status = commands.end(running)[0]
        assert status == (0 if number == signal.SIGTERM else -number)
        assert commands.run(*produce)[0] == 0
        status, _, said = commands.run(*command("stopped"), "--exit-at-end")
        assert (status, "the handler continues after block" in said) == (0, True), said
        assert commands.run(*command("whole"), "--exit-at-end")[0] == 0
    assert state("stopped") == state("whole") != {}
