"""What was handed to a producer and is not sealed yet: sent again where it failed, for as long as that can help.

Rules:

1. A step that is under way is not handed over twice.
2. Steps that failed go again together after one pause: an outage fails many, and is over for all of them at once.
3. An error that time does not heal is raised; so is one that is none of ours, which is a fault. A client that has
   stopped is raised too: the service begins again with another one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError, ClientStoppedError, DeliveryError
from cardinal.server.branches import Branch, Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from cardinal.protocols.streams.payload import Payload

_AGAIN_SECONDS: Final = 0.5
_FLUSH_SECONDS: Final = 150.0
"""Longer than a message's own timeout, so that a flush ends with the reason and not with the clock."""


class Outbox:
    """Steps under way.

    Arguments:
        hand_over: gives a step to the producer, in a thread; what it returns ends when the step is sealed.
        again: told of every block that goes again, with the reason.
        sealed: told of every block that is sealed.

    Attributes:
        again_count: how many steps went again.

    """

    def __init__(
        self,
        hand_over: Callable[[Step], Future[None]],
        *,
        again: Callable[[Payload, CardinalError], None],
        sealed: Callable[[bytes], object],
    ) -> None:
        self.again_count = 0
        self._hand_over = hand_over
        self._tell_again = again
        self._tell_sealed = sealed
        self._failed: asyncio.Queue[tuple[Step, BaseException]] = asyncio.Queue()
        self._under_way: dict[bytes, Step] = {}
        self._waiting_again: set[bytes] = set()
        self._handing_over: set[bytes] = set()

    @property
    def unsealed(self) -> tuple[Payload, ...]:
        """The blocks that were taken and are not sealed, by number; of a branch its newest."""
        return tuple(sorted(map(newest_of, self._under_way.values()), key=lambda payload: payload.number))

    async def add(self, step: Step) -> None:
        """Hand a step over, waiting for room and for blocks that have to go again first."""
        loop = asyncio.get_running_loop()
        newest = newest_of(step)
        sent = newest.hash in self._under_way and newest.hash not in self._waiting_again
        if sent or newest.hash in self._handing_over:
            return  # the node gave it by its hash a moment ago
        self._waiting_again.discard(newest.hash)  # whoever comes first hands it over
        self._handing_over.add(newest.hash)
        try:
            while True:
                try:
                    future = await asyncio.to_thread(self._hand_over, step)
                except DeliveryError:
                    await asyncio.sleep(_AGAIN_SECONDS)  # `resend` is about to send the one that failed
                except CardinalError as error:
                    if not error.retriable or isinstance(error, ClientStoppedError):
                        raise
                    self._tell_again(newest, error)  # nothing of it was sent: a reorg's channel was to be made first
                    await asyncio.sleep(_AGAIN_SECONDS)
                else:
                    break
        finally:
            self._handing_over.discard(newest.hash)
        self._under_way[newest.hash] = step
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._ended, newest.hash, step, done))

    async def resend(self) -> None:
        """Send failed steps again, for ever.

        Raises:
            CardinalError: one that is not retriable.

        """
        while True:
            failed = [_retriable(*await self._failed.get())]
            await asyncio.sleep(_AGAIN_SECONDS)
            while not self._failed.empty():
                failed.append(_retriable(*self._failed.get_nowait()))
            for step, error in failed:
                newest = newest_of(step)
                if newest.hash in self._waiting_again:  # else the node has given it again meanwhile
                    self.again_count += 1
                    self._tell_again(newest, error)
                    await self.add(step)

    async def drain(self, resend: asyncio.Task[None]) -> None:
        """Wait until every block is sealed; failed ones go on being sent again meanwhile, by ``resend``.

        Raises:
            DeliveryError: some are not after a time in which each of their messages has an answer.

        """
        deadline = time.monotonic() + _FLUSH_SECONDS
        while self._under_way and time.monotonic() < deadline:
            await asyncio.wait({resend}, timeout=0.02)
            if resend.done():
                resend.result()
        if self._under_way:
            raise DeliveryError(
                f"{len(self._under_way)} blocks were not acknowledged within {_FLUSH_SECONDS:.0f} s; start again: "
                "what is missing is sent then",
                block_hash=next(iter(self._under_way)),
            )

    def _ended(self, block_hash: bytes, step: Step, done: Future[None]) -> None:
        error = done.exception()
        if error is None:
            self._under_way.pop(block_hash, None)
            for payload in step.payloads if isinstance(step, Branch) else (step,):
                self._tell_sealed(payload.hash)
        else:
            self._waiting_again.add(block_hash)
            self._failed.put_nowait((step, error))


def _retriable(step: Step, error: BaseException) -> tuple[Step, CardinalError]:
    """What may go again; raises what may not."""
    if isinstance(error, CardinalError) and error.retriable and not isinstance(error, ClientStoppedError):
        return step, error
    raise error


def newest_of(step: Step) -> Payload:
    """A block, or the last one of a branch."""
    return step.newest if isinstance(step, Branch) else step
