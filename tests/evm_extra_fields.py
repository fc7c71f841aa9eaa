"""Fields that a node adds to a block, derived from its other parts, and false values for them.

A lie that changes a text meets a check or nothing; one that adds a field may change how the rest is read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import msgspec

from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcLog, RpcReceipt, RpcTransaction, RpcWithdrawal
from examples import examples

TOTAL = "totalDifficulty"

Path = tuple[str | int, ...]

SHAPES: dict[str, type[msgspec.Struct]] = {
    "block": RpcBlock,
    "transactions": RpcTransaction,
    "receipts": RpcReceipt,
    "logs": RpcLog,
    "withdrawals": RpcWithdrawal,
}
"""What is read of the parts of a block, by what they stand in."""

SAID = ("0x", "0x0", "0x1", "0x01", "0x7e", "0x" + "77" * 20, "0x" + "77" * 32, True, [])


def parts(value: Any, path: Path = ()) -> list[Path]:  # noqa: ANN401 -- JSON
    """The paths of all objects in JSON of which a known kind is read."""
    if isinstance(value, dict):
        own = [path] if _shape(path) else []
        return own + [found for name, part in value.items() for found in parts(part, (*path, name))]
    if isinstance(value, list):
        return [found for at, part in enumerate(value) for found in parts(part, (*path, at))]
    return []


def with_more(whole: Any, path: Path, other: Callable[[Any], Any]) -> Iterator[tuple[Path, Any]]:  # noqa: ANN401 -- JSON
    """The same with one more field in the object at this path: alone, and with each text beside it changed or null.

    The total difficulty is left out: that is the feed's business. Fewer texts are changed where laws run
    fewer examples.
    """
    lie = copy.deepcopy(whole)
    shown = lie
    for step in path:
        shown = shown[step]
    shape = _shape(path)
    step = max(1, 100 // examples(100))
    first = cycle(range(step))  # others beside each value, so that all are met
    texts = {name: was for name, was in shown.items() if isinstance(was, str) and name != TOTAL}
    for name in [field.encode_name for field in msgspec.structs.fields(shape)] if shape else []:
        if shown.get(name) is not None or name == TOTAL or name.startswith(" "):  # no node returns these
            continue
        for said in SAID:
            shown[name] = said
            yield (*path, name), lie
            for beside, was in islice(texts.items(), next(first), None, step):
                for instead in (other(was), None):
                    shown[beside] = instead
                    yield (*path, name, beside), lie
                shown[beside] = was
        shown[name] = None


def _shape(path: Path) -> type[msgspec.Struct] | None:
    names = [step for step in path if isinstance(step, str)]
    return SHAPES.get(names[-1]) if names else None
