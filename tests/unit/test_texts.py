"""Texts of values as people meet them: in a notebook, in a log, in an error."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType

import pytest

import cardinal
import cardinal_ethereum
from blocks import block, hash_of
from cardinal import apps, consuming
from cardinal.protocols import streams
from cardinal.protocols.streams.events import ChainUpdate
from cardinal.protocols.streams.payload import MissingPayload, PathMap, Payload
from cardinal.protocols.streams.types import BlockRef, Record, Routed
from cardinal.texts import Count, Readable, short_hash, text_of

HASH = bytes(range(1, 33))


@dataclass(frozen=True, slots=True, repr=False)
class Value(Readable):
    number: int
    name: str
    content: bytes
    hidden: bytes = field(default=b"secret", repr=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", "0x"),
        (bytes(range(20)), "0x000102030405060708090a0b0c0d0e0f10111213"),
        (HASH, "0x0102030405…"),
        (bytes(21), "0x0000000000…"),
        (HASH * 2, "0x0102030405… (64 bytes)"),
        (bytearray(b"ab"), "0x6162"),
        ("a", "'a'"),
        (None, "None"),
        ((b"a", 1), "(0x61, 1)"),
        ([b"a", [b"b"]], "[0x61, [0x62]]"),
        (frozenset({b"a"}), "{0x61}"),
        ((), "()"),
        (tuple(range(4)), "(0, 1, 2, … 4 in all)"),
        ({b"a": HASH, "b": None}, "{0x61: 0x0102030405…, 'b': None}"),
        (MappingProxyType({"a": b"b"}), "{'a': 0x62}"),
        (dict.fromkeys(range(1000)), "{0: None, 1: None, 2: None, … 1000 in all}"),
        (PathMap({b"a": HASH}), "PathMap(1 path)"),
        (BlockRef(7, HASH), "BlockRef(number=7, hash=0x0102030405…)"),
        (Value(1, "a", b"b"), "Value(number=1, name='a', content=0x62)"),
        (Routed("topic", HASH, b"a"), "Routed(topic='topic', key=0x0102030405…, value=0x61)"),
        (Record("t", 0, 7, b"", b"a")[:5], "('t', 0, 7, … 5 in all)"),
    ],
)  # fmt: skip
def test_a_value_reads_as_hexadecimal_and_is_short(value: object, text: str) -> None:
    assert text_of(value) == text


def test_a_record_names_its_fields() -> None:
    record = Record("t", 0, 7, b"", b"a", 5)
    assert (
        text_of([record])
        == "[Record(topic='t', partition=0, offset=7, key=0x, value=0x61, timestamp_ms=5, headers=())]"
    )


def test_a_block_reads_the_same_whatever_its_size() -> None:
    payload = Payload(7, HASH, bytes(32), 9, {f"path/{number}": HASH * 1000 for number in range(1000)})
    assert len(repr(payload)) < 500
    assert repr(MissingPayload(7, HASH)) == "MissingPayload(number=7, hash=0x0102030405…)"


def test_an_update_of_many_blocks_names_the_first_and_the_last() -> None:
    blocks = tuple(block(f"{number}a", f"{number - 1}a") for number in range(1, 1001))
    first, last = (hash_of(name)[:4].hex() for name in ("1a", "1000a"))
    assert repr(ChainUpdate(1000, (), blocks)) == f"<ChainUpdate 1..1000 +1:{first} … +1000:{last} (1000 blocks)>"
    assert str(ChainUpdate(1002, blocks[1:3][::-1], blocks)) == (
        f"<ChainUpdate 1..1002 -3:{hash_of('3a')[:4].hex()} -2:{hash_of('2a')[:4].hex()} "
        f"+1:{first} … +1000:{last} (1000 blocks)>"
    )


def public_values() -> Iterator[type]:
    """Dataclasses and named tuples with bytes that a user of streams and applications may meet."""
    for package in (streams, apps, cardinal_ethereum, consuming):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for name, kind in vars(importlib.import_module(module.name)).items():
                if inspect.isclass(kind) and kind.__module__ == module.name and not name.startswith("_"):
                    hints = [field.type for field in fields(kind)] if is_dataclass(kind) else []
                    if any("bytes" in str(hint) and "Callable" not in str(hint) for hint in hints):
                        yield kind


INTERNAL = {
    "BlockRows", "CursorSnapshot", "Decision", "EncodedBlock", "Fetched", "FollowerSettings", "Found", "GenesisAccount",
    "KnownTotal", "LearnedTotals", "Node", "OpenBlock", "OrderingSettings", "StartTotal", "Vote",
}  # fmt: skip
"""Values that no interface of ours returns."""


def test_no_public_value_prints_raw_bytes() -> None:
    generated = {kind.__name__ for kind in public_values() if hasattr(kind.__repr__, "__wrapped__")}
    assert generated == INTERNAL
    named = {getattr(cardinal, name) for name in cardinal.__all__ if inspect.isclass(getattr(cardinal, name, None))}
    assert not [kind for kind in named if kind.__name__ in INTERNAL]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (Count(0, "block"), "0 blocks"),
        (Count(1, "block"), "1 block"),
        (Count(2, "block"), "2 blocks"),
        (Count(1, "copy", "copies"), "1 copy"),
        (Count(2, "copy", "copies"), "2 copies"),
    ],
)
def test_a_noun_agrees_with_its_number(count: Count, text: str) -> None:
    assert (str(count), f"{count}", "%s" % count, f"{count:d}") == (text, text, text, text.split(maxsplit=1)[0])  # noqa: UP031
    assert json.loads(json.dumps({"count": count})) == {"count": int(text.split(maxsplit=1)[0])}


def test_a_hash_is_its_first_five_bytes() -> None:
    assert short_hash(HASH) == "0x0102030405…"
