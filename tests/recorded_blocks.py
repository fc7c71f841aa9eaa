"""Recorded blocks of real nodes: own ones, which stand in the repository, and in addition those of real chains.

The own ones (``data/blocks``) were made by geth and anvil under the rules of every fork (``data/make_blocks``). Those
of real chains stand in ``../shared/fixtures``; where that is absent the same tests run without them, and one test is
skipped with that reason (``conformance/test_recorded_blocks.py``).
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cardinal.protocols.streams.types import BlockRef
from cardinal_devkit.testing.replay import ReplayChain
from cardinal_ethereum import payload_from_rpc
from cardinal_ethereum.chains import Chain, chain_of
from evm_blocks import Json, data
from evm_values import values_of

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

    from cardinal.protocols.streams.payload import Payload

OWN = Path(__file__).parent / "data/blocks"
REAL = Path(__file__).parents[2] / "shared/fixtures"
MAINNET = REAL / "mainnet"
ABSENT = "blocks of mainnet are not at ../shared/fixtures: the tests of recorded blocks ran with the own ones alone"

MERGED_AT_GENESIS = 1
"""The reference's total difficulty of a chain without presets whose node reports none."""


@dataclass(frozen=True)
class RecordedBlock:
    """A block as its node printed it.

    Attributes:
        name: the client or chain, the fork and the number.
        fork: the fork whose rules the block follows; empty where nobody recorded it.
        chain: parameters of its chain.
        block: with full transactions, as ``receipts`` and ``uncles``.
        total: total difficulty up to and with this block.
        values: its entries by the reference's producer, or as the tests recompute them.

    """

    name: str
    fork: str
    chain: Chain = field(repr=False)
    block: Json = field(repr=False)
    receipts: list[Json] = field(repr=False)
    uncles: list[Json] = field(repr=False)
    total: int
    values: dict[str, bytes] = field(repr=False)

    @property
    def number(self) -> int:
        return int(self.block["number"], 16)

    @property
    def ref(self) -> BlockRef:
        return BlockRef(self.number, data(self.block["hash"]))

    @property
    def weight(self) -> int:
        """The total difficulty, and after the merge the number on top of it."""
        return self.total + (0 if int(self.block["difficulty"], 16) else self.number)

    def recomputed(self) -> dict[str, bytes]:
        """Its entries, recomputed from what its node printed."""
        parts = (self.block, self.receipts, self.uncles)
        return values_of(*parts, chain_id=self.chain.chain_id, total=self.total)

    def payload(self, **options: Any) -> Payload:  # noqa: ANN401 -- those of payload_from_rpc
        return payload_from_rpc(
            *(self.block, self.receipts),
            chain_id=self.chain.chain_id,
            chain=self.chain,
            uncles=self.uncles,
            total_difficulty=self.total,
            **options,
        )


def _block(name: str, fork: str, chain: Chain, entry: Json, total: int) -> RecordedBlock:
    block, receipts, uncles = entry["block"], entry["receipts"], entry.get("uncles", [])
    values = values_of(block, receipts, uncles, chain_id=chain.chain_id, total=total)
    whole = f"{name}-{fork}-{int(block['number'], 16)}".replace(" ", "-").replace("--", "-")
    return RecordedBlock(whole, fork, chain, block, receipts, uncles, total, values)


def read(path: Path) -> Json:
    loaded: Json = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


@cache
def geth() -> list[RecordedBlock]:
    """One chain from its genesis block on, through all forks."""
    recording = read(OWN / "geth.json.gz")
    entries = recording["blocks"]
    totals = list(accumulate(int(entry["block"]["difficulty"], 16) for entry in entries))
    chain = Chain(
        chain_id=recording["chainId"],
        name="every fork",
        genesis=entries[0]["block"]["hash"],
        final_total_difficulty=totals[-1],
        status_from=recording["forks"]["byzantium"],
    )
    forks = sorted(recording["forks"].items(), key=lambda fork: fork[1])
    names = [next((name for name, first in reversed(forks) if first <= at), "frontier") for at in range(len(entries))]
    return [
        _block("geth", name, chain, entry, total) for name, entry, total in zip(names, entries, totals, strict=True)
    ]


@cache
def anvil() -> list[RecordedBlock]:
    """A chain for each fork, without its genesis block."""
    return [
        _block("anvil", one["fork"], chain_of(one["chainId"]), entry, MERGED_AT_GENESIS)
        for one in read(OWN / "anvil.json.gz")["chains"]
        for entry in one["blocks"]
    ]


def own(name: str) -> RecordedBlock:
    return next(one for one in (*geth(), *anvil()) if one.name == name)


@cache
def mainnet() -> list[RecordedBlock]:
    """Blocks of mainnet in the order of their numbers, with the reference's values; none where they are absent."""
    found = []
    for path in sorted(MAINNET.glob("[0-9]*[0-9].json.gz")):
        if "messages" not in path.name:
            entry = read(path)
            values = {where: bytes.fromhex(value) for where, value in entry["values"].items()}
            total = int(entry["weight"])
            name = f"mainnet-{entry['number']}"
            block = (entry["block"], entry["receipts"], [], total, values)
            found.append(RecordedBlock(name, "london", chain_of(1), *block))
    return found


@cache
def elsewhere() -> list[RecordedBlock]:
    """Other blocks of real chains, without the reference's values and with a total difficulty of our own."""
    return [
        _block(path.name.split("-")[0], "", chain_of(chain_id), read(path), 2**70)
        for name, chain_id in (("ethereum", 1), ("polygon", 137))
        for path in sorted((REAL / "chains").glob(f"{name}-*.json.gz"))
    ]


def messages(number: int) -> Json:
    """The reference's messages of a block of mainnet."""
    return read(MAINNET / f"{number}.messages.json.gz")


def cases(*blocks: RecordedBlock) -> list[ParameterSet]:
    """Own blocks as parameters of a test; without any named, all of them."""
    return [pytest.param(one, id=one.name) for one in blocks or (*geth(), *anvil())]


def real(blocks: list[RecordedBlock]) -> list[ParameterSet]:
    """Blocks of real chains as more parameters of a test: none where they are absent."""
    return [pytest.param(one, id=one.name) for one in blocks]


def chains() -> list[ParameterSet]:
    """Recordings of one chain each, as parameters of a test: geth's, and mainnet's where it is."""
    return [one for one in recordings() if one.id != "anvil"]


def node_of(blocks: list[RecordedBlock]) -> ReplayChain:
    """A node of a recorded chain, with total difficulties where its first block is not the chain's."""
    chain = ReplayChain(chain_id=blocks[0].chain.chain_id)
    for one in blocks:
        served = {"totalDifficulty": hex(one.total)} if blocks[0].number else {}
        head = chain.add(one.block | served, one.receipts, one.uncles)
    chain.set_head(head, announce="silent")
    return chain


def recordings() -> list[ParameterSet]:
    """Recordings as parameters of a test, each a function that returns its blocks: own ones, and mainnet's if there."""
    found = (geth, anvil, mainnet) if MAINNET.is_dir() else (geth, anvil)
    return [pytest.param(one, id=one.__name__) for one in found]
