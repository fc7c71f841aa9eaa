"""Scenarios of `publish-arbiter.json` on a real node, among them production bugs of the reference.

These are listed in `connectors/cardinal_ingest/docs/publish.md`, section 9.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cardinal._concurrency import new_future, settle
from cardinal.errors import ApplicationError
from cardinal.protocols.streams import Payload
from cardinal_ingest.errors import StoreError, VerifierError
from cardinal_ingest.node.listener import Listener
from cardinal_ingest.node.node import Deliver, IngestNode
from cardinal_ingest.node.store import BodyStore
from cardinal_ingest.node.tls import server_context
from cardinal_ingest.protocols.publish import (
    METHOD,
    SERVICE,
    Acknowledgement,
    ArbiterSettings,
    BlockEnd,
    BlockItemSet,
    EndStream,
    Response,
    SkipBlock,
    decode_response,
    encode,
)
from certificates import Authority
from ingesting import header, ids, proof, publisher, serving
from looping import on_loop
from model.publish_scenario import label, request, sent
from vectors import Case, load

DEADLINE = 60.0
STREAM = "items:1"
FAILURES = {
    "bad": ApplicationError("it is not right"),
    "undecided": VerifierError("its worker ended"),
    "persistence": StoreError("the disk is full"),
}
GARBAGE = b"\xff\xff"


class AnyBlocks:
    """An application whose blocks are all right."""

    reads_content = False

    def __init__(self, *, forks: bool) -> None:
        self.forks = forks

    def verify(self, *_: object) -> None:
        """Every block is right: verdicts are the held store's."""

    def payload(self, number: int, body: bytes) -> Payload:
        raise NotImplementedError


class HeldStore(BodyStore):
    """A store that writes when a test says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, STREAM)
        self.over = False
        self.waiting: defaultdict[tuple[int, bytes], list[tuple[Future[None], Callable[[], Future[None]]]]] = (
            defaultdict(list)
        )

    def add(self, number: int, block_hash: bytes, parent: bytes, body: bytes, first: int) -> Future[None]:
        future: Future[None] = new_future()
        write = super().add
        self.waiting[number, block_hash].append((future, lambda: write(number, block_hash, parent, body, first)))
        if self.over:
            self.fail_all()
        return future

    def keep(self, number: int, block_hash: bytes, parent: bytes) -> None:
        """A block that was promoted long ago."""
        super().add(number, block_hash, parent, b"", number).result(DEADLINE)
        self.promoted(number, block_hash).result(DEADLINE)

    def write_held(self, number: int, block_hash: bytes, copy: int) -> None:
        future, write = self.waiting[number, block_hash][copy]
        write().add_done_callback(lambda done: settle(future, done.exception()))

    def fail_all(self) -> None:
        """Nothing is written any more: the scenario is over."""
        self.over = True
        for copies in self.waiting.values():
            for future, _ in copies:
                if not future.done():
                    settle(future, StoreError("the scenario is over"))

    def fail(self, number: int, block_hash: bytes, copy: int, error: Exception) -> None:
        future, _ = self.waiting[number, block_hash][copy]
        if not future.done():
            settle(future, error)


class CountedNode(IngestNode):
    """A node that counts what it took from each connection, and the ticks."""

    def __init__(self, store: BodyStore, blocks: AnyBlocks, settings: ArbiterSettings, clock: Clock) -> None:
        self.taken: dict[Hashable, int] = {}
        self.order: list[Hashable] = []
        self.left: set[Hashable] = set()
        super().__init__(store, blocks, settings, lambda _: None, clock)

    def connect(self, connection: Hashable, identity: str, deliver: Deliver, address: str = "") -> None:
        super().connect(connection, identity, deliver, address)
        self.taken[connection] = 0
        self.order.append(connection)

    def must_wait(self, connection: Hashable) -> bool:
        """Scenarios have the arbiter's answers also to what a node does not read."""
        del connection
        return False

    def receive(self, connection: Hashable, data: bytes) -> None:
        super().receive(connection, data)
        self.taken[connection] += 1

    def disconnect(self, connection: Hashable, reason: str = "") -> None:
        super().disconnect(connection, reason)
        self.left.add(connection)


class Clock:
    """A clock that stands until it is set forward; it counts how often it was read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


class Client:
    """A publisher of the scenario, and what came back."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        self.number: Hashable = None
        self.sent = 0
        self.left = False
        """Set when it has sent its EndStream: the node ends the stream."""
        self.found: list[dict[str, object]] = []
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        with suppress(grpc.aio.AioRpcError):  # the node has ended
            while (data := await self.call.read()) is not grpc.aio.EOF:
                response: Response | None = decode_response(data)
                assert response is not None
                self.found.append(sent(response))

    @property
    def ended(self) -> bool:
        return self.left or (bool(self.found) and "end_stream" in self.found[-1])


