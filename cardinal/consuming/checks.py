"""What a consumer's options may be: what would do something else than was meant is refused by name."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from cardinal.errors import ConfigurationError, CursorInvalidError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.types import HASH_SIZE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_POSITION: Final = (str, int, int)
_CURSOR: Final = re.compile(r"\s*c\d+:")
_Choice = TypeVar("_Choice", bound=Enum)


def choice(kind: type[_Choice], value: str, setting: str) -> _Choice:
    """The member of this name; ConfigurationError names the setting and the choices."""
    try:
        return kind(value)
    except ValueError:
        names = " or ".join(repr(member.value) for member in kind)
        raise ConfigurationError(f"{setting} must be {names}, not {value!r}", setting=setting) from None


def cursor_of(start: object) -> Cursor | None:
    """The cursor to start at; None where it is another place.

    Raises:
        ConfigurationError: it says no place, such as the bytes of a cursor that was not decoded.
        CursorInvalidError: a text that is neither a cursor nor the name of a place.

    """
    if isinstance(start, Cursor):
        return start
    if start is not None and (isinstance(start, bool) or not isinstance(start, str | int | datetime)):
        raise ConfigurationError(
            f"start must be 'start', 'tail', a number, a time, a cursor or its text, not {type(start).__name__}",
            setting="start",
        )
    if not isinstance(start, str) or start in ("start", "tail"):
        return None
    if not _CURSOR.match(start):
        raise CursorInvalidError(
            f"start must be 'start', 'tail', a number, a time, or the text of a cursor, which begins with 'c1:', not "
            f"{start[:40]!r}"
        )
    return Cursor.parse(start)


def check_several(**options: object) -> None:
    """ConfigurationError for one text where several are meant: it would be taken for its letters."""
    for setting, texts in options.items():
        if isinstance(texts, str | bytes):
            raise ConfigurationError(f"{setting} must be several texts, not one: [{texts!r}]", setting=setting)


def check_hashes(whitelist: Mapping[int, bytes], blacklist: Iterable[bytes]) -> None:
    """ConfigurationError for hashes and numbers that no block can have: they would protect from nothing."""
    for number, pinned in whitelist.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise ConfigurationError(f"whitelist: {number!r} is no block number; give an int", setting="whitelist")
        _check_hash(pinned, "whitelist")
    if isinstance(blacklist, bytes | str):
        raise ConfigurationError("blacklist must be several hashes, not one: [hash]", setting="blacklist")
    for named in blacklist:
        _check_hash(named, "blacklist")


def _check_hash(block_hash: object, setting: str) -> None:
    if not isinstance(block_hash, bytes) or len(block_hash) != HASH_SIZE:
        raise ConfigurationError(
            f"{setting}: {block_hash!r} is no block hash; give {HASH_SIZE} bytes, bytes.fromhex(…) makes them of text",
            setting=setting,
        )


def check_positions(positions: Collection[object]) -> None:
    """ConfigurationError for what names no record."""
    for position in positions:
        if not isinstance(position, tuple) or tuple(map(type, position)) != _POSITION:
            raise ConfigurationError(
                f"skip: {position!r} is no record; give its topic, partition and offset as a tuple", setting="skip"
            )


def at_least(least: float, value: float, setting: str) -> None:
    """ConfigurationError where a setting is no number, or lower than makes sense."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{setting} must be a number, not {type(value).__name__}", setting=setting)
    if not value >= least:
        raise ConfigurationError(f"{setting} must be {least:g} or more, not {value:g}", setting=setting)
