"""Publisher of a cluster that keeps pushing, and what must hold of its chain in the end."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cluster_stage import DEADLINE, MEMBERS, until
from kafka_streams import everything_on
from killing import consumed

from cardinal import Publisher
from cardinal.apps import blob
from cardinal.errors import CardinalError, NodeBehindError, RefusedError, UnreachableError
from cardinal.protocols.streams.wire.messages import BATCH, BATCH_MSG
from cardinal.server.ingest.cluster.promoting import Agreed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cluster_stage import Cluster

    from cardinal.protocols.streams import Payload

_PAUSE_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.05


class Pushing:
    """Publisher on a thread of its own, of a chain that grows.

    Arguments:
        url: of ingest nodes.
        cluster: of the nodes.

    """

    def __init__(self, url: str, cluster: Cluster) -> None:
        self.chain: list[Payload] = []
        self.last = -1
        """The highest acknowledged block; -1 while there is none."""
        self.failures: list[BaseException] = []
        self._cluster = cluster
        self._url = url
        self._next = 0
        self._acknowledged: set[int] = set()
        self._stopped = threading.Event()
        self.publisher = self._open()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _open(self) -> Publisher:
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                return Publisher(self._url, self._cluster.app, publisher_id="faults")
            except (RefusedError, UnreachableError):
                assert time.monotonic() < deadline, self._cluster.log("a")
                time.sleep(_LOOK_SECONDS)

    @property
    def node(self) -> str:
        """The member that blocks go to; empty while there is none."""
        port = (self.publisher.node or "").rpartition(":")[2]
        return next((name for name, one in self._cluster.ports.items() if str(one) == port), "")

    def where(self) -> str:
        """The member that blocks go to, as soon as there is one."""
        until(lambda: self.node != "", "no member takes blocks", self._cluster)
        return self.node

    def more(self, blocks: int = 10, what: str = "nothing more is acknowledged") -> None:
        """Wait until so many blocks more are acknowledged."""
        goal = self.last + blocks
        until(lambda: self.last >= goal, what, self._cluster)

    def finish(self) -> list[Payload]:
        """Push no more, wait until everything is acknowledged; the chain."""
        self._stopped.set()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        until(
            lambda: self.last == self._next - 1 == len(self.chain) - 1, "not everything is acknowledged", self._cluster
        )
        self.publisher.close()
        assert not self.failures, self.failures
        return self.chain

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE_SECONDS) or len(self._acknowledged) < len(self.chain):
            if self._next == len(self.chain):
                if self._stopped.is_set():
                    time.sleep(_LOOK_SECONDS)
                    continue
                self.chain.append(self._block(self._next))
            block = self.chain[self._next]
            try:
                self.publisher.add(block).add_done_callback(partial(self._done, block.number))
            except NodeBehindError as behind:
                self._next = behind.number
            except CardinalError as error:
                self.failures.append(error)
                return
            else:
                self._next = block.number + 1

    def _done(self, number: int, done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            self._acknowledged.add(number)
            self.last = max(self.last, number)
        elif isinstance(error, NodeBehindError):
            self._next = error.number

    def _block(self, number: int) -> Payload:
        name = f"{number}".encode().rjust(32, b"\0")
        parent = f"{number - 1}".encode().rjust(32, b"\0") if number else bytes(32)
        return blob.payload(blob.Blob(number, name, parent, {"one": name * (number % 50), "two": name}))


def check(cluster: Cluster, chain: list[Payload]) -> None:
    """Every block of an acknowledged chain is on the topics once, parents first; a new consumer has the chain.

    No member blames another one, but for silence, as of a link that was cut: all are honest.
    """
    for name in MEMBERS:
        blamed = [line for line in cluster.log(name).splitlines() if "broke the protocol" in line]
        blamed = [line for line in blamed if "(ExceededTimeLimit)" not in line]
        assert not blamed, (name, blamed[:3])
    assert consumed(cluster.url, cluster.app, chain[-1].hash) == chain
    records = everything_on(f"{cluster.url}?transactional=update", cluster.app)
    keys = [record.key for record in records if record.key[0] in {BATCH, BATCH_MSG}]
    assert len(keys) == len(set(keys))
    batches = [record for record in records if record.key[0] == BATCH]
    places = {record.key[1:33]: Agreed.of(record) for record in batches}
    assert places.keys() == {block.hash for block in chain}
    agreed = [place for place in (places[block.hash] for block in chain) if place is not None]
    assert len(agreed) == len(chain)
    assert all(before < after for before, after in itertools.pairwise(agreed))
    batches.sort(key=lambda record: (record.partition, record.offset))
    for before, after in itertools.pairwise(batches):
        assert before.partition < after.partition or places[before.key[1:33]] < places[after.key[1:33]]
