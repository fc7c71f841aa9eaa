"""A server of a stream inside the test's process, on a thread of its own; and what to read from it."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cardinal.producer import Producer
from cardinal.protocols.streams import Payload
from cardinal.protocols.streams.types import Routed
from cardinal_devkit import ChainGenerator, MemoryBroker
from cardinal_relay.server import ServeService, ServeSettings, ServeStatus
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from cardinal.apps import Application
    from cardinal.protocols.streams import Record
    from cardinal.transports import Source
    from cardinal.transports.registry import Topics

DEADLINE = 60.0


APP = ChainGenerator().application


class Served:
    """A service, called from another thread than its own."""

    def __init__(self, service: ServeService, app: Topics, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self._loop = loop
        self.do(service.start(app))
        self.port = service.port

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def status(self) -> ServeStatus:
        async def status() -> ServeStatus:
            return self.service.status()

        found: ServeStatus = self.do(status())
        return found

    def do(self, what: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - what the coroutine gives
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(DEADLINE)

    def stop(self) -> None:
        self.do(self.service.stop())


@contextmanager
def serving(url: str, app: Topics, **settings: Any) -> Iterator[Served]:  # noqa: ANN401 - of ServeSettings
    """A server of this stream, on a free port unless one is given."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    served = None
    try:
        served = Served(ServeService(url, ServeSettings(**{"port": 0, **settings})), app, loop)
        yield served
    finally:
        if served is not None:
            served.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE)
        loop.close()


def from_start(source: Source) -> Source:
    source.assign({where: low for where, (low, _) in source.watermarks().items()})
    return source


def read(source: Source, count: int, limit: int = 1_000) -> list[Record]:
    """So many records, and nothing after them."""
    found: list[Record] = []
    until(lambda: len(found) >= count, step=lambda: found.extend(source.poll(limit, 0.2)))
    found += source.poll(limit, 0.05)
    assert len(found) == count
    return found


def page(address: str, path: str) -> tuple[int, str]:
    """Status and text of a page of a metrics endpoint."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=DEADLINE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def fill(broker: MemoryBroker, count: int, size: int = 100, first: int = 0) -> None:
    """Send so many records of so many bytes that no compression helps."""
    sink = broker.sink(APP, producer_id="a")
    for begin in range(first, first + count, 500):
        numbers = range(begin, min(begin + 500, first + count))
        block = [
            Routed(APP.default_topic, b"\x03" + n.to_bytes(32, "big"), random.Random(n).randbytes(size))
            for n in numbers
        ]
        sink.send(block, None).result(DEADLINE)
    sink.close()


def listens(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def line(app: Application, first: int, last: int) -> list[Payload]:
    """Blocks of one chain without forks."""
    chain = int(app.chain.rpartition(":")[2])
    blocks = []
    for number in range(first, last + 1):
        name = number.to_bytes(32, "big")
        prefix = f"c/{chain:x}/b/{name.hex()}"
        updates = {f"{prefix}/t/{index}": b"tx%d" % index for index in range(4)} | {f"{prefix}/h": b"header"}
        blocks.append(Payload(number, name, (number - 1).to_bytes(32, "big"), number, updates))
    return blocks


def publish(url: str, app: Application, payloads: list[Payload]) -> None:
    """Publish blocks, all acknowledged."""
    with Producer(url, app, producer_id="a") as producer:
        for payload in payloads:
            producer.add(payload)
        producer.flush(DEADLINE)


def metrics(address: str) -> dict[str, float]:
    """The server's metrics, by their names without the prefix."""
    status, text = page(address, "/metrics")
    assert status == 200
    pairs = re.findall(r"^cardinal_serve_(\w+) (\S+)$", text, re.MULTILINE)
    assert len(pairs) == text.count("# HELP cardinal_serve_")
    return {name: float(value) for name, value in pairs}
