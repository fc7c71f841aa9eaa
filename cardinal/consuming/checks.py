"""What a consumer's options may be: what would do something else than was meant is refused by name."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.types import HASH_SIZE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_POSITION: Final = (str, int, int)
_Choice = TypeVar("_Choice", bound=Enum)


def choice(kind: type[_Choice], value: str, setting: str) -> _Choice:
    """The member of this name; ConfigurationError names the setting and the choices."""
    try:
        return kind(value)
    except ValueError:
        names = " or ".join(repr(member.value) for member in kind)
        raise ConfigurationError(f"{setting} must be {names}, not {value!r}", setting=setting) from None


def check_start(start: object) -> None:
    """ConfigurationError for what says no place to start at, such as the bytes of a cursor that was not decoded."""
    if start is not None and (isinstance(start, bool) or not isinstance(start, str | Cursor | int | datetime)):
        raise ConfigurationError(
            f"start must be 'start', 'tail', a number, a time, a cursor or its text, not {type(start).__name__}",
            setting="start",
        )


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
    """ConfigurationError where a setting is lower than makes sense."""
    if value < least:
        raise ConfigurationError(f"{setting} must be {least:g} or more, not {value:g}", setting=setting)
