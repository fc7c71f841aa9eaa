"""The repository's own recorded blocks: each fits its hash and roots, and every fork and kind of content is there."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from evm_blocks import LATER, ZERO_ADDRESS, created, receipts_of, sealed
from recorded_blocks import (
    ABSENT,
    MAINNET,
    OWN,
    RecordedBlock,
    anvil,
    cases,
    elsewhere,
    geth,
    mainnet,
    real,
    recordings,
)

FORKS = (
    *("frontier", "homestead", "tangerine whistle", "spurious dragon", "byzantium", "constantinople", "petersburg"),
    *("istanbul", "berlin", "london", "paris", "shanghai", "cancun", "prague", "osaka"),
)
UP_TO_OSAKA = LATER[:6]
"""Header fields of the recorded forks; those of Amsterdam follow."""
FIRST_FORK_OF_FIELD = dict(
    zip(UP_TO_OSAKA, ("london", "shanghai", "cancun", "cancun", "cancun", "prague"), strict=True)
)
FIRST_FORK_OF_TYPE = {"0x0": "frontier", "0x1": "berlin", "0x2": "london", "0x3": "cancun", "0x4": "prague"}
PER_FORK = 3
MOST_BYTES = 400_000


def place(one: RecordedBlock) -> int:
    return FORKS.index(one.fork)


@pytest.mark.parametrize("recorded", [*cases(), *real([*mainnet(), *elsewhere()])])
def test_a_block_fits_its_hash_roots_and_bloom(recorded: RecordedBlock) -> None:
    """All of them are recomputed from the parts alone (``evm_blocks``)."""
    receipts = receipts_of(recorded.block["transactions"], recorded.receipts)
    block, _ = sealed(recorded.block, recorded.block["transactions"], receipts, recorded.uncles)
    assert block == recorded.block
    for claimed, computed, sent in zip(recorded.receipts, receipts, block["transactions"], strict=True):
        names = ("cumulativeGasUsed", "logsBloom", "logs", "transactionHash", "type")
        assert [claimed[name] for name in names] == [computed[name] for name in names]
        assert claimed["contractAddress"] == (None if sent["to"] else created(sent["from"], sent["nonce"]))


def test_geths_chain_goes_from_its_genesis_block_through_every_fork() -> None:
    chain = geth()
    assert [one.number for one in chain] == list(range(len(chain)))
    assert all(above.block["parentHash"] == below.block["hash"] for below, above in pairwise(chain))
    assert [fork for fork, _ in groupby(one.fork for one in chain)] == [*FORKS]


def test_anvil_has_a_chain_for_every_fork() -> None:
    chains = [[*blocks] for _, blocks in groupby(anvil(), key=lambda one: one.chain.chain_id)]
    assert [{one.fork for one in chain} for chain in chains] == [{fork} for fork in FORKS]
    for below, above in chains:
        assert above.block["parentHash"] == below.block["hash"]
        assert (below.number, above.number) == (1, 2)


@pytest.mark.parametrize("recorded", cases())
def test_a_block_has_the_header_of_its_fork(recorded: RecordedBlock) -> None:
    due = {name for name, fork in FIRST_FORK_OF_FIELD.items() if FORKS.index(fork) <= place(recorded)}
    assert {name for name in LATER if name in recorded.block} == due
    if recorded.name.startswith("geth"):  # anvil has neither proof of work nor post-state roots
        assert (recorded.block["difficulty"] == "0x0") == (place(recorded) >= FORKS.index("paris"))
        outcome = {name for receipt in recorded.receipts for name in ("root", "status") if name in receipt}
        assert outcome <= {"status" if place(recorded) >= FORKS.index("byzantium") else "root"}


@pytest.mark.parametrize("fork", FORKS)
def test_a_fork_has_every_kind_of_content(fork: str) -> None:
    at = FORKS.index(fork)
    ours = [one for one in geth() if one.fork == fork][-PER_FORK:]
    busy, other, empty = ours
    sent = busy.block["transactions"]
    assert {one["type"] for one in sent} == {
        kind for kind, first in FIRST_FORK_OF_TYPE.items() if FORKS.index(first) <= at
    }
    assert len({one["from"] for one in sent}) == 2
    assert sum(one["to"] is None for one in sent) >= 5, "contracts are created"
    assert any(one["v"] in {"0x1b", "0x1c"} for one in sent), "signed for every chain"
    assert (at < FORKS.index("spurious dragon")) == all(one["v"] in {"0x1b", "0x1c"} for one in sent)
    assert {len(log["topics"]) for receipt in busy.receipts for log in receipt["logs"]} == {0, 1, 3, 4}
    if at >= FORKS.index("byzantium"):
        failed = [receipt for receipt in busy.receipts if receipt["status"] == "0x0"]
        assert {receipt["to"] is None for receipt in failed} == {True, False}
    assert bool(other.uncles) == (at < FORKS.index("paris"))
    assert bool(other.block.get("withdrawals")) == (at >= FORKS.index("shanghai"))
    if at >= FORKS.index("prague"):
        assert other.block["requestsHash"] != empty.block["requestsHash"]
        assert any(one["authorizationList"] for one in sent if one["type"] == "0x4")
    assert (empty.block["transactions"], empty.uncles, empty.block.get("withdrawals") or []) == ([], [], [])
    theirs = [one for one in anvil() if one.fork == fork]
    kinds = {one["type"] for one in theirs[0].block["transactions"]}
    assert kinds == {one["type"] for one in sent} - {"0x3"}
    assert {receipt["status"] for receipt in theirs[0].receipts} == {"0x0", "0x1"}
    assert any(receipt["logs"] for receipt in theirs[0].receipts)
    assert any(receipt["contractAddress"] not in {None, ZERO_ADDRESS} for receipt in theirs[0].receipts)
    assert not theirs[1].block["transactions"]


def test_the_recordings_are_small() -> None:
    assert 0 < sum(path.stat().st_size for path in OWN.iterdir()) < MOST_BYTES


@pytest.mark.skipif(not MAINNET.is_dir(), reason=ABSENT)
def test_blocks_of_real_chains_are_taken_in_addition() -> None:
    assert [one.number for one in mainnet()] == list(range(14_000_000, 14_000_011))
    assert {one.chain.name for one in elsewhere()} == {"mainnet", "polygon"}
    assert len(real(mainnet())) == len(mainnet())
    assert recordings()[-1].values == (mainnet,)
