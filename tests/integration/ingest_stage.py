"""Scenarios of `publish-arbiter.json` on a real node: gRPC clients with certificates, and a store that is held.

A step is over when the node has taken it and every answer to it has come; what else comes is noticed at the end.
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

from cardinal._concurrency import new_future, settle
from cardinal.errors import ApplicationError, StoreError, VerifierError
from cardinal.protocols.publish import METHOD, SERVICE, ArbiterSettings, Response, decode_response, encode
from cardinal.protocols.streams import Payload
from cardinal.server.ingest.listener import Listener
from cardinal.server.ingest.node import Deliver, IngestNode
from cardinal.server.ingest.store import BodyStore
from cardinal.server.ingest.tls import server_credentials
from certificates import Authority
from model.publish_scenario import label, request, sent

DEADLINE = 30.0
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

    def connect(self, connection: Hashable, identity: str, deliver: Deliver) -> None:
        super().connect(connection, identity, deliver)
        self.taken[connection] = 0
        self.order.append(connection)

    def receive(self, connection: Hashable, data: bytes) -> None:
        super().receive(connection, data)
        self.taken[connection] += 1

    def disconnect(self, connection: Hashable) -> None:
        super().disconnect(connection)
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
        return bool(self.found) and "end_stream" in self.found[-1]


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
    credentials = server_credentials(server.certificate, server.key, authority.certificate)
    try:
        async with Listener(node, "127.0.0.1:0", credentials) as listener:
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
