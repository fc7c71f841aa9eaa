"""Worker process that verifies and encodes blocks for a feed.

It reads jobs from standard input and writes results to standard output, each a length of four bytes and a pickle: both
ends are the same program and own the pipe. It ends when its input ends.

The result for a block that fails any check is None: the feed repeats the verification and reports the error.
"""

from __future__ import annotations

import pickle
import signal
import struct
import sys
from typing import BinaryIO, Final, NamedTuple

import msgspec

from cardinal.errors import CardinalError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality
from cardinal_ethereum.feed.chain.blocks import BlockHeader, header_of
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcReceipt

from .completion import with_header
from .rules import Rules, clamped

LENGTH: Final = struct.Struct(">I")


class VerificationJob(NamedTuple):
    """Blocks to verify.

    Attributes:
        rules: rules of the chain.
        finality: finality of blocks after the merge.
        final: total difficulty of those; zero where unknown.
        raws: JSON of each block and of its receipts, as fetched.

    """

    rules: Rules
    finality: Finality | None
    final: int
    raws: list[tuple[bytes, bytes]]


class Prepared(NamedTuple):
    """Verified block. ``total`` is its total difficulty as claimed by the node, or 1; after the merge the job's.

    ``size`` is the size of the responses in bytes.
    """

    header: BlockHeader
    total: int
    payload: Payload
    size: int


def prepare(job: VerificationJob) -> list[Prepared | None]:
    """Process a job: a result for each block, None for one that fails."""
    return [_prepared(job, block, receipts) for block, receipts in job.raws]


def _prepared(job: VerificationJob, block_text: bytes, receipts_text: bytes) -> Prepared | None:
    try:
        block = with_header(msgspec.json.decode(block_text, type=RpcBlock), block_text)
        receipts = msgspec.json.decode(receipts_text, type=list[RpcReceipt])
        header = header_of(block)
        total = (int(header.total_difficulty or "0x0", 16) or 1) if int(header.difficulty, 16) else job.final
        if any(receipt.block_hash != block.hash for receipt in receipts):
            return None  # the chain changed between the two responses
        if block.uncles:
            return None  # the feed has to request them
        written = job.rules.checked(block, receipts, [], header.id)
        marks = None if job.finality is None else clamped(job.finality, header.height)
        return Prepared(header, total, job.rules.payload(written, total, marks), len(block_text) + len(receipts_text))
    except (CardinalError, msgspec.DecodeError, RecursionError):
        return None


def serve(jobs: BinaryIO, results: BinaryIO) -> None:
    """Process jobs until the input ends."""
    while len(head := jobs.read(LENGTH.size)) == LENGTH.size:
        job: VerificationJob = pickle.loads(jobs.read(*LENGTH.unpack(head)))  # noqa: S301 - written by the process that started us
        body = pickle.dumps(prepare(job), pickle.HIGHEST_PROTOCOL)
        results.write(LENGTH.pack(len(body)) + body)
        results.flush()


def main() -> None:
    """Entry point; ignores SIGINT, since the parent process ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
