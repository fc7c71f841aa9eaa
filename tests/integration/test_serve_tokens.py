"""Tokens that are changed while clients are connected: who is there stays, who comes needs a current one."""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import COMMAND
from feeding import asynchronous

from cardinal import apps
from cardinal.errors import ConfigurationError, RefusedError
from cardinal.protocols.streams.types import Routed
from cardinal.server.serving import streams
from cardinal.server.serving.tokens import LOOK_SECONDS, Tokens, read_tokens
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports import list_topics, open_sink, open_source
from serving import DEADLINE, from_start, read, serving, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cardinal.transports import TransportUrl

APP = ChainGenerator().application
OLD, NEW, OTHER = "s3cr3t-old", "s3cr3t-new", "s3cr3t-other"


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"{OLD}\n\n  {OTHER} \n")
    return path


def held(file: Path, *tokens: str) -> None:
    """Have the file hold these tokens, put there at once as a deployment does it."""
    fresh = file.with_suffix(".fresh")
    fresh.write_text("".join(f"{token}\n" for token in tokens))
    fresh.replace(file)


def spoil(file: Path, content: bytes | None) -> None:
    """Have the file hold what is no tokens, or be away."""
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


def send(broker: MemoryBroker, count: int) -> None:
    sink = broker.sink(APP, producer_id="a")
    sink.send([Routed(APP.default_topic, b"\x03" + n.to_bytes(32, "big"), b"x") for n in range(count)], None)
    sink.close()


def test_who_is_connected_stays_and_who_comes_needs_a_current_token(
    broker: MemoryBroker, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(broker.url, APP, token_file=file) as served:
        there = from_start(open_source(f"{served.url}?token={OLD}", APP))
        assert list_topics(f"{served.url}?token={OTHER}") == set(APP.all_topics)
        held(file, NEW, OTHER)
        # At once: a new token is never refused, however short ago the file was looked at.
        assert list_topics(f"{served.url}?token={NEW}") == set(APP.all_topics)
        for token in (OLD, "s3cr3t-never"):
            with pytest.raises(RefusedError, match="does not accept the token"):
                open_source(f"{served.url}?token={token}", APP)
        with pytest.raises(RefusedError, match="wants a token"):
            open_source(served.url, APP)
        send(broker, 5)
        assert len(read(there, len(broker.records()))) == len(broker.records()), "its token counts no more"
        there.close()
        assert served.progress.unauthorized == 3
        assert list_topics(f"{served.url}?token={OTHER}") == set(APP.all_topics)
        assert "s3cr3t" not in f"{caplog.text} {served.service._settings!r} {vars(served.service)}"


def test_token_that_is_gone_from_the_file_opens_nothing_more_soon(broker: MemoryBroker, file: Path) -> None:
    """Though nobody else comes who would have the file looked at."""
    with serving(broker.url, APP, token_file=file) as served:
        held(file, NEW)

        def refused() -> bool:
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE)
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {OLD}"})
            status = connection.getresponse().status
            connection.close()
            assert status in (200, 401)
            return status == 401

        until(refused)
        with pytest.raises(RefusedError):
            list_topics(f"{served.url}?token={OLD}")


def test_file_that_is_away_for_a_moment_leaves_the_tokens_from_before(broker: MemoryBroker, file: Path) -> None:
    with serving(broker.url, APP, token_file=file) as served:
        file.unlink()
        with pytest.raises(RefusedError):  # it makes the server look
            list_topics(f"{served.url}?token={NEW}")
        assert list_topics(f"{served.url}?token={OLD}") == set(APP.all_topics)
        held(file, NEW)
        assert list_topics(f"{served.url}?token={NEW}") == set(APP.all_topics)