class Stage:
    """One scenario on a node."""

    def __init__(
        self, case: Mapping[str, Any], node: CountedNode, store: HeldStore, clock: Clock, authority: Authority
    ) -> None:
        self.case = case
        self.authority = authority
        self.port = 0
        self.node = node
        self.store = store
        self.clock = clock
        self.clients: dict[str, Client] = {}
        self.expected: defaultdict[str, list[dict[str, object]]] = defaultdict(list)
        self.completed: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
        self.attempts: dict[tuple[int, bytes], int] = {}
        self.verdicts: defaultdict[tuple[int, bytes, int], set[str]] = defaultdict(set)
        self.failed: set[tuple[tuple[int, bytes], int]] = set()
        self.catch_ups = 0

    async def play(self) -> None:
        outputs = defaultdict(list)
        for out in self.case["expect"]:
            outputs[out["step"]].append(out)
        for i, step in enumerate(self.case["steps"]):
            await self.step(step)
            for out in outputs[i]:
                self.note(out["to"], out["send"])
            for name, client in self.clients.items():
                await self.until(lambda c=client, n=name: len(c.found) >= len(self.expected[n]), f"step {i}: {name}")
                assert client.found == self.expected[name], f"step {i}: {step}"
        for name, client in self.clients.items():
            assert client.found == self.expected[name], name
        assert self.node.events["catch_up"] == self.catch_ups

    def note(self, to: str, send: Mapping[str, Any]) -> None:
        match send:
            case {"start": given}:
                self.attempts[self.block(given)] = given["attempt"]
            case {"complete": given}:
                self.completed[self.block(given)].append(given["attempt"])
            case {"catch_up": _}:
                self.catch_ups += 1
            case _ if to in self.clients:
                self.expected[to].append(dict(send))

    async def step(self, step: Mapping[str, Any]) -> None:
        match step:
            case {"connect": name}:
                await self.connect(name)
            case {"disconnect": name}:
                client = self.clients[name]
                client.call.cancel()
                await self.until(lambda: client.number in self.node.left, f"disconnect {name}")
            case {"from": name, "send": send}:
                await self.send(self.clients[name], send)
            case {"verified": number} | {"persisted": number}:
                await self.pass_verdict(step, self.block(step, number))
            case {"failed": number}:
                await self.fail(step, self.block(step, number))
            case {"tick": seconds}:
                self.clock.now += seconds
                reads = self.clock.reads
                await self.until(lambda: self.clock.reads > reads + 4, "tick")
            case {"shutdown": _}:
                await self.node.close()

    async def pass_verdict(self, step: Mapping[str, Any], block: tuple[int, bytes]) -> None:
        """A copy is verified, or durable: with both it is written."""
        attempt = step.get("attempt", self.attempts[block])
        flags = self.verdicts[*block, attempt]
        ready = flags | set(step) >= {"verified", "persisted"} != flags and attempt in self.completed[block]
        ready = ready and (block, attempt) not in self.failed
        flags |= {"verified", "persisted"} & set(step)
        if ready:
            copy = await self.copy(block, attempt)
            held = self.node.memory
            self.store.write_held(*block, copy)
            await self.until(lambda: self.node.memory < held, "a verdict")

    async def fail(self, step: Mapping[str, Any], block: tuple[int, bytes]) -> None:
        attempt, why = step.get("attempt", self.attempts[block]), step["why"]
        if attempt not in self.completed[block] or (block, attempt) in self.failed:
            return  # the copy was never complete, or is gone
        self.failed.add((block, attempt))
        copy, held = await self.copy(block, attempt), self.node.memory
        self.store.fail(*block, copy, FAILURES[why])
        await self.until(lambda: self.node.memory < held, "a verdict")
        if why == "persistence":
            await self.until(lambda: not self.node.waits_for, "the store is checked")

    def credentials(self, name: str) -> grpc.ChannelCredentials:
        """A certificate for a publisher's name: the same name is the same publisher."""
        leaf = self.authority.sign(name)
        return grpc.ssl_channel_credentials(
            self.authority.certificate.read_bytes(), leaf.key.read_bytes(), leaf.certificate.read_bytes()
        )

    async def connect(self, name: str) -> None:
        count = len(self.node.order)
        # Channels of the same arguments would share one connection: every one here is its own.
        options = (("grpc.use_local_subchannel_pool", 1),)
        credentials = self.credentials(name.split("#", maxsplit=1)[0])
        client = Client(grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options))
        self.clients[name], self.expected[name] = client, []
        await self.until(lambda: len(self.node.order) > count, f"connect {name}")
        client.number = self.node.order[-1]

    async def send(self, client: Client, send: Mapping[str, Any]) -> None:
        message = request(send)
        ended = client.ended
        try:
            await client.call.write(GARBAGE if message is None else encode(message))
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            assert client.ended
        client.sent += 1
        client.left = client.left or isinstance(message, EndStream)
        if not ended:
            await self.until(lambda: self.node.taken[client.number] >= client.sent, f"{send}")

    async def copy(self, block: tuple[int, bytes], attempt: int) -> int:
        """The position of a copy among those of its block that came to the store."""
        index = self.completed[block].index(attempt)
        await self.until(lambda: len(self.store.waiting[block]) > index, f"{block} to be verified")
        return index

    def block(self, given: Mapping[str, Any], number: int | None = None) -> tuple[int, bytes]:
        found = given["block"] if number is None else number
        return found, label(given["hash"]) if "hash" in given else b""

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE):
                while not holds():  # noqa: ASYNC110 - what is waited for notifies nobody
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(f"the node did not answer in time: {what}") from None


