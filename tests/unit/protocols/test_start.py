"""First block of a stream that is read from its beginning while content of some blocks is missing."""

from __future__ import annotations

import pytest

from cardinal.protocols.streams import BlockRef, Orderer, Payload
from cardinal.protocols.streams.ordering.orderer import OrderingSettings
from cardinal.protocols.streams.ordering.start import StartCandidate
from channels import line, shape
from streams import h


def patient(*blocks: Payload, threshold: int = 128) -> Orderer:
    orderer = Orderer(reorg_threshold=threshold, settings=OrderingSettings(patient=True))
    for block in blocks:
        assert orderer.receive(block) == []
    return orderer


def begins(orderer: Orderer, *incomplete: Payload) -> tuple[int, int, int]:
    candidate = orderer.candidate(incomplete)
    assert candidate is not None
    return candidate.start.number, candidate.length, candidate.lowest


CHAIN = line("a", 0, 60, "none")


@pytest.mark.parametrize("threshold", [4, 128])
def test_one_lost_message_near_the_beginning_hides_no_complete_block_below_it(threshold: int) -> None:
    orderer = patient(*CHAIN[:25], *CHAIN[26:], threshold=threshold)
    assert begins(orderer) == ((26, 35, 0) if threshold == 128 else (0, 25, 0))
    assert begins(orderer, CHAIN[25]) == (0, 60, 0)
    assert [shape(update) for update in orderer.begin(BlockRef(0, CHAIN[0].hash))] == [
        "".join(f"+{number}a" for number in range(25))
    ]
    assert orderer.orphans() == [(CHAIN[25].hash, 25)]
    (update,) = orderer.bridge(CHAIN[25])
    assert shape(update) == "+?25a" + "".join(f"+{number}a" for number in range(26, 61))


def test_a_chain_leads_through_several_incomplete_blocks_but_begins_with_a_complete_one() -> None:
    orderer = patient(*CHAIN[3:10], *CHAIN[13:])
    assert begins(orderer, *CHAIN[:3], *CHAIN[10:13]) == (3, 55, 3)
    assert begins(orderer, *CHAIN[:3], *CHAIN[10:12])[0] == 13, "one of their Batches is missing too"


def test_the_heaviest_chain_decides_through_incomplete_blocks_too() -> None:
    low, high = line("a", 1, 9, "0r"), line("b", 6, 12, "5a", 50)
    orderer = patient(*low[:4], *low[5:], *high)
    assert orderer.candidate([low[4]]) == StartCandidate(BlockRef(1, h("1a")), 11, 1)


def test_no_chain_leads_through_a_batch_whose_number_does_not_rise() -> None:
    false = Payload(30, h("5a"), h("4a"), 5)
    low = line("a", 1, 9, "0r")
    orderer = patient(*low[:4], *low[5:])
    assert begins(orderer, false) == (6, 4, 1)
    assert begins(orderer, Payload(5, h("5a"), h("9a"), 5)) == (6, 4, 1), "its parent is above it"


def test_a_block_is_no_child_of_one_with_its_own_number() -> None:
    orderer = patient(*line("a", 1, 6, "0r"), Payload(6, h("6x"), h("6a"), 99))
    assert orderer.candidate() == StartCandidate(BlockRef(6, h("6x")), 1, 1)


def test_a_complete_block_counts_as_what_it_is_also_where_it_is_called_incomplete() -> None:
    orderer = patient(*CHAIN)
    assert begins(orderer, *CHAIN) == (0, 61, 0)
    assert Orderer().candidate(CHAIN) is None
