"""Recorded blocks as a :class:`~cardinal_devkit.testing.node.NodeChain`, with faults of real nodes as controls.

    chain = ReplayChain(read_recorded("fixtures/mainnet"), chain_id=1)
    chain.set_head(chain.hash_at(14_000_003))

Rules:

1. Every added block exists by hash; the canonical chain is exactly the ancestry of the head.
2. Responses are encoded once, when a block is added, so that a replay measures its reader and not itself.
3. Heads move, blocks vanish and responses become wrong only by controls.
"""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from cardinal.errors import ConfigurationError, MissingExtraError

try:
    import msgspec
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("A replay of recorded blocks", "evm") from absent

if TYPE_CHECKING:
    from .node import Json, Listener, Tag

JsonObject: TypeAlias = Mapping[str, Any]
"""A block, header or receipt in the form of JSON-RPC."""

Announce: TypeAlias = Literal["each", "final", "silent"]
"""``each``: every new block is announced, as anvil does; ``final``: the last only, as geth does in a reorg;
``silent``: none, as after ``anvil_rollback`` or ``debug_setHead``."""


class Recorded(NamedTuple):
    """A block with full transactions, and its receipts in order."""

    block: JsonObject
    receipts: Sequence[JsonObject]


def read_recorded(folder: Path | str) -> list[Recorded]:
    """Blocks of a folder of ``<number>.json.gz`` files with the members ``block`` and ``receipts``, by number.

    Raises:
        ConfigurationError: the folder holds no such file.

    """
    paths = [path for path in Path(folder).glob("*.json.gz") if path.name.removesuffix(".json.gz").isdigit()]
    if not paths:
        raise ConfigurationError(f"No recorded blocks (<number>.json.gz) in {folder}.", setting="folder")
    files = [msgspec.json.decode(gzip.decompress(path.read_bytes())) for path in paths]
    return sorted(
        (Recorded(file["block"], file["receipts"]) for file in files), key=lambda one: int(one.block["number"], 16)
    )


class _Stored(NamedTuple):
    number: int
    parent: str
    header: Json
    full: msgspec.Raw
    brief: msgspec.Raw
    receipts: msgspec.Raw


