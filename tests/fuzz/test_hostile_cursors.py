"""Cursors with altered content and a good checksum: refused as documented, or sound; none costs much."""

from __future__ import annotations

import base64
import random
from functools import cache, partial

import pytest
from driving import Drive
from hostile import WILD, Stream, zigzag

from cardinal.errors import CursorError, CursorInvalidError
from cardinal.protocols.streams import Cursor, Follower, FollowerSettings
from cardinal.protocols.streams.cursor import VERSION, _check
from cardinal_devkit.testing.generator import SCHEMA
from examples import few
from work_counter import lines, peak

STREAM = Stream(11, blocks=40, every=1)
SETTINGS = FollowerSettings(
    "generated",
    "generated:1",
    prefixes=tuple(SCHEMA),
    reorg_threshold=16,
    start=STREAM.start,
    default_topic="chain",
)
LINES = 1_000
"""Of Python, for one cursor."""


@cache
def cursors() -> tuple[Cursor, ...]:
    """Cursors of a stream with reorgs and hostile records in it."""
    driven = Drive(Follower(SETTINGS))
    driven.run(STREAM, size=40)
    return tuple(update.cursor for update in driven.updates[::3])


def body(cursor: Cursor) -> bytes:
    encoded = str(cursor).partition(":")[2]
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))[8:]


def text(content: bytes) -> str:
    """A cursor's text of any content, with a good checksum."""
    return f"{VERSION}:{base64.urlsafe_b64encode(_check(content) + content).rstrip(b'=').decode()}"


def is_sound(cursor: Cursor) -> None:
    """It is written and read back as it is, and a follower goes on from it or says why not."""
    assert Cursor.parse(str(cursor)) == cursor
    try:
        follower = Follower(SETTINGS, cursor)
        Drive(follower).run(record for records in STREAM.legit.values() for record in records)
    except CursorError:
        return
    assert Cursor.parse(str(follower.cursor()))


def refused(candidate: str) -> bool:
    try:
        Cursor.parse(candidate)
    except CursorInvalidError:
        return True
    return False


def altered(content: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut, doubled, or replaced by wild numbers."""
    out = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((0, 1, 1, 2, 8, 32))
        out[at : at + size] = rng.choice(
            (b"", rng.randbytes(size), zigzag(rng.choice(WILD)), bytes(size), bytes(out[at : at + 2 * size]))
        )
    return bytes(out)


def test_a_cursor_that_was_made_here_is_read() -> None:
    assert len(cursors()) > 5
    for cursor in cursors():
        is_sound(cursor)


@pytest.mark.parametrize("seed", few(1, range(4)))
def test_altered_content_with_a_good_checksum_is_refused_or_sound(seed: int) -> None:
    rng = random.Random(seed)
    sound = 0
    for _ in range(1_000):
        candidate = text(altered(body(rng.choice(cursors())), rng))
        if not refused(candidate):
            sound += 1
            if sound <= 60:
                is_sound(Cursor.parse(candidate))
    assert 0 < sound < 900


def test_long_texts_and_giant_counts_cost_little() -> None:
    content = body(cursors()[-1])
    hostile = [text(content[:at] + zigzag(count) + zigzag(9)) for at in range(0, len(content), 7) for count in WILD]
    hostile += ["c1:" + "A" * (1 << 22), "c" * (1 << 22), text(bytes(700_000)), text(b"\xff" * 700_000)]
    outcomes = [refused(candidate) for candidate in hostile]
    assert sum(outcomes) > len(outcomes) // 2
    for candidate in hostile[-300:]:
        assert lines(partial(refused, candidate)) < LINES
    assert peak(lambda: [refused(candidate) for candidate in hostile[-300:]]) < 64 << 20
