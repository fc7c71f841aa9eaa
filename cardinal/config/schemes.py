"""Schemes of stream URLs: the core's own, and those that other packages bring.

A package offers a :class:`Scheme` under the scheme's name as an entry point: of the group ``cardinal.transports`` where
a stream is read or written there, of ``cardinal.destinations`` where blocks are pushed to something else that publishes
them. The value is loaded whenever such a URL is parsed, so its own module imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cardinal import plugins

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OWN", "Scheme", "destination", "known", "shown", "transport"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """One scheme.

    Attributes:
        form: how such a URL is written, for errors: ``kafka://host:port``.
        module: of the transport (:class:`cardinal.transports.registry.Transport`) or of the destination
            (``connection`` as :func:`cardinal.server.produce.connection.connection_of`), imported on first use.
        port: of a host without one; None where hosts are no servers.
        other_way: where the scheme is for one direction alone, a sentence's end that says what to write for the other:
            ``produce to …`` of a transport that only reads, ``read from …`` of a destination. Empty: both directions.

    """

    form: str
    module: str
    port: int | None = None
    other_way: str = ""


OWN: Final[Mapping[str, Scheme]] = MappingProxyType(
    {
        "kafka": Scheme("kafka://host:port", "cardinal.transports.kafka", 9092),
        "file": Scheme("file://DIR", "cardinal.transports.file"),
        "mux": Scheme("mux:URL,URL", "cardinal.transports.mux"),
        "memory": Scheme("memory://name", "cardinal.transports.memory"),
        "null": Scheme("null://", "cardinal.transports.null"),
    }
)
_FOR_TESTS: Final = frozenset({"memory", "null"})


def transport(name: str) -> Scheme | None:
    """The scheme of a transport; None where there is none of this name."""
    return OWN.get(name) or _offered(plugins.TRANSPORTS, name)


def destination(name: str) -> Scheme | None:
    """The scheme of a destination that is no transport; None where there is none of this name."""
    return _offered(plugins.DESTINATIONS, name)


def known() -> tuple[str, ...]:
    """The names of all schemes."""
    return (*OWN, *plugins.names(plugins.TRANSPORTS), *plugins.names(plugins.DESTINATIONS))


def shown() -> str:
    """The forms of all transports that a user may want, for errors."""
    names = [name for name in (*OWN, *plugins.names(plugins.TRANSPORTS)) if name not in _FOR_TESTS]
    *forms, last = [scheme.form for name in names if (scheme := transport(name))]
    return f"{', '.join(forms)} or {last}"


def _offered(group: str, name: str) -> Scheme | None:
    found: Scheme | None = plugins.load(group, name) if name in plugins.names(group) else None
    return found