class ReplayChain:
    """Blocks by hash, a head, and controls.

    Arguments:
        blocks: recorded blocks; the head is the last of them.
        chain_id: the response to ``eth_chainId``.

    Attributes:
        safe: number of the block with the tag ``safe``; None refuses the tag.
        finalized: the same for ``finalized``.

    Controls may be called from any thread; heads are announced in the caller's.

    """

    def __init__(self, blocks: Iterable[Recorded] = (), *, chain_id: int = 1) -> None:
        self.safe: int | None = None
        self.finalized: int | None = None
        self._chain_id = chain_id
        self._lock = threading.RLock()
        self._stored: dict[str, _Stored] = {}
        self._canonical: dict[int, str] = {}
        self._head = -1
        self._uncles: dict[str, Sequence[JsonObject]] = {}
        self._by_transaction: dict[str, dict[str, msgspec.Raw]] = defaultdict(dict)
        self._listeners: list[Listener] = []
        self._held: dict[tuple[str, str], int] = {}
        self._swapped: dict[tuple[str, str], tuple[int, Json]] = {}
        last = None
        for one in blocks:
            last = self.add(one.block, one.receipts)
        if last is not None:
            self.set_head(last, announce="silent")

    # --- controls ----------------------------------------------------------------------------------------------

    def add(self, block: JsonObject, receipts: Sequence[JsonObject], uncles: Sequence[JsonObject] = ()) -> str:
        """Add a block that is not an ancestor of the head. Returns its hash."""
        block_hash = str(block["hash"])
        brief = {**block, "transactions": [transaction["hash"] for transaction in block["transactions"]]}
        written = [msgspec.Raw(msgspec.json.encode(receipt)) for receipt in receipts]
        with self._lock:
            self._stored[block_hash] = _Stored(
                number=int(block["number"], 16),
                parent=str(block["parentHash"]),
                header={name: value for name, value in block.items() if name not in {"transactions", "uncles"}},
                full=msgspec.Raw(msgspec.json.encode(block)),
                brief=msgspec.Raw(msgspec.json.encode(brief)),
                receipts=msgspec.Raw(msgspec.json.encode(written)),
            )
            self._uncles[block_hash] = uncles
            for receipt, raw in zip(receipts, written, strict=True):
                self._by_transaction[str(receipt["transactionHash"])][block_hash] = raw
        return block_hash

    def set_head(self, block_hash: str | None, *, announce: Announce = "each") -> None:
        """Make an added block the head, and its ancestry the canonical chain.

        Arguments:
            block_hash: the new head: a descendant, a block of another branch, or an ancestor (a rewind).
            announce: the heads that subscribers are notified of.

        """
        with self._lock:
            if block_hash is None or block_hash not in self._stored:
                raise ConfigurationError(f"No block {block_hash} was added to the replay.", setting="head")
            fresh: list[_Stored] = []
            walk: str | None = block_hash
            canonical = dict(self._canonical)
            while walk is not None and (stored := self._stored.get(walk)) is not None:
                if canonical.get(stored.number) == walk:
                    break
                canonical[stored.number] = walk
                fresh.append(stored)
                walk = stored.parent
            self._head = self._stored[block_hash].number
            self._canonical = {number: name for number, name in canonical.items() if number <= self._head}
            listeners = list(self._listeners)
        if announce == "silent":
            return
        announced = fresh[:1] if announce == "final" else reversed(fresh)
        for stored in announced:
            for listener in listeners:
                listener(stored.header)

    def announce(self, header: Json) -> None:
        """Notify subscribers of a head, which may be any object, also an unknown block."""
        for listener in list(self._listeners):
            listener(header)

    def forget(self, block_hash: str) -> None:
        """Remove a block, as anvil removes orphans: it is ``null`` from now on."""
        with self._lock:
            self._stored.pop(block_hash, None)

    def hold(self, block_hash: str, what: Literal["block", "receipts"], answers: int) -> None:
        """Answer ``null`` for a number of requests before returning the block or its receipts."""
        self._held[what, block_hash] = answers

    def swap(self, block_hash: str, what: Literal["block", "receipts"], answer: Json, answers: int) -> None:
        """Return a wrong response a number of times for a block (full) or for its receipts."""
        self._swapped[what, block_hash] = (answers, answer)

    # --- NodeChain ---------------------------------------------------------------------------------------------

    def chain_id(self) -> int:
        """The chain id."""
        return self._chain_id

    def head(self) -> int:
        """The number of the head."""
        return self._head

    def mark(self, tag: Tag) -> int | None:
        """The number that was set for ``safe`` or ``finalized``."""
        return self.safe if tag == "safe" else self.finalized

    def hash_at(self, number: int) -> str | None:
        """The hash at a height of the canonical chain."""
        return self._canonical.get(number)

    def block(self, block_hash: str, *, full: bool) -> Json | None:
        """An added block that was not removed, or the response of a control."""
        stored = self._stored.get(block_hash)
        if stored is None:
            return None
        if not full:
            return stored.brief
        return self._moody("block", block_hash, stored.full)

    def receipts(self, block_hash: str) -> Json | None:
        """The receipts that were added with a block, or the response of a control."""
        stored = self._stored.get(block_hash)
        return None if stored is None else self._moody("receipts", block_hash, stored.receipts)

    def transaction_receipt(self, transaction_hash: str) -> Json | None:
        """The receipt of a transaction in the canonical chain."""
        for block_hash, receipt in self._by_transaction.get(transaction_hash, {}).items():
            stored = self._stored.get(block_hash)
            if stored is not None and self._canonical.get(stored.number) == block_hash:
                return receipt
        return None

    def uncle(self, block_hash: str, index: int) -> Json | None:
        """An uncle that was added with its block."""
        uncles = self._uncles.get(block_hash, ())
        return uncles[index] if block_hash in self._stored and index < len(uncles) else None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Notify a listener of the heads that ``set_head`` and ``announce`` announce."""
        self._listeners.append(listener)

        def cancel() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return cancel

    def _moody(self, what: str, block_hash: str, truth: Json) -> Json | None:
        """The true response, unless a control has other responses left."""
        with self._lock:
            if (held := self._held.get((what, block_hash), 0)) > 0:
                self._held[what, block_hash] = held - 1
                return None
            left, wrong = self._swapped.get((what, block_hash), (0, None))
            if left > 0:
                self._swapped[what, block_hash] = (left - 1, wrong)
                return wrong
            return truth
