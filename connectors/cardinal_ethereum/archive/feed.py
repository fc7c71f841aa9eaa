"""Feed of recorded blocks: from the first unpublished one to the last, each verified.

Rules:

1. Files are listed at the start; numbers have no gap, and each block is the child of the one before. A stream begins
   with an existing block.
2. A block passes the same checks as one from a node. One that fails is reported, without a retry.
3. The feed ends with the last file.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cardinal.errors import (
    ConfigurationError,
    FeedError,
    IntegrityError,
    NodeAnswerError,
    ReorgTooDeepError,
    WrongChainError,
)
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import BlockRef
from cardinal_ethereum.feed.settings import FeedSettings
from cardinal_ethereum.feed.verify.completion import with_header
from cardinal_ethereum.feed.verify.rules import Rules
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcHeader, RpcReceipt

_RUNS: Final = 3
"""Ranges of numbers that an error lists."""

_ENDING: Final = ".json.gz"
_FILE: Final = re.compile(r"\d+\.json\.gz")


def check_folder(folder: Path) -> None:
    """Raise ConfigurationError if a folder cannot be read or holds no block."""
    _first(folder, _numbers_in(folder), None, None)


def _first(folder: Path, numbers: Sequence[int], start: int | None, until: int | None) -> int:
    """Number of the first block of a stream; ConfigurationError if the archive does not hold it."""
    if not numbers:
        raise ConfigurationError(
            f"the archive {folder} holds no block: name a folder with files NUMBER{_ENDING}", setting="from"
        )
    first = numbers[0] if start is None else start
    if first not in numbers:
        raise ConfigurationError(
            f"the archive {folder} holds {_ranges(numbers)}, not block {first}: start with one that it holds",
            setting="start",
        )
    if until is not None and until < first:
        raise ConfigurationError(
            f"the archive {folder} holds {_ranges(numbers)}, and a stream from block {first} cannot stop at block "
            f"{until}: stop at a later one, or start with an earlier one",
            setting="until",
        )
    return first


def _ranges(numbers: Sequence[int]) -> str:
    """The numbers as text: the first few ranges."""
    begins = [at for at, number in enumerate(numbers) if at == 0 or numbers[at - 1] != number - 1]
    ends = [*(at - 1 for at in begins[1:]), len(numbers) - 1]
    runs = [(numbers[begin], numbers[end]) for begin, end in zip(begins, ends, strict=True)]
    words = [f"{low} to {high}" if low != high else str(low) for low, high in runs[:_RUNS]]
    more = f" and others up to {numbers[-1]}" if len(runs) > _RUNS else ""
    return f"block{'s' if len(numbers) > 1 else ''} {', '.join(words)}{more}"


def _numbers_in(folder: Path) -> list[int]:
    """Numbers of the recorded blocks; other files are ignored."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise ConfigurationError(f"the archive {folder} cannot be read: {error.strerror}", setting="from") from None
    return sorted(int(name.removesuffix(_ENDING)) for name in names if _FILE.fullmatch(name))


class _File(msgspec.Struct):
    """Content of a file."""

    block: RpcBlock
    receipts: list[RpcReceipt]
    uncles: list[RpcHeader] = []