@pytest.mark.parametrize("content", ["", "\n", " \n\t\n\n"])
def test_file_without_a_token_does_not_open_the_server_to_everybody(
    broker: MemoryBroker, tmp_path: Path, content: str
) -> None:
    (tmp_path / "tokens").write_text(content)
    with (
        pytest.raises(ConfigurationError, match=r"holds no token|is empty") as refused,
        serving(broker.url, APP, token_file=tmp_path / "tokens"),
    ):
        pass
    assert refused.value.setting == "token-file"


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"], ids=["away", "empty", "blank", "no text"])
@asynchronous
async def test_file_that_cannot_be_used_is_told_once_until_it_can(
    file: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens(file=file, seconds=0.0)
    await tokens.open()
    for turn in (1, 2):
        spoil(file, content)
        for _ in range(3):
            assert not await tokens.know(b"guess")
            assert await tokens.know(OTHER.encode())
        told = [one.getMessage() for one in caplog.records]
        assert len(told) == turn
        assert told[-1].startswith(f"the file {file} of token-file")
        assert told[-1].endswith(": the tokens from before count")
        held(file, OTHER)
        assert await tokens.know(OTHER.encode())
        assert not await tokens.know(OLD.encode())


# --- how often the file is looked at ---------------------------------------------------------------------------


class Looks:
    """A file that counts how often it is read."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, file: Path) -> Sequence[str]:
        self.count += 1
        return read_tokens(file)


@asynchronous
async def test_file_is_looked_at_once_for_all_who_come_within_the_time(file: Path) -> None:
    looks = Looks()
    tokens = Tokens(file=file, seconds=3600.0, read=looks)
    await tokens.open()
    held(file, NEW)
    for _ in range(100):
        assert await tokens.know(OLD.encode()), "it was read, and need not be again"
        assert not await tokens.know(b"")
    guesses = [asyncio.create_task(tokens.know(b"guess %d" % number)) for number in range(100)]
    await asyncio.wait(guesses, timeout=0.2)
    assert looks.count == 1
    assert not any(guess.done() for guess in guesses), "they wait until it is looked at again"
    for guess in guesses:
        guess.cancel()
    await asyncio.gather(*guesses, return_exceptions=True)


@asynchronous
async def test_all_who_guess_wait_for_one_look(file: Path) -> None:
    looks = Looks()
    tokens = Tokens(file=file, seconds=0.05, read=looks)
    await tokens.open()
    held(file, NEW)
    known = await asyncio.gather(*(tokens.know(token) for token in [b"guess"] * 100 + [NEW.encode(), OLD.encode()]))
    assert known == [False] * 100 + [True, known[-1]]
    assert looks.count == 2
    assert LOOK_SECONDS >= 0.5


@asynchronous
async def test_nobody_who_gives_up_waiting_keeps_others_from_a_look(file: Path) -> None:
    tokens = Tokens(file=file, seconds=0.05)
    await tokens.open()
    impatient = asyncio.create_task(tokens.know(NEW.encode()))
    await asyncio.sleep(0)
    impatient.cancel()
    held(file, NEW)
    assert await tokens.know(NEW.encode())
    assert not await tokens.know(OLD.encode())


def test_tokens_without_a_file_are_those_that_were_given() -> None:
    tokens = Tokens([OLD, NEW])
    known = [asyncio.run(tokens.know(token)) for token in (OLD.encode(), NEW.encode(), b"", b"s3cr3t")]
    assert known == [True, True, False, False]
    assert tokens.wanted
    assert not Tokens().wanted


# --- as a command ------------------------------------------------------------------------------------------------


@asynchronous
async def test_command_takes_the_tokens_that_its_file_holds_now(tmp_path: Path, file: Path) -> None:
    open_sink(f"file://{tmp_path}/log", apps.get("evm", chain_id=1337), producer_id="one").close()
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "serve", "--from", f"file://{tmp_path}/log", "--listen", "127.0.0.1:0"),
        *("--chain-id", "1337", "--token-file", str(file)),
        env={**os.environ, "CARDINAL_SERVE_TOKEN": NEW},
        stderr=asyncio.subprocess.PIPE,
    )
    said = b""
    try:
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE):
            said = await process.stderr.readline()
            found = re.search(r"ws://\S+", said.decode())
            assert found, said
            assert await asyncio.to_thread(list_topics, f"{found[0]}?token={OLD}")
            with pytest.raises(RefusedError):  # the file goes before the variable
                await asyncio.to_thread(list_topics, f"{found[0]}?token={NEW}")
            held(file, NEW)
            assert await asyncio.to_thread(list_topics, f"{found[0]}?token={NEW}")
            with pytest.raises(RefusedError):
                await asyncio.to_thread(list_topics, f"{found[0]}?token={OLD}")
            process.terminate()
            said += await process.stderr.read()
            assert await process.wait() == 0, said
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert b"s3cr3t" not in said


def test_the_door_stays_open_while_many_ask_for_topics_of_a_kafka_that_does_not_answer(
    broker: MemoryBroker, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are answered together, and the file of tokens is read on a thread of its own."""
    asked: list[object] = []
    answers = threading.Event()

    def slow(url: TransportUrl) -> frozenset[str]:
        asked.append(url)
        assert answers.wait(DEADLINE)
        return broker.topics()

    monkeypatch.setattr(streams, "list_topics", slow)
    with serving(broker.url, APP, token_file=file) as served, ThreadPoolExecutor(40) as pool:
        found = [pool.submit(list_topics, f"{served.url}?token={OLD}") for _ in range(40)]
        until(lambda: served.progress.clients == 40)
        held(file, NEW)
        source = from_start(open_source(f"{served.url}?token={NEW}", APP))
        assert len(read(source, len(broker.records()))) == len(broker.records())
        assert not answers.is_set()
        answers.set()
        assert {one.result(DEADLINE) for one in found} == {frozenset(APP.all_topics)}
        assert len(asked) <= 3
        source.close()
