"""Chains as raw rows and lakes as values, for tests of writers and readers of ``table=raw``.

``script("1a 2a 3a | -3a -2a 2b 3b")`` is two updates: three blocks join, then a reorg removes two and adds two. A
block's name is its number and its fork; its hash, content and time follow from the name alone.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cardinal.protocols.streams.wire import avro

from .lake.as_of import NOW, AsOf
from .lake.commit import LakeCommitter
from .lake.decode import write_task
from .lake.opened import OpenTables
from .lake.query import Snapshot
from .lake.tables import LakeSettings
from .rows import (
    ADDED,
    REMOVED,
    AppSpec,
    RawRow,
    encode_content,
    payload_content,
    raw_batch,
    weight_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from cardinal.protocols.streams.payload import Payload

    from .lake.location import LakeLocation
    from .lake.state import LakeState

APP: Final = AppSpec("test", {}).text()
LINEAGE: Final = "lineage-1"

_GENESIS_TIME: Final = 1_700_000_000_000_000
_BLOCK_TIME: Final = 12_000_000
_NAME: Final = re.compile(r"(-?)(\d+)(\w+)")


def block_hash(name: str) -> bytes:
    """The hash of the block with this name, 32 bytes."""
    return hashlib.sha256(name.encode()).digest()


def content(name: str) -> Mapping[bytes, bytes]:
    """A few paths and values that distinguish blocks; one path is not UTF-8."""
    return {f"x/{name}/{index}".encode(): name.encode() * index for index in range(3)} | {b"\xff/" + name.encode(): b""}


class Script:
    """Writer of updates as raw rows with dense seqs, one lineage and one application."""

    def __init__(
        self,
        *,
        lineage: str = LINEAGE,
        app: str = APP,
        first_seq: int = 1,
        values: Callable[[str], Mapping[bytes, bytes]] = content,
    ) -> None:
        self._lineage = lineage
        self._app = app
        self._seq = first_seq
        self._values = values
        self._parents: dict[str, str] = {}
        self._chain: list[str] = []

    @property
    def chain(self) -> list[str]:
        """The names of the chain's blocks, lowest first."""
        return list(self._chain)

    def update(self, text: str) -> list[RawRow]:
        """The rows of one update, for example ``-3a -2a 2b 3b``. ValueError where the chain does not allow it."""
        update_id = self._seq
        return [self._row(sign, number, fork, update_id) for sign, number, fork in _NAME.findall(text)]

    def _row(self, sign: str, number: str, fork: str, update_id: int) -> RawRow:
        name = f"{number}{fork}"
        if sign:
            if not self._chain or self._chain.pop() != name:
                raise ValueError(f"{name} is not the head")
        else:
            if self._chain and int(number) != _number(self._chain[-1]) + 1:
                raise ValueError(f"{name} does not follow {self._chain[-1]}")
            self._parents.setdefault(name, self._chain[-1] if self._chain else "genesis")
            self._chain.append(name)
        seq, self._seq = self._seq, self._seq + 1
        return RawRow(
            seq=seq,
            change=REMOVED if sign else ADDED,
            update_id=update_id,
            number=int(number),
            hash=block_hash(name),
            block_time=_GENESIS_TIME + int(number) * _BLOCK_TIME,
            published_at=None,
            lineage=self._lineage,
            app=self._app,
            parent=block_hash(self._parents[name]),
            weight=weight_bytes(int(number)),
            content=encode_content([b"gone/" + name.encode()], self._values(name)),
        )


def script(text: str, **settings: str) -> list[list[RawRow]]:
    """The updates of a text, separated by ``|``. ``settings``: ``lineage``, ``app``."""
    writer = Script(**settings)  # type: ignore[arg-type] # the settings of texts only
    return [writer.update(update) for update in text.split("|")]


def payload_row(payload: Payload, app: str, seq: int = 1, change: int = ADDED, update_id: int = 1) -> RawRow:
    """The row of a block with this content."""
    key = (seq, change, update_id, payload.number, payload.hash, None, None, LINEAGE, app)
    return RawRow(*key, payload.parent, weight_bytes(payload.weight), payload_content(payload))


