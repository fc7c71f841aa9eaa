"""A process that checks and writes blocks for a feed.

It reads jobs from its standard input and writes what came of them to its standard output, each a length of four bytes
and a pickle: both ends are the same program, and nobody else has the pipe. It ends when its input does.

A block that does not pass for whatever reason comes to None: the feed looks at it itself then, and says why.
"""

from __future__ import annotations

import pickle
import signal
import struct
import sys
from typing import BinaryIO, Final, NamedTuple

import msgspec

from cardinal.apps.evm.rpc.structures import RpcBlock, RpcReceipt
from cardinal.errors import CardinalError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality

from .headers import Header, header_of
from .rules import Rules, clamped

LENGTH: Final = struct.Struct(">I")


class Job(NamedTuple):
    """Blocks to check.

    Attributes:
        rules: what they have to satisfy.
        finality: marks for those that come after the merge.
        final: the total difficulty of those; zero where it is not known.
        raws: for each block its JSON and that of its receipts, as the node gave them.

    """

    rules: Rules
    finality: Finality | None
    final: int
    raws: list[tuple[bytes, bytes]]


class Prepared(NamedTuple):
    """A block that passed. ``total`` is its total difficulty by the node's word, after the merge by the job's.

    ``size`` is the length of the answers in bytes.
    """

    header: Header
    total: int
    payload: Payload
    size: int


def prepare(job: Job) -> list[Prepared | None]:
    """What comes of a job, block by block."""
    return [_prepared(job, block, receipts) for block, receipts in job.raws]


def _prepared(job: Job, block_text: bytes, receipts_text: bytes) -> Prepared | None:
    try:
        block = msgspec.json.decode(block_text, type=RpcBlock)
        receipts = msgspec.json.decode(receipts_text, type=list[RpcReceipt])
        header = header_of(block)
        total = int(header.total_difficulty or "0x0", 16) if int(header.difficulty, 16) else job.final
        if any(receipt.block_hash != block.hash for receipt in receipts):
            return None  # between the two answers the chain has moved
        if block.uncles or (int(header.difficulty, 16) and not total):
            return None  # what is missing has to be asked for
        written = job.rules.checked(block, receipts, [], header.id)
        marks = None if job.finality is None else clamped(job.finality, header.height)
        return Prepared(header, total, job.rules.payload(written, total, marks), len(block_text) + len(receipts_text))
    except (CardinalError, msgspec.DecodeError, RecursionError):
        return None


def serve(jobs: BinaryIO, results: BinaryIO) -> None:
    """Work until there are no more jobs."""
    while len(head := jobs.read(LENGTH.size)) == LENGTH.size:
        job: Job = pickle.loads(jobs.read(*LENGTH.unpack(head)))  # noqa: S301 - written by the process that started us
        body = pickle.dumps(prepare(job), pickle.HIGHEST_PROTOCOL)
        results.write(LENGTH.pack(len(body)) + body)
        results.flush()


def main() -> None:
    """Serve the process that started this one, which alone decides when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
