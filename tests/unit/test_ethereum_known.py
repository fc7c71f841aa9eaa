"""The memory of a feed: closed under parents, bounded, several branches side by side."""

from __future__ import annotations

import pytest

from cardinal.protocols.streams.types import BlockRef
from cardinal_connectors.ethereum.chain.recent_blocks import RecentBlocks


def name(text: str) -> bytes:
    return text.encode().ljust(32, b"\0")


def ref(text: str) -> BlockRef:
    return BlockRef(int(text[:-1]), name(text))


def test_nothing_is_known_at_first() -> None:
    known = RecentBlocks([], window=10)
    assert not known
    assert name("1a") not in known
    assert known.numbers() == []


def test_published_blocks_are_known_without_their_totals() -> None:
    known = RecentBlocks([ref("5a"), ref("6a"), ref("7a")], window=10)
    assert name("6a") in known
    assert (known.number(name("7a")), known.total(name("7a"))) == (7, None)
    assert (known.oldest(), known.highest) == (ref("5a"), 7)
    known.learn(name("7a"), 70)
    assert known.total(name("7a")) == 70


def test_parent_of_the_first_block_is_remembered_with_its_total() -> None:
    known = RecentBlocks([], window=10)
    known.add(ref("8a"), name("7a"), total=80, difficulty=9)
    assert known.number(name("7a")) == 7
    assert known.total(name("7a")) == 71


def test_block_zero_has_no_parent_to_remember() -> None:
    known = RecentBlocks([], window=10)
    known.add(ref("0a"), bytes(32), total=9, difficulty=9)
    assert known.numbers() == [0]
    assert bytes(32) not in known


def test_branches_are_kept_side_by_side() -> None:
    known = RecentBlocks([ref("1a"), ref("2a"), ref("3a")], window=10)
    known.add(ref("2b"), name("1a"), total=2, difficulty=1)
    assert all(name(text) in known for text in ("2a", "3a", "2b"))
    assert known.highest == 3
    assert known.numbers() == [1, 2, 3]


@pytest.mark.parametrize("window", [1, 5])
def test_blocks_far_below_the_highest_are_forgotten(window: int) -> None:
    known = RecentBlocks([], window=window)
    for number in range(1000):
        known.add(ref(f"{number}a"), name(f"{number - 1}a"), total=number, difficulty=1)
        assert len(known) <= window + 1
    assert known.oldest() == ref(f"{999 - window}a")
    assert name("3a") not in known


@pytest.mark.parametrize(("published", "window"), [(40, 0), (40, 1), (40, 7), (8, 7), (7, 7)])
def test_published_blocks_far_below_the_highest_are_forgotten_too(published: int, window: int) -> None:
    """From the beginning, and after the first block that is given; of two branches both."""
    refs = [ref(f"{number}{branch}") for number in range(100, 100 + published) for branch in "ab"]
    known = RecentBlocks(refs, window=window)
    highest = 99 + published
    kept = list(range(max(100, highest - window), highest + 1))
    assert known.numbers() == kept
    assert len(known) == 2 * len(kept)
    assert {one.hash for one in refs if one.hash in known} == {one.hash for one in refs if one.number >= kept[0]}
    known.add(ref(f"{highest + 1}a"), name(f"{highest}a"), total=9, difficulty=1)
    assert known.numbers() == list(range(max(100, highest + 1 - window), highest + 2))
    assert known.oldest().number == known.numbers()[0]


@pytest.mark.parametrize("jump", [2, 30, 5_000])
def test_everything_that_a_jump_leaves_far_below_is_forgotten_at_once(jump: int) -> None:
    """What is published may have gaps, where producers left blocks half published."""
    known = RecentBlocks([ref(f"{number}a") for number in range(10, 20)], window=9)
    known.add(ref(f"{19 + jump}a"), name(f"{18 + jump}a"), total=9, difficulty=1)
    assert known.numbers() == [*(number for number in range(10, 20) if number >= 10 + jump), 19 + jump]