def playable(case: Mapping[str, Any]) -> bool:
    """Whether a scenario can be played from outside: one verdict on each complete copy, and nothing from peers."""
    completed = {(out["send"]["complete"]["block"], out["step"]) for out in case["expect"] if "complete" in out["send"]}
    persisted, failed = set(), set()
    for i, step in enumerate(case["steps"]):
        if "stored" in step or "restart" in step:
            return False
        number = step.get("failed", step.get("persisted"))
        copy = (number, step.get("hash"), step.get("attempt"))
        if "persisted" in step and copy not in failed:
            persisted.add(copy)
        if "failed" in step:
            if copy in persisted or not any(block == number and at < i for block, at in completed):
                return False
            failed.add(copy)
    return True


@asynccontextmanager
async def stage(case: Mapping[str, Any], folder: Path) -> AsyncIterator[Stage]:
    """A node for a scenario, with mutual TLS: publishers are known by the names of their certificates."""
    authority = Authority(folder, "authority")
    server = authority.sign("node", hosts=["127.0.0.1"])
    config = dict(case["config"])
    last, acknowledged = config.pop("last_stored", None), config.pop("stored_blocks", [])
    settings = ArbiterSettings(**config)
    forks = settings.reorg_threshold is not None
    store, clock = HeldStore(folder / "data"), Clock()
    if last is not None:
        store.keep(last, b"", b"")
    for number, block_hash, parent in acknowledged:
        store.keep(number, label(block_hash), label(parent))
    node = CountedNode(store, AnyBlocks(forks=forks), settings, clock)
    ticking = asyncio.ensure_future(node.run())
    tls = server_context(server.certificate, server.key, authority.certificate)
    try:
        async with Listener(node, "127.0.0.1:0", tls) as listener:
            played = Stage(case, node, store, clock, authority)
            played.port = listener.port
            await played.play()
            yield played
            for client in played.clients.values():
                client.reading.cancel()
                await client.channel.close()
            store.fail_all()
            await node.close()
    finally:
        ticking.cancel()
        store.close()


# --- scenarios ------------------------------------------------------------------------------------------------------


CASES = {str(case["name"]): case for case in load("publish-arbiter.json", "scenarios")}
BUGS = {
    "an acknowledgement leaks past a resent block (2748)": "two_resends_and_no_leaked_acknowledgement",
    "a stale resend entry (2714)": "obeying_a_resend_and_losing_the_race",
    "a silent resender while the tip moves on (2934)": "silent_resender",
    "a resender is blamed for the earlier copy (3391, 3392)": "late_verdict_of_an_earlier_copy",
    "a reset in mid-block (2443, 2419)": "reset_in_mid_block",
    "a publisher killed in mid-block (2055, 21837)": "lost_winner",
    "a killed publisher comes back alone (2055)": "lost_winner_alone_comes_back",
    "a slower publisher in the window of 5 (1516)": "duplicate_window_boundary",
    "a slower publisher beyond the window (2531)": "far_duplicate_ends_the_stream",
    "two Behind in flight (23928, 23250)": "two_behind_answers_in_flight",
    "a burst of blocks (1563, 1447)": "burst_of_blocks",
    "a restarted block (1290)": "restart_in_mid_block",
    "verdicts out of order (638, 1478)": "verdicts_out_of_order",
    "a failed verification is not acknowledged (1718)": "verification_fails",
    "a resend after a bad proof (1631)": "failed_winner_is_not_selected_again",
    "a block that grows without end (26949)": "block_larger_than_the_limit",
    "a broken header": "malformed_item",
    "an early header": "behind_is_not_terminal",
    "a set without items": "empty_set",
    "a server error": "persistence_fails",
}
OTHERS = [name for name, case in CASES.items() if playable(case) and name not in BUGS.values()]


