"""A sink for those who send much: they are called back instead of holding a future, and while they wait, they serve.

Rules:

1. What is posted was measured before: every message is within its topic's limit.
2. ``done`` is called once for each call, on any thread that serves or sends, with None or with the error. It must be
   quick, must not wait, and may post a seal.
3. While one thread sends at full speed, it is also the one that serves: two threads that take turns at the interpreter
   for every acknowledgement were measured to cost more than everything else that a small block needs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cardinal.protocols.streams.types import Routed

    from .base import Sink
    from .written import Written

Done: TypeAlias = Callable[[BaseException | None], None]
"""Is told what became of a call: None, or the error."""


class Poster(Protocol):
    """What a sink's :meth:`~cardinal.transports.base.Sink.send` is, in parts."""

    def measure(self, messages: Sequence[Routed]) -> int:
        """The bytes of all keys and values.

        Raises:
            OversizeError, TopicError, TransportError: as :meth:`cardinal.transports.base.Sink.check`.

        """
        ...

    def post(self, content: Sequence[Routed], size: int, done: Done, written: Written | None = None) -> None:
        """Hand over messages of one block, measured to be ``size`` bytes; waits while too much is under way.

        Where it was written is noted in ``written``, by a transport that knows.

        Raises:
            TransportError: the sink is closed, or the client has stopped for good; ``done`` is not called.

        """
        ...

    def post_seal(self, batch: Routed, done: Done, written: Written | None = None) -> None:
        """Hand over a measured Batch, with the header ``cardinal-sealed``, and with what ``written`` has to say.

        Never waits. Raises as :meth:`post`.
        """
        ...


@runtime_checkable
class PostingSink(Poster, Protocol):
    """A sink that can be posted to, and that whoever waits for it can serve."""

    def serve(self, seconds: float) -> None:
        """Take acknowledgements in, and tell of them on this thread; returns after the first, or after so long."""
        ...


def posting(sink: Sink) -> Poster:
    """The sink's own way, or its futures made use of."""
    return sink if isinstance(sink, PostingSink) else _ByFutures(sink)


def new_future() -> Future[None]:
    """A future that cannot be cancelled."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


def end(future: Future[None], error: BaseException | None) -> None:
    """What became of a call, for whoever holds its future."""
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def tell(future: Future[None], done: Done) -> None:
    """Call back when a future ends."""
    future.add_done_callback(lambda ended: done(ended.exception()))


def size_of(messages: Iterable[Routed]) -> int:
    """The bytes of all keys and values."""
    return sum(len(key) + len(value) for _, key, value in messages)


class _ByFutures:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def measure(self, messages: Sequence[Routed]) -> int:
        self._sink.check(messages)
        return size_of(messages)

    def post(self, content: Sequence[Routed], size: int, done: Done, written: Written | None = None) -> None:
        del size, written
        tell(self._sink.send(content, None), done)

    def post_seal(self, batch: Routed, done: Done, written: Written | None = None) -> None:
        del written
        tell(self._sink.send((), batch), done)
