"""A coverage-guided fuzzer of the streams core: bytes in, documented outcomes only.

    python -m pip install atheris                         # not a dependency of the project
    python tests/fuzz/fuzz_streams.py corpus -max_total_time=600 -timeout=10

`one` is what it calls with every input, and what a test runs over the inputs of `corpus.txt`: the first byte chooses
what is tried (see `TARGETS`), the rest is what it is tried on. A finding is any exception.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, get_args

if __name__ == "__main__":
    try:
        import atheris
    except ImportError:
        sys.exit("the fuzzer needs atheris: python -m pip install atheris, and start it again")
    sys.path.insert(0, str(Path(__file__).parents[2]))
    with atheris.instrument_imports(include=["cardinal.protocols"]):
        import cardinal.protocols.streams  # noqa: F401 - loaded here, to be instrumented

from cardinal.errors import CursorError, DecodeError, EncodeError
from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Cursor,
    Event,
    Follower,
    FollowerSettings,
    Ping,
    Reassembler,
    Record,
    decode,
    encode,
)
from cardinal.protocols.streams.assembly.digests import Contents, digested
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.cursor import VERSION, _check
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER
from cardinal.protocols.streams.wire import avro

HASHES: Final = tuple(bytes((index,)) * 32 for index in range(12))
TOPICS: Final = ("chain", "items")
BOUNDS: Final = Bounds(open_bytes=1 << 16, open_blocks=20, finished_bytes=1 << 16, headless_distance=50)
SETTINGS: Final = FollowerSettings(
    "fuzz",
    "fuzz:1",
    prefixes=("a/", "b/[0-9]+/t/"),
    reorg_threshold=4,
    start=BlockRef(0, HASHES[0]),
    default_topic="chain",
    bounds=BOUNDS,
)
"""A follower on a very small machine: evictions are part of the game."""
REPORTS: Final = get_args(Event)


def try_decode(data: bytes) -> None:
    """A key and a value: a message that can be written and read again, or a DecodeError."""
    size = data[0] if data else 0
    key, value = data[1 : 1 + size], data[1 + size :]
    try:
        message = decode(key, value)
    except DecodeError:
        return
    try:
        again = encode(message)
    except EncodeError:
        assert isinstance(message, Ping), message
        return
    assert decode(*again) == message


def try_avro(data: bytes) -> None:
    """Values alone."""
    for read in (avro.read_batch, avro.read_content, avro.read_int):
        try:
            read(data)
        except DecodeError:
            continue


def records(data: bytes) -> Iterator[Record]:
    """Records, cut from the bytes: place and kind, hash, sizes, key's rest, value.

    Hashes come from a short list, so that messages meet; in values a byte 0xfe before a small number stands for one.
    """
    offsets = dict.fromkeys(TOPICS, 0)
    at = 0
    while at + 5 <= len(data):
        place, kind, which, rest, size = data[at : at + 5]
        at += 5
        topic = TOPICS[place & 1]
        key = bytes((kind if kind < 8 else 255 - kind % 3,)) + HASHES[which % len(HASHES)]
        if place & 2:
            key += HASHES[which // len(HASHES) % len(HASHES)]
        key += data[at : at + rest % 16]
        at += rest % 16
        value = data[at : at + size]
        at += size
        for index, known in enumerate(HASHES):
            value = value.replace(b"\xfe" + bytes((index,)), known)
        headers = ((PRODUCER_HEADER, b"p%d" % (place >> 6)),)
        if place & 4:
            headers += ((SEALED_HEADER, b"1"),)
        offsets[topic] += 1
        yield Record(topic, 0, offsets[topic] - 1, b"" if place & 56 == 56 else key, value, 0, headers)


def try_follower(data: bytes) -> None:
    """Records through a follower: updates that fit each other, documented reports, bounded memory, a sound cursor."""
    follower = Follower(SETTINGS)
    chain, seq = [HASHES[0]], 0
    positions: dict[tuple[str, int], int] = {}
    for record in records(data):
        positions[record.topic, record.partition] = record.offset + 1
        for value in follower.step([record], positions, positions).items:
            assert isinstance(value, (ChainUpdate, *REPORTS)), value
            if isinstance(value, ChainUpdate):
                assert value.first_seq == seq + 1
                seq = value.seq
                for removed in value.removed:
                    assert chain.pop() == removed.hash
                chain += [added.hash for added in value.added]
        assert follower.reassembler.held_bytes <= BOUNDS.open_bytes + BOUNDS.finished_bytes
    cursor = follower.cursor()
    assert Cursor.parse(str(cursor)) == cursor
    resumed = Follower(SETTINGS, cursor)
    resumed.step(records(data), positions, positions)


def try_digests(data: bytes) -> None:
    """Records through a reader that keeps digests only, as the Spark planner does."""
    reassembler = Reassembler(None, 4, contents=Contents.DIGESTS, bounds=BOUNDS)
    for event in reassembler.receive(digested(records(data))):
        assert isinstance(event, REPORTS), event


def try_cursor(data: bytes) -> None:
    """A cursor's text, or its content with a good checksum."""
    text = data.decode("utf-8", "replace")
    forged = f"{VERSION}:{base64.urlsafe_b64encode(_check(data) + data).rstrip(b'=').decode()}"
    for candidate in (text, forged):
        try:
            cursor = Cursor.parse(candidate)
            assert Cursor.parse(str(cursor)) == cursor
            Follower(SETTINGS, cursor)
        except CursorError:
            continue


TARGETS: Final[tuple[Callable[[bytes], None], ...]] = (
    try_decode,
    try_avro,
    try_follower,
    try_follower,
    try_digests,
    try_cursor,
)


def one(data: bytes) -> None:
    """Try one input."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def main(arguments: list[str]) -> None:
    """Fuzz until stopped; the arguments are libFuzzer's."""
    atheris.Setup(arguments, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
