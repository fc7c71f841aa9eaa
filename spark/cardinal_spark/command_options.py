"""Options that several `cardinal lake` commands share, and the lake that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal_spark.lake import Snapshot

lake_option = click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the source or the lake; repeatable."
)


def parse_options(values: Sequence[str]) -> dict[str, str]:
    """The values of ``--option`` by name. ConfigurationError for one without an equals sign."""
    options = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise ConfigurationError(f"--option takes name=value, not {name!r}", setting="option")
        options[name] = text
    return options


def open_snapshot(path: str, options: Sequence[str], parsed: Mapping[str, str] | None = None) -> Snapshot:
    """The lake at a path as ``--option`` values reach it; ``parsed``: the ``asof…`` options of an earlier state."""
    from cardinal_spark.lake import AsOf, Snapshot  # noqa: PLC0415 - `--help` needs no extra
    from cardinal_spark.lake.location import LakeLocation  # noqa: PLC0415 - the same

    return Snapshot.of(LakeLocation.of(path, parse_options(options)), AsOf.of(parsed or {}))
