"""Service that runs a handler: a stream's updates, one after the other, from the cursor that the handler stored.

1. The handler is interrupted by nothing: a stop waits until the update that it handles is done.
2. A stream that does not exist yet, or whose server is unreachable, is waited for.
3. An error of the handler is logged and ends the service with status 1: its next start resumes with the update that
   failed.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from cardinal.consumer import Consumer
from cardinal.errors import TopicError, UnreachableError
from cardinal.protocols.streams.cursor import Cursor
from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardinal.consuming.metrics import ConsumerMetrics
    from cardinal.handlers import Handler
    from cardinal.protocols.streams.events import ChainUpdate

_RETRY_SECONDS: Final = 1.0
_PROGRESS_SECONDS: Final = 60.0

_log = logging.getLogger("cardinal.run")


class HandlerService:
    """Runs one handler. All but :attr:`waits_for` belongs to the main thread.

    Arguments:
        handler: the handler.
        connect: opens the consumer at a cursor; None: at the first start.

    """

    def __init__(self, handler: Handler, connect: Callable[[Cursor | None], Consumer]) -> None:
        self._handler = handler
        self._connect = connect
        self._metrics: ConsumerMetrics | None = None
        self._waits_for = "the stream is not open yet"
        self._handles = False
        self._stops = False
        self._progress_at = time.monotonic()
        self._blocks = 0

    @property
    def waits_for(self) -> str:
        """Reason why the service waits, in a sentence; empty while it delivers. For any thread."""
        return self._waits_for if self._metrics is None else self._metrics.waits_for()

    def stop(self) -> None:
        """End the service, for a signal's handler: at once, or after the update that is being handled.

        A second call ends it at once also then.
        """
        if not self._handles or self._stops:
            sys.exit(0)
        self._stops = True

    def run(self, observe: Callable[[Consumer], ConsumerMetrics] | None = None) -> None:
        """Handle updates until :meth:`stop`, or until the consumer's options end the iteration.

        Arguments:
            observe: makes the metrics of a consumer; None: no metrics.

        Raises:
            CardinalError: the stream cannot be read, or the stored cursor does not fit it.
            SystemExit: the service was stopped (0), or the handler failed (1).

        """
        text = self._handler.cursor()
        cursor = None if text is None else Cursor.parse(str(text))
        with closing(self._opened(cursor)) as consumer:
            if observe is not None:
                self._metrics = observe(consumer)
            self._log_start(consumer, cursor)
            for update in consumer:
                self._handle(consumer, update)
        self._log_progress(consumer)

    def _opened(self, cursor: Cursor | None) -> Consumer:
        """The consumer; waits for its stream."""
        while True:
            try:
                return self._connect(cursor)
            except (TopicError, UnreachableError) as error:
                if self._waits_for != str(error):
                    self._waits_for = str(error)
                    _log.warning("%s; the service waits", error)
            time.sleep(_RETRY_SECONDS)

    def _handle(self, consumer: Consumer, update: ChainUpdate) -> None:
        self._handles = True
        try:
            self._handler.handle(update)
        except Exception:  # noqa: BLE001 - the outermost loop, around code of the user
            _log.exception(
                "the handler failed in the update of seq %d to %d; the next start resumes with it",
                update.first_seq,
                update.seq,
            )
            sys.exit(1)
        finally:
            self._handles = False
        self._blocks += len(update.added) + len(update.removed)
        if self._metrics is not None:
            self._metrics.delivered(update)
        if time.monotonic() - self._progress_at > _PROGRESS_SECONDS:
            self._log_progress(consumer)
        if self._stops:
            sys.exit(0)

    def _log_start(self, consumer: Consumer, cursor: Cursor | None) -> None:
        if cursor is None or consumer.head is None:
            _log.info("%s: the handler has no cursor yet, and begins where --start says", consumer.app.chain)
        else:
            _log.info("%s: the handler continues after block %d", consumer.app.chain, consumer.head.number)

    def _log_progress(self, consumer: Consumer) -> None:
        head = "no block" if consumer.head is None else f"block {consumer.head.number}"
        counts = Count(self._blocks, "block"), Count(consumer.lag, "record")
        _log.info("%s: %s handled, %s to read", head, *counts)
        self._progress_at, self._blocks = time.monotonic(), 0
