"""Retry queue: the steps that were submitted to a producer and are not sealed, and the retries of those that failed.

Three layers retry a block, each for a fault that the one below cannot heal: the Kafka client repeats messages until
their delivery timeout, the producer waits with the Batches of a failed block's descendants
(:mod:`cardinal.producing.inflight`), and this queue submits failed steps until they are sealed.

Rules:

1. A step that is in flight is not submitted twice.
2. Steps that failed are submitted together after one pause: an outage fails many, and is over for all of them at once.
3. Where submitting to the same producer cannot help, ``renew`` opens a new one: after an error that is retriable and
   neither a failed delivery nor an unreachable broker, and when a step failed three times while nothing was sealed;
   then after twelve times, and so on: a full disk is not helped by a new producer.
   Everything that is not sealed fails with the old producer and is submitted to the new one, parents first. Until then
   no other step is submitted: the new producer knows no parent whose Batch a child's would have to wait for.
4. An error that is not retriable is raised; so is one that is no CardinalError, which is a bug.
5. A step whose blocks left the chain is forgotten: the node has yielded what takes their place.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, DeliveryError, OrphanedError, UnreachableError
from cardinal.server.produce.reorg_grouping import newest_of, payloads_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import Future

    from cardinal.protocols.streams.payload import Payload
    from cardinal.server.produce.reorg_grouping import Step

_PAUSE_SECONDS: Final = 0.5
_ATTEMPTS: Final = 3


class RetryQueue:
    """Steps in flight.

    Arguments:
        submit: submits a step to the producer, on a thread; its future ends when the step is sealed.
        renew: replaces the producer, whose steps in flight have failed when it returns.
        sealed: called with every block that is sealed, and the seconds since it was added.
        failed: called with the newest block of every step that is submitted again, and the reason.

    Attributes:
        retries: number of steps that were submitted again.
        renewals: number of producers that were replaced.

    """

    def __init__(
        self,
        submit: Callable[[Step], Future[None]],
        *,
        renew: Callable[[CardinalError], Awaitable[None]],
        sealed: Callable[[Payload, float], object],
        failed: Callable[[Payload, CardinalError], object] = lambda payload, error: None,  # noqa: ARG005 - names for callers
    ) -> None:
        self.retries = self.renewals = 0
        self._submit = submit
        self._renew = renew
        self._report_sealed = sealed
        self._report_failed = failed
        self._open = asyncio.Event()
        self._open.set()
        self._failed: asyncio.Queue[tuple[Step, BaseException]] = asyncio.Queue()
        self._in_flight: dict[bytes, Step] = {}
        self._since: dict[bytes, float] = {}
        self._waiting: set[bytes] = set()
        self._submitting: set[bytes] = set()
        self._attempts: Counter[bytes] = Counter()
        self._patience = _ATTEMPTS

    @property
    def unsealed(self) -> tuple[Payload, ...]:
        """The blocks that were submitted and are not sealed, by number; of a branch its newest."""
        return tuple(sorted(map(newest_of, self._in_flight.values()), key=lambda payload: payload.number))

    @property
    def oldest_seconds(self) -> float:
        """Seconds since the oldest step that is not sealed was added; 0 where there is none."""
        return time.monotonic() - min(self._since.values()) if self._since else 0.0

    @property
    def failing(self) -> bool:
        """True while a step that failed has not been submitted again."""
        return bool(self._waiting)

    async def add(self, step: Step) -> None:
        """Submit a step, waiting for capacity and for failed steps that are submitted first."""
        loop = asyncio.get_running_loop()
        newest = newest_of(step)
        in_flight = newest.hash in self._in_flight and newest.hash not in self._waiting
        if in_flight or newest.hash in self._submitting:
            return  # the node returned it by its hash a moment ago
        self._waiting.discard(newest.hash)  # submitted by the first of this call and `retry`
        self._submitting.add(newest.hash)
        self._since.setdefault(newest.hash, time.monotonic())
        future: Future[None] | None = None
        try:
            future = await self._submitted(step)
        except CardinalError as error:
            if not error.retriable:
                raise
            self._in_flight[newest.hash] = step  # `retry` submits it, to a new producer where this one is lost
            self._waiting.add(newest.hash)
            self._failed.put_nowait((step, error))
            return
        finally:
            self._submitting.discard(newest.hash)
            if future is None and newest.hash not in self._in_flight:
                self._since.pop(newest.hash, None)
        self._in_flight[newest.hash] = step
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._ended, step, done))

    async def retry(self) -> None:
        """Submit failed steps, for ever.

        Raises:
            CardinalError: one that is not retriable.

        """
        while True:
            failed = [_retriable(*await self._failed.get())]
            await asyncio.sleep(_PAUSE_SECONDS)
            failed += self._collected()
            self._attempts.update(newest_of(step).hash for step, _ in failed)
            lost = next((error for _, error in failed if _needs_renewal(error)), None)
            if lost is None and max(self._attempts.values()) >= self._patience:
                lost, self._patience = failed[0][1], 4 * self._patience
            if lost is not None:
                failed += await self._renewed(lost)
                failed.sort(key=lambda one: newest_of(one[0]).number)
            if all([await self._resubmitted(step, error) for step, error in failed]):
                self._open.set()

    async def drain(self, *running: asyncio.Task[None]) -> None:
        """Wait until every block is sealed, while these tasks run: one of them submits those that fail."""
        while self._in_flight:
            done, _ = await asyncio.wait(running, timeout=0.02)
            for task in done:
                task.result()

    def clear(self) -> None:
        """Forget all steps: the feed is read again from below them."""
        for held in (self._in_flight, self._since, self._waiting, self._attempts):
            held.clear()
        self._failed = asyncio.Queue()
        self._open.set()

    # --- inside --------------------------------------------------------------------------------------------

    async def _resubmitted(self, step: Step, error: CardinalError) -> bool:
        """Submit a failed step; False where another one failed meanwhile, which has to be submitted first."""
        newest = newest_of(step)
        if newest.hash not in self._waiting:
            return True  # the node has given it again
        self.retries += 1
        self._report_failed(newest, error)
        await self.add(step)
        return newest.hash not in self._waiting

    async def _submitted(self, step: Step) -> Future[None]:
        """Submit until the producer takes the step."""
        is_retry = newest_of(step).hash in self._in_flight
        while True:
            if not is_retry:
                await self._open.wait()
            renewals = self.renewals
            try:
                return await asyncio.to_thread(self._submit, step)
            except DeliveryError:
                if is_retry:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)  # `retry` is about to submit the step that failed
            except CardinalError as error:
                if renewals != self.renewals or not self._open.is_set():
                    await asyncio.sleep(0)  # the producer was closed meanwhile
                    continue
                if _needs_renewal(error):
                    self._open.clear()
                if not error.retriable or _needs_renewal(error):
                    raise
                self._report_failed(newest_of(step), error)  # nothing was sent: a reorg's channel comes first
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _renewed(self, error: CardinalError) -> list[tuple[Step, CardinalError]]:
        """Replace the producer; all steps that failed with it."""
        self._open.clear()
        await self._renew(error)
        self.renewals += 1
        self._attempts.clear()
        await asyncio.sleep(0)  # the ends of the old producer's futures are on the loop already
        return self._collected()

    def _collected(self) -> list[tuple[Step, CardinalError]]:
        return [_retriable(*self._failed.get_nowait()) for _ in range(self._failed.qsize())]

    def _ended(self, step: Step, done: Future[None]) -> None:
        error, newest = done.exception(), newest_of(step)
        if self._in_flight.get(newest.hash) is not step:
            return  # the queue was cleared meanwhile
        if error is not None and not isinstance(error, OrphanedError):
            self._waiting.add(newest.hash)
            self._failed.put_nowait((step, error))
            return
        self._in_flight.pop(newest.hash, None)
        self._attempts.clear()
        self._patience = _ATTEMPTS
        seconds = time.monotonic() - self._since.pop(newest.hash, time.monotonic())
        for payload in payloads_of(step) if error is None else ():
            self._report_sealed(payload, seconds)


def _needs_renewal(error: CardinalError) -> bool:
    return not isinstance(error, DeliveryError | UnreachableError)


def _retriable(step: Step, error: BaseException) -> tuple[Step, CardinalError]:
    """A step that may be submitted again; raises the error of another."""
    if isinstance(error, CardinalError) and error.retriable:
        return step, error
    raise error