class ArchiveFeed:
    """A :class:`~cardinal.feeds.BlockFeed` of a folder.

    Arguments:
        folder: folder of the files.
        chain_id: chain id of the blocks.

    """

    def __init__(self, folder: Path, *, chain_id: int) -> None:
        self._folder = folder
        self._rules = Rules.of(chain_id, FeedSettings())
        self._target: int | None = None

    @property
    def target(self) -> int | None:
        """Number of the last block of the stream; None before it is known, and for an empty range."""
        return self._target

    async def chain_id(self) -> int:
        """The chain id that the archive was opened with."""
        return self._rules.chain.chain_id

    async def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncGenerator[Payload]:
        """Yield the unpublished blocks; see :class:`~cardinal.feeds.BlockFeed`.

        Raises:
            ConfigurationError: the folder cannot be read; nothing is published, and it does not hold the first block.
            ReorgTooDeepError: the archive has none of ``published``.
            NodeAnswerError: a file between others is missing, or a file is malformed.
            WrongChainError: a block is not the child of the one before.
            IntegrityError: a block contradicts itself.

        """
        numbers = await asyncio.to_thread(_numbers_in, self._folder)
        before = await self._common(published, numbers)
        self._target = None
        first = _first(self._folder, numbers, start, until) if before is None else before.number + 1
        last = numbers[-1] if until is None else min(until, numbers[-1])
        self._target = last if last >= first else None
        for number in range(first, last + 1):
            block = await asyncio.to_thread(self._read, number)
            payload = self._payload(number, block)
            if before is not None and payload.parent != before.hash:
                raise WrongChainError(
                    f"block {number} of the archive is not the child of block {before.number} "
                    f"(0x{before.hash.hex()}), so the files are of two chains: re-record one of them"
                )
            before = BlockRef(number, payload.hash)
            yield payload

    async def check_beginning(self, start: int | None, until: int | None) -> None:
        """Raise ConfigurationError if a stream cannot have this range.

        Arguments:
            start: the first block; None for the first in the archive.
            until: the last block; None for the last in the archive.

        """
        _first(self._folder, await asyncio.to_thread(_numbers_in, self._folder), start, until)

    async def block(self, block_hash: bytes) -> Payload | None:
        """The block with this hash, or None; reads the files one by one."""
        for number in await asyncio.to_thread(_numbers_in, self._folder):
            block = await asyncio.to_thread(self._read, number)
            if block.block.hash == f"0x{block_hash.hex()}":
                return self._payload(number, block)
        return None

    async def close(self) -> None:
        """Nothing to release."""

    async def _common(self, published: Sequence[BlockRef], numbers: Sequence[int]) -> BlockRef | None:
        """The highest published block in the archive."""
        existing = set(numbers)
        for ref in reversed(published):
            if ref.number in existing:
                block = await asyncio.to_thread(self._read, ref.number)
                if block.block.hash == f"0x{ref.hash.hex()}":
                    return ref
        if not published:
            return None
        oldest = published[0]
        raise ReorgTooDeepError(
            f"the archive has none of the published blocks down to {oldest.number} (0x{oldest.hash.hex()}): "
            f"use an archive of the chain that is streamed, or start a new stream (--topic)",
            number=oldest.number,
            block_hash=oldest.hash,
        )

    def _read(self, number: int) -> _File:
        path = self._folder / f"{number}{_ENDING}"
        try:
            text = gzip.decompress(path.read_bytes())
            file = msgspec.json.decode(text, type=_File)
            file.block = with_header(file.block, msgspec.json.decode(text, type=dict[str, msgspec.Raw])["block"])
        except FileNotFoundError:
            raise NodeAnswerError(f"the archive lacks block {number}; re-record it") from None
        except (OSError, EOFError, zlib.error, msgspec.DecodeError) as failure:
            raise NodeAnswerError(
                f"the archive's file of block {number} cannot be read: {failure}; re-record it"
            ) from failure
        return file

    def _payload(self, number: int, block: _File) -> Payload:
        name = block.block.hash
        try:
            wanted = bytes.fromhex(name[2:])
        except ValueError:
            raise NodeAnswerError(f"the archive's file of block {number} names no hash: re-record it") from None
        written = self._rules.checked(block.block, block.receipts, block.uncles, wanted)
        if written.number != number:
            raise IntegrityError(
                f"the archive's file of block {number} holds block {written.number}: rename or re-record it",
                number=number,
                block_hash=wanted,
                check="number",
            )
        total = int(block.block.total_difficulty or "0x0", 16) or int(block.block.difficulty, 16)
        if int(block.block.difficulty, 16) and number and not block.block.total_difficulty:
            raise FeedError(
                f"block {number} of the archive has no totalDifficulty: record it from a node that serves it"
            )
        return self._rules.payload(written, total, None)
