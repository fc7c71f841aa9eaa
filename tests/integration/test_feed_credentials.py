"""Nodes behind gateways that want to be shown a token or a password: a right one, a changed one, a wrong one."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from ethereum_blocks import grow, replay
from feeding import (
    QUICK,
    address,
    assert_lawful,
    asynchronous,
    connected,
    everything,
    given,
    hashes,
    looks,
    opened,
    serving,
    take,
)
from rpc_script import QUICK as QUICK_RPC
from rpc_script import answering

from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError, FeedError, NodeAnswerError, NodeUnreachableError, WrongChainError
from cardinal_devkit.testing.node import Demand
from cardinal_ethereum.feed import open_feed
from cardinal_ethereum.feed.rpc.client import RpcClient
from secrets_watch import marks_in

HTTP = ["http", "ws"]
OLD, NEW, WRONG = "s3cr3t+old/1=", "s3cr3t+new/2=", "s3cr3t-wrong"


def held(folder: Path, token: str) -> Path:
    """A file that holds a token, as an editor leaves it."""
    file = folder / "token"
    file.write_text(f"{token}\n")
    return file


def assert_silent(caplog: pytest.LogCaptureFixture, *shown: object) -> None:
    text = " ".join(f"{one} {one!r} {vars(one) if hasattr(one, '__dict__') else ''}" for one in shown) + caplog.text
    assert "s3cr3t" not in text
    assert base64.b64encode(b"alice:s3cr3t")[:15].decode() not in text


@pytest.mark.parametrize("scheme", HTTP)
@pytest.mark.parametrize(
    ("who", "option", "demand"),
    [
        ("", f"#token={OLD}", Demand.bearer(OLD)),
        ("", f"#lag=0&token={OLD.replace('+', '%2B')}", Demand.bearer(OLD)),
        ("", "#token_file={file}", Demand.bearer(OLD)),
        ("", "#header=X-Api-Key&token_file={file}", Demand(OLD, "x-api-key")),
        ("", "#header=Authorization&token_file={file}", Demand(OLD)),
        ("alice:s3cr3t%40%3A@", "", Demand("Basic " + base64.b64encode(b"alice:s3cr3t@:").decode())),
        ("alice@", "", Demand("Basic " + base64.b64encode(b"alice:").decode())),
        ("alice:s3cr3t@", "#header=X-Api-Key&token_file={file}", Demand(OLD, "X-Api-Key")),
    ],
)
@asynchronous
async def test_node_is_shown_what_it_wants(  # noqa: PLR0917 - pytest gives them by name
    scheme: str, who: str, option: str, demand: Demand, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    chain = grow(None, 30)
    async with serving(replay(chain)) as node:
        node.demand = demand
        url = address(node, scheme).replace("://", f"://{who}") + option.format(file=held(tmp_path, OLD))
        async with connected(url) as feed:
            assert given(await everything(feed.follow(until=29))) == hashes(chain)
            assert node.denials == 0
            assert_silent(caplog, feed)


@pytest.mark.parametrize("scheme", HTTP)
@pytest.mark.parametrize("status", [401, 403])
@asynchronous
async def test_token_that_was_changed_is_read_when_the_node_refuses_the_old_one(
    scheme: str, status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice, while the feed follows the head; a WebSocket sends its token when it is reopened."""
    caplog.set_level(logging.DEBUG)
    chain = grow(None, 12)
    served = replay(chain)
    served.set_head(chain[3].name)
    file = held(tmp_path, OLD)
    async with serving(served) as node:
        node.demand = Demand(f"Bearer {OLD}", status=status)
        async with connected(f"{address(node, scheme)}#token_file={file}") as feed:
            payloads = feed.follow()
            taken = await take(payloads, 4)
            for head, token in ((7, NEW), (11, OLD)):
                held(tmp_path, token)
                node.demand = Demand(f"Bearer {token}", status=status)
                await node.disconnect()
                served.set_head(chain[head].name)
                taken += await take(payloads, 4)
            assert_silent(caplog, feed)
        assert 2 <= node.denials <= 2 * (1 + QUICK.rpc.connections)
    assert given(taken) == hashes(chain)
    assert_lawful(taken)


@asynchronous
async def test_token_that_is_changed_in_the_middle_of_a_backfill_costs_a_request_each(tmp_path: Path) -> None:
    """Several requests are under way: all are refused, one reads the file, all are made again."""
    chain = grow(None, 200)
    file = held(tmp_path, OLD)

    def rotate(method: str, params: Sequence[object]) -> None:
        if method == "eth_getBlockByNumber" and params[0] == hex(60):
            held(tmp_path, NEW)
            node.demand = Demand.bearer(NEW)

    async with serving(replay(chain)) as node:
        node.demand = Demand.bearer(OLD)
        node.before = rotate
        narrow = replace(QUICK, walk=1, fetch_blocks=8)
        async with connected(f"{node.url}#token_file={file}", narrow) as feed:
            taken = await everything(feed.follow(until=199))
        assert 1 <= node.denials <= QUICK.rpc.connections
    assert given(taken) == hashes(chain)


