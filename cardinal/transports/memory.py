"""``memory://name``: a broker inside this process, found by its name.

The broker itself is :class:`cardinal_devkit.MemoryBroker`, for tests. This module holds only the directory of names,
because a lower package cannot import a higher one.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

from cardinal.errors import ConfigurationError, UnreachableError

from .options import TransportOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.config.url import TransportUrl

    from .base import Sink, Source
    from .registry import Topics


class InProcessBroker(Protocol):
    """A broker that a name refers to."""

    def sink(self, app: Topics, *, producer_id: str) -> Sink:
        """A sink for the application's topics, which are created."""
        ...

    def source(self, topics: Sequence[str], *, wait: float = 0.0) -> Source:
        """A source of these topics."""
        ...

    def topics(self) -> frozenset[str]:
        """The names of all topics."""
        ...


_brokers: Final[WeakValueDictionary[str, InProcessBroker]] = WeakValueDictionary()
"""Brokers by name, none kept alive: module-level state, because a URL has no other way to reach an object."""

_lock: Final = Lock()


def enter(name: str, broker: InProcessBroker) -> None:
    """Give a broker its name. ConfigurationError: another one has it."""
    with _lock:
        taken = _brokers.setdefault(name, broker) is not broker
    if taken:
        raise ConfigurationError(f"there is a memory broker {name!r} already: choose another name")


def exists(name: str) -> bool:
    """True for the name of a broker."""
    return name in _brokers


def leave(name: str, broker: InProcessBroker) -> None:
    """Release a broker's name. May be called twice."""
    with _lock:
        if _brokers.get(name) is broker:
            del _brokers[name]


def open_sink(url: TransportUrl, app: Topics, *, producer_id: str) -> Sink:
    """A sink of the broker that the URL names."""
    return _broker(url).sink(app, producer_id=producer_id)


def open_source(url: TransportUrl, app: Topics, *, topics: Sequence[str], wait: float) -> Source:
    """A source of the broker that the URL names."""
    del app
    return _broker(url).source(topics, wait=wait)


def list_topics(url: TransportUrl) -> frozenset[str]:
    """The topics of the broker that the URL names."""
    return _broker(url).topics()


def _broker(url: TransportUrl) -> InProcessBroker:
    TransportOptions.of(url)
    if (broker := _brokers.get(url.address)) is None:
        raise UnreachableError(
            f"there is no memory broker {url.address!r} in this process: make a "
            f"cardinal_devkit.MemoryBroker({url.address!r})",
            address=url.address,
        )
    return broker