def play(case: Case, folder: Path) -> None:
    async def run() -> None:
        async with stage(case, folder):
            pass

    asyncio.run(run())


@pytest.mark.parametrize("bug", [bug for bug, name in BUGS.items() if name in CASES])
def test_a_node_does_not_have_the_bug(bug: str, tmp_path: Path) -> None:
    assert playable(CASES[BUGS[bug]])
    play(CASES[BUGS[bug]], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_node_answers_as_in_the_scenario(name: str, tmp_path: Path) -> None:
    play(CASES[name], tmp_path)


def test_a_publisher_restarts_with_unacknowledged_blocks_25389(tmp_path: Path) -> None:
    """Its blocks are complete and not durable: they are skipped, and acknowledged when they are durable."""
    block = [{"header": 5}, {"other": 5, "bytes": 3}, {"proof": 5}]
    second = [{"header": 6}, {"proof": 6}]
    steps = [
        {"connect": "alice"},
        {"from": "alice", "send": {"block_items": block}},
        {"from": "alice", "send": {"end_of_block": 5}},
        {"from": "alice", "send": {"block_items": second}},
        {"from": "alice", "send": {"end_of_block": 6}},
        {"disconnect": "alice"},
        {"connect": "alice#2"},
        {"from": "alice#2", "send": {"block_items": block}},
        {"from": "alice#2", "send": {"end_of_block": 5}},
        {"from": "alice#2", "send": {"block_items": second}},
        *({verdict: number} for number in (6, 5) for verdict in ("verified", "persisted")),
    ]
    sent = [
        (2, "node", {"complete": {"block": 5, "attempt": 1}}),
        (4, "node", {"complete": {"block": 6, "attempt": 1}}),
    ]
    sent += [(step - 1, "node", {"start": {"block": 4 + step // 2, "attempt": 1}}) for step in (2, 4)]
    sent += [(7, "alice#2", {"skip_block": 5}), (9, "alice#2", {"skip_block": 6})]
    sent += [(13, "alice#2", {"acknowledgement": 6})]
    expect = [{"step": step, "to": to, "send": send} for step, to, send in sent]
    play({"config": {"last_stored": 4}, "steps": steps, "expect": expect}, tmp_path)


@on_loop
async def test_blocks_that_are_stored_ahead_and_live_ones_interleave_2470(tmp_path: Path) -> None:
    store = BodyStore(tmp_path, "items:1")
    for number in (1, 3, 4, 6):
        store.add(number, b"", b"", b"", 1).result(60)
    store.close()
    async with serving(tmp_path) as served, publisher(served.port) as one:
        assert served.promoted == ids(1)
        await one.block(2)
        assert await one.next() == Acknowledgement(4)
        await one.send(BlockItemSet((header(6),)))
        assert await one.next() == SkipBlock(6)
        await one.block(5)
        while await one.next() != Acknowledgement(6):
            pass
        assert served.promoted == ids(1, 2, 3, 4, 5, 6)


@on_loop
async def test_a_burst_of_200_blocks_is_acknowledged_though_nobody_waits_1931(tmp_path: Path) -> None:
    """A node with as many open blocks as it may have reads on when it has caught up: no block is sent twice."""
    async with serving(tmp_path) as served, publisher(served.port) as one:
        for number in range(201):
            await one.block(number)
        while await one.next() != Acknowledgement(200):
            pass
        assert served.node.responses.keys() == {"acknowledgement"}
        assert served.promoted == ids(*range(201))


@on_loop
async def test_a_block_of_many_small_sets_is_acknowledged_2931(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, publisher(served.port) as one:
        await one.send(BlockItemSet((header(1),)))
        for _ in range(3_000):
            await one.send(BlockItemSet((b"\x12\x01a",)))
        await one.send(BlockItemSet((proof(1),)), BlockEnd(1))
        assert await one.next() == Acknowledgement(1)
        assert served.node.ignored == 0