@pytest.mark.parametrize("scheme", HTTP)
@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("who", "option", "advice"),
    [
        ("", "#token_file={file}", "check the token in {file}"),
        ("", f"#token={WRONG}", "check the token behind # of its URL"),
        ("alice:s3cr3t@", "", "check those in the URL, or give a token by token_file=PATH behind #"),
        ("", "", "check those in the URL, or give a token by token_file=PATH behind #"),
    ],
)
@asynchronous
async def test_wrong_credentials_cost_one_request_and_say_so_in_one_sentence(  # noqa: PLR0917 - pytest gives them by name
    scheme: str, status: int, who: str, option: str, advice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = held(tmp_path, WRONG)
    async with serving(replay(grow(None, 3))) as node:
        node.demand = Demand(f"Bearer {OLD}", status=status)
        url = address(node, scheme).replace("://", f"://{who}") + option.format(file=file)
        async with connected(url) as feed:
            with pytest.raises(NodeAnswerError) as refused:
                await everything(feed.follow())
            assert_silent(caplog, refused.value, feed)
        assert node.denials == 1
        assert str(refused.value) == (
            f"the node at {address(node, scheme)} refuses the credentials (HTTP {status}); {advice.format(file=file)}"
        )


@pytest.mark.parametrize("scheme", HTTP)
@pytest.mark.parametrize("content", [None, b"", b"\xff", b"two\nlines"], ids=["away", "empty", "no text", "lines"])
@asynchronous
async def test_file_that_cannot_be_used_when_the_node_refuses_leaves_what_was(
    scheme: str, content: bytes | None, tmp_path: Path
) -> None:
    file = held(tmp_path, OLD)
    async with opened(replay(grow(None, 3))) as (node, _):
        client = RpcClient(Endpoint.parse(f"{address(node, scheme)}#token_file={file}"), QUICK_RPC)
        await client.call("eth_chainId")
        node.demand = Demand.bearer(NEW)
        await node.disconnect()
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        with pytest.raises(NodeAnswerError, match="check the token in"):
            await client.call("eth_chainId")
        held(tmp_path, NEW)
        await client.call("eth_chainId")
        await client.close()
        assert node.denials == 2


@asynchronous
async def test_chain_behind_another_token_is_compared(tmp_path: Path) -> None:
    """A gateway may choose the node by the token, over the connection that there is."""
    chain, another = grow(None, 6), grow(None, 9, "z")
    file = held(tmp_path, OLD)
    async with serving(replay(chain)) as node:
        node.demand = Demand.bearer(OLD)
        async with connected(f"{node.url}#token_file={file}") as feed:
            payloads = feed.follow()
            assert given(await take(payloads, 6)) == hashes(chain)
            held(tmp_path, NEW)
            node.demand, node.chain = Demand.bearer(NEW), replay(another)
            with pytest.raises(WrongChainError, match="first block"):
                await take(payloads, 1)


@pytest.mark.parametrize("scheme", HTTP)
@asynchronous
async def test_no_node_is_shown_what_is_another_ones(scheme: str) -> None:
    came: dict[str, list[str | None]] = {"one": [], "two": [], "three": []}

    async def guarded(request: web.Request) -> web.Response:
        came[request.path.strip("/")].append(request.headers.get("Authorization"))
        return web.Response(status=403)

    async with answering(guarded) as url:
        place = f"{scheme}{url.removeprefix('http')}"
        nodes = f"{place}/one#token=s3cr3t-1,{place}/two,{place}/three#token=s3cr3t-3&lag=1"
        async with connected(nodes) as feed:
            with pytest.raises(NodeAnswerError, match="refuses the credentials"):
                await feed.chain_id()
    assert came == {"one": ["Bearer s3cr3t-1"], "two": [None], "three": ["Bearer s3cr3t-3"]}


@pytest.mark.parametrize("scheme", HTTP)
@asynchronous
async def test_a_node_that_refuses_is_left_and_not_requested_repeatedly(
    scheme: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the one that is left in the middle, nor the one that stands by and never took its token."""
    caplog.set_level(logging.DEBUG)
    chain = grow(None, 9)
    served = replay(chain)
    served.set_head(chain[3].name)
    file = held(tmp_path, OLD)
    async with serving(served) as first, serving(served) as second, serving(served) as third:
        first.demand, second.demand, third.demand = Demand.bearer(OLD), Demand.bearer(NEW), Demand.bearer(NEW)
        urls = f"{address(first, scheme)}#token_file={file},{address(second, scheme)}#token={WRONG},"
        urls += f"{address(third, scheme)}#token={NEW}"
        async with connected(urls, replace(QUICK, watch=0.001, poll=0.01, rest=600.0)) as feed:
            payloads = feed.follow()
            taken = await take(payloads, 4)
            coming = asyncio.ensure_future(anext(payloads))
            await looks(first, 10)
            assert second.denials == 1
            first.demand = Demand.bearer(NEW)
            await first.disconnect()
            await looks(third, 10)
            before = first.denials
            assert 1 <= before <= 1 + QUICK.rpc.connections
            served.set_head(chain[7].name)
            taken += [await coming, *await take(payloads, 3)]
            coming = asyncio.ensure_future(anext(payloads))
            await looks(third, 10)
            served.set_head(chain[8].name)
            taken.append(await coming)
            assert (first.denials, second.denials) == (before, 1)
            assert_silent(caplog, feed)
    assert given(taken) == hashes(chain)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert sum(address(second, scheme) in one and "refuses the credentials" in one for one in told) == 1
    assert any(f"check the token in {file}; switching to the node at" in one for one in told)


@asynchronous
async def test_a_node_on_standby_is_requested_with_another_token_after_its_pause(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain = grow(None, 4)
    served = replay(chain)
    served.set_head(chain[2].name)
    file = held(tmp_path, WRONG)
    async with serving(served) as first, serving(served) as second:
        second.demand = Demand.bearer(NEW)
        urls = f"{first.url},{second.url}#token_file={file}"
        async with connected(urls, replace(QUICK, watch=0.001, poll=0.01, rest=0.05)) as feed:
            payloads = feed.follow()
            taken = await take(payloads, 3)
            coming = asyncio.ensure_future(anext(payloads))
            while second.denials < 2:
                await looks(first, 1)
            held(tmp_path, NEW)
            await looks(second, 3)
            served.set_head(chain[3].name)
            taken.append(await coming)
    assert given(taken) == hashes(chain)
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert told == [f"the node at {second.url} refuses the credentials (HTTP 401); check the token in {file}"]


@pytest.mark.parametrize("scheme", HTTP)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@asynchronous
async def test_token_is_not_sent_to_where_the_node_sends_its_callers(scheme: str, status: int) -> None:
    came: list[str] = []

    async def other(request: web.Request) -> web.Response:
        came.append(request.path)
        return web.Response()

    async with answering(other) as place:

        async def sends(_: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": f"{place}/v3/s3cr3t-key"})

        async with answering(sends) as url:
            shown = f"{scheme}{url.removeprefix('http')}"
            client = RpcClient(Endpoint.parse(f"{shown}/v3/another-s3cr3t-key#token={OLD}&header=X-Api-Key"), QUICK_RPC)
            with pytest.raises(NodeAnswerError) as refused:
                await client.call("eth_chainId")
            await client.close()
    assert not came
    assert str(refused.value) == f"{shown} redirects to another URL (HTTP {status}, to {place}): use that URL"


@pytest.mark.parametrize("scheme", HTTP)
@asynchronous
async def test_token_that_the_node_repeats_is_not_shown(scheme: str, tmp_path: Path) -> None:
    """Also the one from before: an answer may have been on its way."""
    file = held(tmp_path, OLD)
    async with serving(replay(grow(None, 2))) as node:
        node.demand = Demand.bearer(OLD)

        def loud(_: str, __: Sequence[object]) -> None:
            raise NodeAnswerError(f"no quota for {OLD} and {NEW}", code=-32000)  # about the rate: unreachable

        client = RpcClient(Endpoint.parse(f"{address(node, scheme)}#token_file={file}"), QUICK_RPC)
        await client.call("eth_chainId")
        node.demand = Demand.bearer(NEW)
        await node.disconnect()
        held(tmp_path, NEW)
        node.before = loud
        with pytest.raises(NodeUnreachableError, match="no quota for … and …"):
            await client.call("eth_chainId")
        await client.close()


@pytest.mark.parametrize("scheme", HTTP)
@asynchronous
async def test_chain_id_that_is_a_token_is_not_shown(scheme: str) -> None:
    async with serving(replay(grow(None, 2))) as node:
        node._handlers["eth_chainId"] = lambda _: OLD
        async with connected(f"{address(node, scheme)}#token={OLD}") as feed:
            with pytest.raises(NodeAnswerError, match="answers eth_chainId with '…'"):
                await feed.chain_id()


REFUSALS = [
    ("http://a#token=s3cr3t&token_file={file}", "given twice: leave token or token_file out"),
    ("http://alice:s3cr3t@a#token=s3cr3t", "has a user, and its token is sent in the same header"),
    ("http://alice:s3cr3t@a#token=s3cr3t&header=authorization", "has a user, and its token is sent in the same header"),
    ("http://a#header=X-Api-Key", "give token_file=PATH, too"),
    ("http://a#header=X%20s3cr3t&token=s3cr3t", "header is the name of a header"),
    ("http://a#header=&token=s3cr3t", "header is the name of a header"),
    ("http://a#token_file=/nowhere/token", "the file /nowhere/token of token_file cannot be read"),
    ("http://a#token_file=", "cannot be read"),
    ("http://a#token=", "no header can carry"),
    ("http://a#token=s3cr3t%0d%0aHost:%20b", "no header can carry"),
    ("http://a#token=s3cr3t%c3%a9", "no header can carry"),
    ("http://a#token=%20s3cr3t", "no header can carry"),
    ("ipc:///run/geth.ipc#token=s3cr3t", "a local socket has no use for a token"),
    ("http://a#lag=1,http://b#token=s3cr3t", "write the other options behind the last node"),
    ("http://a#tokens=s3cr3t", "did you mean token?"),
]


@pytest.mark.parametrize(("url", "says"), REFUSALS)
def test_what_cannot_be_shown_is_refused_in_one_sentence(url: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)) as refused:
        open_feed(url.format(file=held(tmp_path, OLD)))
    assert "s3cr3t" not in f"{refused.value} {vars(refused.value)}"
    assert refused.value.setting


@pytest.mark.parametrize("content", ["", "s3cr3t\ns3cr3t", " s3cr3t", "s3cr3t\x7f"])
def test_file_that_no_header_can_carry_is_refused_when_the_feed_is_opened(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigurationError, match=r"no header can carry|is empty"):
        open_feed(f"http://a#token_file={tmp_path}/token")


@pytest.mark.parametrize("scheme", HTTP)
@pytest.mark.parametrize("status", [302, 401, 429, 500])
@asynchronous
async def test_nothing_hangs_on_an_error_that_holds_what_was_sent(scheme: str, status: int) -> None:
    """Foreign errors have the headers of the request, and are shown by what looks at an error's context."""
    async with serving(replay(grow(None, 2))) as node:
        node.demand = Demand.bearer(OLD)._replace(status=status)
        client = RpcClient(Endpoint.parse(f"{address(node, scheme)}/s3cr3t-key#token={WRONG}"), QUICK_RPC)
        with pytest.raises(FeedError) as refused:
            await client.call("eth_chainId")
        await client.close()
    hanging: BaseException | None = refused.value
    while hanging is not None:
        assert marks_in(f"{hanging!r} {vars(hanging)!r}") == set()
        hanging = hanging.__cause__ or hanging.__context__


TALK = """
import asyncio, json, logging, sys, traceback
from cardinal.apps import get
from cardinal.feeds import open_feed
from cardinal.server.healing import FeedHealer

logging.basicConfig(level=logging.DEBUG)

async def talk(url):
    feed = open_feed(url)
    print(feed, vars(feed), vars(feed._nodes), [(str(node), vars(node)) for node in feed._nodes._nodes])
    try:
        async for payload in feed.follow(until=2):
            print(payload)
    finally:
        await feed.close()

for url in json.load(sys.stdin):
    try:
        print(vars(FeedHealer(url, get("evm", chain_id=1337))))
        asyncio.run(talk(url), debug=True)
    except Exception as error:
        traceback.print_exc()
        print(repr(error), vars(error), repr(error.__cause__), repr(error.__context__))
"""


@pytest.mark.process
@asynchronous
async def test_nothing_that_a_talkative_process_writes_holds_a_secret(tmp_path: Path) -> None:
    async with serving(replay(grow(None, 3))) as node:
        node.demand = Demand.bearer(OLD)
        urls = []
        for base in (node.url, node.ws_url):
            host = base.partition("://")[2]
            urls += [
                f"{base}/s3cr3t-key#token={OLD}",
                f"{base}#token={WRONG}",
                f"{base}#token={WRONG}&header=X-Api-Key",
            ]
            urls += [
                f"{base}#token_file={held(tmp_path, OLD)}",
                f"{base.replace(host, 'alice:s3cr3t@' + host)}?k=s3cr3t",
            ]
            urls += [f"{base}#token=s3cr3t&token_file=x", f"{base}#token=s3cr3t%0A", f"{base}#tokens=1&token=s3cr3t"]
            urls += [f"{base.replace(host, '127.0.0.1:1')}#token={OLD}&attempts=1&patience=0"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", TALK), stdin=-1, stdout=-1, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(60):
            said, _ = await process.communicate(json.dumps(urls).encode())
    text = said.decode()
    assert process.returncode == 0, text
    assert text.count("Traceback") == len(urls) - 4
    assert text.count("refuses the credentials") >= 6
    assert text.count("Payload(") >= 12
    assert "DEBUG" in text
    assert [line[:200] for line in text.splitlines() if marks_in(line)] == []
