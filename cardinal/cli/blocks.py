"""Facts of a block as the commands print them: its time, its transactions, short hashes and ages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cardinal.apps.evm import rlp
from cardinal.consuming.reports import short
from cardinal.errors import ApplicationError
from cardinal.protocols.streams.payload import Payload

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.protocols.streams.events import ChainUpdate
    from cardinal.protocols.streams.payload import AnyPayload

_TIMESTAMP: Final = 11
"""Its index in an Ethereum header."""
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """Printed facts of a block's content.

    Attributes:
        time: of the block, in unix seconds; None where it is unknown.
        transactions: their number; None where the application has none.
        messages: keys that the block writes or deletes; None where its content is missing.

    """

    time: int | None = None
    transactions: int | None = None
    messages: int | None = None


def facts_of(app: Application, block: AnyPayload) -> BlockFacts:
    """The facts of a block."""
    if not isinstance(block, Payload):
        return BlockFacts()
    messages = len(block.updates) + len(block.deletes)
    if app.name != "evm":
        return BlockFacts(None, None, messages)
    root = f"c/{int(app.chain.removeprefix('evm:')):x}/b/{block.hash.hex()}"
    time = _header_time(block.updates.get(f"{root}/h"))
    transactions = f"{root}/t/"
    return BlockFacts(time, sum(path.startswith(transactions) for path in block.updates), messages)


def _header_time(header: bytes | None) -> int | None:
    try:
        item = b"" if header is None else rlp.decode_list(header)[_TIMESTAMP]
    except (ApplicationError, IndexError):
        return None
    return int.from_bytes(item) if isinstance(item, bytes) and item else None


def clock(seconds: int | None) -> str:
    """A time in UTC; ``-`` for none, or for one that no calendar has."""
    try:
        return "-" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "-"


def age(seconds: float | None) -> str:
    """A duration in its largest unit: ``1.2 s``, ``4 min``, ``3 h``, ``12 d``; ``-`` where there is none."""
    if seconds is None:
        return "-"
    if abs(seconds) < _MINUTE:
        return f"{seconds:.1f} s"
    for unit, length in (("d", _DAY), ("h", _HOUR)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / _MINUTE:.0f} min"


def reorg_line(update: ChainUpdate) -> str:
    """A reorg in one line."""
    old = update.removed[0]
    new = f"to {update.added[-1].number} {short(update.added[-1].hash)}" if update.added else "to its ancestor"
    depth = len(update.removed)
    return f"! reorg of {depth} block{'' if depth == 1 else 's'}: from {old.number} {short(old.hash)} {new}"
