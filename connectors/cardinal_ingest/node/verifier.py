"""Verifier of an ingest node: an application's checks, run beside the event loop.

Rules:

1. Checks that read the content run in worker processes, started when they are needed; others on a thread.
2. A worker that ends at its work decides nothing. The next block gets a new one.
3. Workers are subprocesses with pipes, not a ``ProcessPoolExecutor``: they end when their input ends, also where the
   node is killed. Signals to the process group are the node's to handle.
"""

from __future__ import annotations

import asyncio
import pickle
import queue
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO, Final

from cardinal.errors import ApplicationError
from cardinal_ingest.errors import VerifierError

if TYPE_CHECKING:
    from cardinal_ingest.node.blocks import Blocks
    from cardinal_ingest.protocols.publish import BlockId

_WORKERS: Final = 2
_COMMAND: Final = f"from {__name__} import main; main()"
_ENDS_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.5
"""After a worker ended: its block comes again at once, and may end the next one too."""


class Verifier:
    """Verifies blocks of an application.

    Arguments:
        blocks: the application's.
        workers: blocks that are verified at once.

    """

    def __init__(self, blocks: Blocks, workers: int = _WORKERS) -> None:
        self._blocks = blocks
        self._threads = ThreadPoolExecutor(workers, "cardinal-ingest-verification")
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        """A place for each worker: the one that worked last is the next to work."""
        for _ in range(workers):
            self._idle.put(None)

    async def verify(self, block: BlockId, parent: BlockId, body: bytes) -> None:
        """Verify a body.

        Raises:
            ApplicationError: it is not this block.
            VerifierError: a worker ended; nothing is known of the block.

        """
        check = self._in_worker if self._blocks.reads_content else self._blocks.verify
        await asyncio.get_running_loop().run_in_executor(self._threads, check, block, parent, body)

    def close(self) -> None:
        """Finish what is being verified, and end the workers."""
        self._threads.shutdown()
        while not self._idle.empty():
            worker = self._idle.get()
            if worker is not None:
                worker.close()

    def _in_worker(self, block: BlockId, parent: BlockId, body: bytes) -> None:
        worker = self._idle.get()
        try:
            worker = worker or _Worker(self._blocks)
            refusal = worker.verify(block, parent, body)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            if worker is not None:
                worker.close()
            worker = None
            time.sleep(_PAUSE_SECONDS)
            raise VerifierError(f"the worker process that verified block {block.number} ended") from error
        finally:
            self._idle.put(worker)
        if refusal is not None:
            raise ApplicationError(refusal)


class _Worker:
    """A worker process: one block at a time."""

    def __init__(self, blocks: Blocks) -> None:
        command, pipe = [sys.executable, "-c", _COMMAND], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)  # noqa: S603 - ourselves
        self._send(blocks)

    def verify(self, block: BlockId, parent: BlockId, body: bytes) -> str | None:
        """Why the block is refused; None where it is not."""
        self._send((block, parent, body))
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        refusal: str | None = pickle.load(self._process.stdout)  # noqa: S301 - our own process
        return refusal

    def close(self) -> None:
        """End the process."""
        try:
            self._process.communicate(timeout=_ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        pickle.dump(value, self._process.stdin, pickle.HIGHEST_PROTOCOL)
        self._process.stdin.flush()


def serve(jobs: BinaryIO, verdicts: BinaryIO) -> None:
    """Verify blocks until the input ends."""
    try:
        blocks: Blocks = pickle.load(jobs)  # noqa: S301 - written by the process that started us
        while True:
            block, parent, body = pickle.load(jobs)  # noqa: S301 - the same
            refusal = None
            try:
                blocks.verify(block, parent, body)
            except ApplicationError as error:
                refusal = str(error)
            pickle.dump(refusal, verdicts)
            verdicts.flush()
    except (EOFError, pickle.UnpicklingError, BrokenPipeError):
        return  # the node has closed us, or was killed


def main() -> None:
    """Entry point of a worker."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
