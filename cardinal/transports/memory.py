"""``memory://name``: a broker inside this process, found by its name.

The broker itself is :class:`cardinal.testing.MemoryBroker`, for tests. This module holds only the directory of names,
because a lower package cannot import a higher one.
"""

from __future__ import annotations

import threading
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


class _Directory:
    """Names of brokers. It keeps none alive: a name ends with its broker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._brokers: WeakValueDictionary[str, InProcessBroker] = WeakValueDictionary()

    def enter(self, name: str, broker: InProcessBroker) -> None:
        with self._lock:
            if name in self._brokers:
                raise ConfigurationError(f"there is a memory broker {name!r} already: choose another name")
            self._brokers[name] = broker

    def leave(self, name: str, broker: InProcessBroker) -> None:
        with self._lock:
            if self._brokers.get(name) is broker:
                del self._brokers[name]

    def find(self, name: str) -> InProcessBroker:
        with self._lock:
            broker = self._brokers.get(name)
        if broker is None:
            raise UnreachableError(
                f"there is no memory broker {name!r} in this process: make a cardinal.testing.MemoryBroker({name!r})",
                address=name,
            )
        return broker


# Module-level state, because a URL has no other way to reach an object of the process.
DIRECTORY: Final = _Directory()


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
    return DIRECTORY.find(url.address)
