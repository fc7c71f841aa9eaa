"""Pool of worker processes that verify long ranges (:mod:`.worker`): verifying a block takes longer than fetching it.

Rules:

1. Workers start when the rest of a long range is large enough to repay it, and end with the range. A feed at the head
   has none.
2. A worker that ends, or fails to start, costs only speed: the feed verifies its blocks.
3. Workers are subprocesses with pipes, not a ``ProcessPoolExecutor``: that one's workers run the user's main module
   again, and outlive a parent that is killed (both seen with spawn and forkserver, Python 3.11).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import pickle
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cardinal_ethereum.feed.settings import FeedSettings

from .worker import LENGTH, Prepared, VerificationJob

_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")
_MOST: Final = 8
_COMMAND: Final = f"from {__package__}.worker import main; main()"
_ENDS_SECONDS: Final = 5.0
_AT_ONCE: Final = 4 << 20
"""Bytes of a worker's result that are read ahead: those of a batch."""

_PIPE: Final = 1 << 20
"""Capacity of a pipe in bytes: the most that Linux grants to every user."""


def worker_count(blocks: int, settings: FeedSettings) -> int:
    """Number of workers for a range of ``blocks``: as set, else one per processor where there are several."""
    if blocks < settings.worker_blocks or settings.state:  # deltas are requested block by block
        return 0
    if settings.workers is not None:
        return settings.workers
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, _MOST) if processors > 1 else 0


class WorkerPool:
    """Pool of worker processes, each with one job at a time; none before :meth:`start`.

    Arguments:
        count: number of workers.

    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._starting = asyncio.Lock()
        self._all: list[asyncio.subprocess.Process] = []
        self._idle: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._alive = 0

    @property
    def started(self) -> bool:
        """True if the workers were started."""
        return len(self._all) == self._count

    async def start(self) -> None:
        """Start the workers; a second call waits for the first."""
        async with self._starting:
            for _ in range(self._count - len(self._all)):
                command = [sys.executable, "-c", _COMMAND]
                pipe = asyncio.subprocess.PIPE
                try:
                    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=_AT_ONCE)
                except OSError as failure:
                    _LOG.warning("a worker process cannot be started (%s): the feed verifies its blocks", failure)
                    self._count = len(self._all)
                    return
                _widen(process)
                self._all.append(process)
                self._idle.put_nowait(process)
                self._alive += 1

    async def prepare(self, job: VerificationJob) -> list[Prepared | None]:
        """Process a job; None for every block if no worker is left."""
        if not self._alive or (process := await self._idle.get()) is None:
            self._idle.put_nowait(None)
            return [None] * len(job.raws)
        try:
            done = await _result_of(process, job)
        except (OSError, asyncio.IncompleteReadError):
            _LOG.warning("a worker process ended: the feed verifies its blocks")
            self._lost(process)
            return [None] * len(job.raws)
        except asyncio.CancelledError:
            self._lost(process)  # its result would be read as another job's
            raise
        self._idle.put_nowait(process)
        return done

    async def close(self) -> None:
        """End the workers."""
        for process in self._all:
            try:
                async with asyncio.timeout(_ENDS_SECONDS):
                    await process.communicate(b"")
            except TimeoutError:
                _kill(process)
                await process.communicate(b"")

    def _lost(self, process: asyncio.subprocess.Process) -> None:
        """Remove a worker; after the last one no job waits."""
        _kill(process)
        self._alive -= 1
        if not self._alive:
            self._idle.put_nowait(None)


def _widen(process: asyncio.subprocess.Process) -> None:
    """Enlarge the pipe to a worker from 64 kB where the system allows it: a job is megabytes."""
    if process.stdin is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(process.stdin.transport.get_extra_info("pipe"), fcntl.F_SETPIPE_SZ, _PIPE)


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _result_of(process: asyncio.subprocess.Process, job: VerificationJob) -> list[Prepared | None]:
    if process.stdin is None or process.stdout is None:
        raise BrokenPipeError
    body = pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
    process.stdin.write(LENGTH.pack(len(body)) + body)
    await process.stdin.drain()
    (size,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    done: list[Prepared | None] = pickle.loads(await process.stdout.readexactly(size))  # noqa: S301 - our own process
    return done


@asynccontextmanager
async def working(count: int) -> AsyncIterator[WorkerPool | None]:
    """A pool of ``count`` workers, not started yet; None if ``count`` is 0."""
    if not count:
        yield None
        return
    workers = WorkerPool(count)
    try:
        yield workers
    finally:
        await workers.close()