def replay(rows: Iterable[RawRow]) -> dict[int, RawRow]:
    """The chain after some rows: number to the row that added its block."""
    chain: dict[int, RawRow] = {}
    for row in sorted(rows, key=lambda row: row.seq):
        if row.change == ADDED:
            chain[row.number] = row
        else:
            del chain[row.number]
    return chain


def _number(name: str) -> int:
    return int(re.sub(r"\D.*", "", name))


@dataclass(frozen=True)
class LakeImage:
    """Content of a lake, in a form that can be compared. Order is by seq or height, then by path.

    Attributes:
        chain: number, hash and seq of every canonical block.
        ledger: seq, change, hash and update id of every event.
        payload: seq, path and value of every row that was ever written; a value of None is a delete.
        current: the same of the ``current`` view.

    """

    chain: list[tuple[int, bytes, int]]
    ledger: list[tuple[int, int, bytes, int]]
    payload: list[tuple[int, bytes, bytes | None]]
    current: list[tuple[int, bytes, bytes | None]]


def image_of(rows: Sequence[RawRow]) -> LakeImage:
    """The image that a lake must have after these rows, in any order of arrival."""
    chain = replay(rows)
    return LakeImage(
        chain=[(number, chain[number].hash, chain[number].seq) for number in sorted(chain)],
        ledger=[(row.seq, row.change, row.hash, row.update_id) for row in sorted(rows, key=lambda row: row.seq)],
        payload=_contents(row for row in rows if row.change == ADDED),
        current=_contents(chain.values()),
    )


def image(path: str, as_of: AsOf = NOW, *, storage: Mapping[str, str] | None = None) -> LakeImage:
    """The image of the lake at a path or URL, now or earlier, by its Python reader. LakeError where there is no lake.

    ``storage``: settings of the object store.
    """
    snapshot = Snapshot.at(path, storage, as_of)
    chain = snapshot.scan("canonical").read_all().to_pylist()
    ledger = snapshot.scan("events").read_all().to_pylist()
    return LakeImage(
        chain=sorted((row["number"], row["hash"], row["seq"]) for row in chain),
        ledger=sorted((row["seq"], row["change"], row["hash"], row["update_id"]) for row in ledger),
        payload=_paths(snapshot.scan("payload").read_all()),
        current=_paths(snapshot.scan("current_payload").read_all()),
    )


def commit_batch(
    location: LakeLocation,
    tasks: Iterable[Sequence[RawRow]],
    *,
    on_commit: Callable[[str], None] = lambda table: None,  # noqa: ARG005 - called with it
    settings: LakeSettings | None = None,
    opened: OpenTables | None = None,
) -> LakeState | None:
    """Write one batch as Spark would: every element of ``tasks`` is a task's rows, then the driver commits.

    ``opened``: the tables that the driver has open since its last batch.
    """
    chosen = settings or LakeSettings()
    results = [write_task([raw_batch(rows)], location, chosen) for rows in tasks]
    return LakeCommitter(location, chosen, on_commit, opened or OpenTables()).commit(results)


def _contents(rows: Iterable[RawRow]) -> list[tuple[int, bytes, bytes | None]]:
    found: list[tuple[int, bytes, bytes | None]] = []
    for row in rows:
        if row.content is None:
            continue
        deletes, updates = avro.read_content(row.content)
        found += [(row.seq, path, None) for path in deletes]
        found += [(row.seq, path, value) for path, value in updates.items()]
    return sorted(found, key=lambda entry: entry[:2])


def _paths(table: pa.Table) -> list[tuple[int, bytes, bytes | None]]:
    found = (
        (row["_seq"], row["path"].encode() if row["raw_path"] is None else row["raw_path"], row["value"])
        for row in table.to_pylist()
    )
    return sorted(found, key=lambda entry: entry[:2])
