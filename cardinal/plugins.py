"""Plug-ins: what other packages offer to the core, by entry points.

=========================  ==========================================================================================
group                      value
=========================  ==========================================================================================
``cardinal.feeds``         by URL scheme: ``open_feed`` (:mod:`cardinal.feeds`)
``cardinal.applications``  by name: a module with ``application(**presets)`` (:mod:`cardinal.apps`)
``cardinal.transports``    by URL scheme: a :class:`cardinal.config.schemes.Scheme` of a module with the functions of
                           :class:`cardinal.transports.registry.Transport`
``cardinal.destinations``  by URL scheme: a :class:`cardinal.config.schemes.Scheme` of a module with ``connection``
                           (:mod:`cardinal.server.produce.connection`)
``cardinal.commands``      by name: a command of click, or a :class:`cardinal.cli.deferred.Deferred` one
=========================  ==========================================================================================

The core has no list of its guests: one is removed by removing its package and its entry points.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint

__all__ = ["APPLICATIONS", "COMMANDS", "DESTINATIONS", "FEEDS", "TRANSPORTS", "load", "names", "packages"]

APPLICATIONS: Final = "cardinal.applications"
COMMANDS: Final = "cardinal.commands"
DESTINATIONS: Final = "cardinal.destinations"
FEEDS: Final = "cardinal.feeds"
TRANSPORTS: Final = "cardinal.transports"


def names(group: str) -> tuple[str, ...]:
    """Names of the entry points of a group, sorted."""
    return tuple(sorted(_points(group)))


def load(group: str, name: str) -> Any:  # noqa: ANN401 -- each group has values of its own
    """The value of an entry point, which imports its module.

    Raises:
        KeyError: nothing is offered under this name.
        MissingExtraError: the module needs an extra that is not installed.

    """
    return _points(group)[name].load()


def packages() -> frozenset[str]:
    """Names of the packages that offer something: the roots of their loggers."""
    groups = (APPLICATIONS, COMMANDS, DESTINATIONS, FEEDS, TRANSPORTS)
    return frozenset(
        point.value.partition(":")[0].partition(".")[0] for group in groups for point in _points(group).values()
    )


@cache  # reading the metadata of all installed packages takes milliseconds
def _points(group: str) -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}
