"""Options that Spark passes to a format: case-insensitive, without unknown names or copies.

For a table of the catalog (``CREATE TABLE … USING``) Spark 4.2 passes them when the table is created, and none when it
is read. So they are stored in the metadata of the table's first column, which refuses values that may hold a password.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from cardinal.config.options import nearest
from cardinal.config.url import is_secret
from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.types import StructType

STORAGE: Final = "storage."
"""Prefix of the settings of an object store."""

INTEGERS: Final = ("string", "decimal", "binary")
"""Types of 256-bit values."""

_SPARKS: Final = frozenset(
    {
        *("path", "checkpointlocation", "queryname"),
        *("provider", "owner", "location", "comment", "external", "is_managed_location"),
    }
)
"""Options that Spark itself may add, the second row with tables of a catalog."""
_KEPT: Final = "cardinal.options"
_COPIES: Final = "option."
"""Prefix that ``CREATE TABLE … OPTIONS`` adds to an option, or to a second copy of it."""


def kept_in(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table; for a table of the catalog, with its options.

    Raises:
        ConfigurationError: an option may hold a password.

    """
    if not any(name.lower().startswith(_COPIES) for name in options):
        return schema
    parsed = {name.lower().removeprefix(_COPIES): value for name, value in options.items()}
    for name, value in parsed.items():
        if name.startswith(STORAGE) or _may_hold_secret(value):
            raise ConfigurationError(
                f"the catalog would store the option {name} readable for all users: pass secrets by file "
                "(password_file=…) or environment, or use a temporary view",
                setting=name,
            )
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - planners and tests without Spark are here

    first, *others = schema.fields
    kept = StructField(first.name, first.dataType, first.nullable, {_KEPT: json.dumps(parsed)})
    return StructType([kept, *others])


def _may_hold_secret(value: str) -> bool:
    """True when a value is a URL with a password, or with an option whose value is secret."""
    if "://" not in value:
        return False
    parts = urlsplit(value)
    return parts.password is not None or any(is_secret(name) for name, _ in parse_qsl(parts.query))


def options_of(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options; for a table of the catalog those that its schema stores, overridden by the reader's own."""
    kept = schema.fields[0].metadata.get(_KEPT) if schema.fields else None
    return options if kept is None else {**json.loads(kept), **options}


def parse_options(options: Mapping[str, str], valid: Iterable[str], format_name: str) -> dict[str, str]:
    """The options by their lower-case names.

    Raises:
        ConfigurationError: one that the format does not have; the nearest name is named.

    """
    parsed = {name.lower().removeprefix(_COPIES): value for name, value in options.items()}
    names = {name.lower(): name for name in valid}
    for name in parsed:
        if name in names or name in _SPARKS or name.startswith(STORAGE):
            continue
        raise ConfigurationError(
            f"format({format_name!r}) has no option {name!r}; {nearest(name, valid)}", setting=name
        )
    return parsed


def number(parsed: Mapping[str, str], name: str) -> int | None:
    """The value of an option that is a number; None where it is not set. ConfigurationError for another value."""
    text = parsed.get(name.lower())
    if text is not None and not text.isdecimal():
        raise ConfigurationError(f"{name} must be a number of 0 or more, not {text!r}", setting=name)
    return None if text is None else int(text)


def choice(parsed: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """The value of an option, the first choice where it is not set. ConfigurationError for another value."""
    value = parsed.get(name.lower(), choices[0])
    if value.lower() not in choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, not {value!r}", setting=name)
    return value.lower()


def flag(parsed: Mapping[str, str], name: str) -> bool:
    """The value of an option that is true where it is not set."""
    return choice(parsed, name, ("true", "false")) == "true"


def parts(parsed: Mapping[str, str], name: str) -> list[str]:
    """The comma-separated values of an option."""
    return [part for part in map(str.strip, parsed.get(name.lower(), "").split(",")) if part]
