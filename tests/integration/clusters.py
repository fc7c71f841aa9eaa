"""Clusters of tests: keys, files, and the records that members would write to the claim log."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kafka_streams import everything_on, named, small_stream

from cardinal.protocols.replication import (
    Checkpoint,
    Claim,
    ClaimLog,
    Epoch,
    Header,
    Item,
    Marker,
    Opened,
    State,
    claim_bytes,
    decode_record,
    encode,
    record_bytes,
    saved_bytes,
    seal_header,
)
from cardinal.server.ingest.cluster.claims import ClaimWriter
from cardinal.server.ingest.cluster.config import ClusterFile, load_cluster
from cardinal.server.ingest.cluster.keys import SecretKey, generate_key, load_key, verify
from cardinal.server.ingest.cluster.topics import claims_topic, promoted_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cardinal.apps import Application

DEADLINE = 60.0


@dataclass
class TestCluster:
    """A cluster on topics of its own; nothing of it runs. ``state`` is for a test to remember."""

    __test__ = False

    url: str
    folder: Path
    app: Application = field(default_factory=lambda: small_stream(f"c-{uuid.uuid4().hex[:10]}"))
    keys: dict[str, SecretKey] = field(default_factory=dict)
    state: State = field(init=False)

    def file(self, members: str = "abc", *, epoch: int = 0, metrics: Mapping[str, str] | None = None) -> Path:
        """`cluster.toml` of these members."""
        lines = ['name = "main"', f"epoch = {epoch}"]
        for number, one in enumerate(members, 1):
            key = self.key(one)
            lines += [f"[members.{one}]", f'key = "{key.public.hex()}"', f'address = "127.0.0.1:{2_000 + 10 * number}"']
            lines += [f'metrics = "{metrics[one]}"'] if metrics and one in metrics else []
        path = self.folder / f"cluster-{epoch}-{members}.toml"
        path.write_text("\n".join(lines))
        return path

    def key(self, member: str) -> SecretKey:
        """The key of a member, in the file `a.key`."""
        if member not in self.keys:
            path = self.folder / f"{member}.key"
            self.keys[member] = load_key(path) if path.exists() else generate_key(path)
        return self.keys[member]

    # --- the log ----------------------------------------------------------------------------------------------------

    def values(self, epoch: int = 0) -> list[bytes]:
        """Records of an epoch's claim log."""
        return [one.value for one in everything_on(self.url, self.app, [claims_topic(self.app.default_topic, epoch)])]

    def opened(self, file: Path) -> tuple[Epoch, State]:
        """The Epoch record and its state, as a member accepts it."""
        found = load_cluster(file)
        log, value = ClaimLog(found.membership(self.app), verify), self.values(found.epoch)[0]
        verdict = log.read(0, value)
        assert isinstance(verdict, Opened)
        record = decode_record(value)
        assert isinstance(record, Epoch)
        return record, verdict.state

    def append(self, values: Iterable[bytes], epoch: int = 0) -> None:
        """Append records to an epoch's claim log."""
        self._write(claims_topic(self.app.default_topic, epoch), values)

    def claims(self, file: Path, state: State, batches: Iterable[str], claimers: str) -> tuple[list[bytes], State]:
        """Claims of batches such as `"1a 2a"`, above the state's head, and the state after them."""
        found, values = load_cluster(file), []
        for spec, claimer in zip(batches, claimers, strict=True):
            header = self._header(found, state, spec)
            values.append(encode(self._claim(found, header, claimer)))
            state = state.after(header)
        return values, state

    def checkpoint(self, file: Path, state: State, author: str) -> bytes:
        """A checkpoint with this state."""
        unsigned = Checkpoint(state.raw, author, b"")
        cluster = load_cluster(file).membership(self.app).cluster
        return encode(replace(unsigned, signature=self.key(author).sign(record_bytes(cluster, unsigned))))

    def promote(self, file: Path, num: int, index: int, writer: str) -> None:
        """Write a marker."""
        membership = load_cluster(file).membership(self.app)
        marker = Marker(membership.cluster, membership.stream, num, index, bytes(32), writer)
        self._write(promoted_topic(self.app.default_topic), [encode(marker)])

    def _write(self, topic: str, values: Iterable[bytes]) -> None:
        writer = ClaimWriter(self.url, topic)
        try:
            for done in [writer.append(self.app.default_topic.encode(), value) for value in values]:
                done.result(DEADLINE)
        finally:
            writer.close()

    def _header(self, file: ClusterFile, state: State, spec: str) -> Header:
        membership, names = file.membership(self.app), spec.split()
        numbers = [int("".join(filter(str.isdigit, name))) for name in names]
        assert all(low + 1 == high for low, high in pairwise(numbers))
        parent = state.head.hash if state.ring else named(f"{numbers[0] - 1}a")
        items = [Item(number, named(name), bytes(32)) for number, name in zip(numbers, names, strict=True)]
        return seal_header(
            membership.cluster, membership.stream, state.num + 1, state.hash, state.digest, parent, numbers[-1], items
        )

    def _claim(self, file: ClusterFile, header: Header, claimer: str) -> Claim:
        saved = saved_bytes(header.cluster, header.stream, header.num, header.hash)
        certificate = tuple((one, self.key(one).sign(saved)) for one in sorted(file.members))
        unsigned = Claim(header, claimer, 0, certificate, b"")
        return replace(unsigned, signature=self.key(claimer).sign(claim_bytes(header.cluster, unsigned)))
