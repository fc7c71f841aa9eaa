"""Which of a feed's blocks are published as one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.protocols.streams import Payload
from cardinal.protocols.streams.types import BlockRef
from cardinal.server.produce.reorg_grouping import Branch, ReorgGrouping, Step
from streams import chain, h, name

THRESHOLD = 3


def shown(steps: list[Step]) -> list[str]:
    """`["5a", "2a<3b 4b"]`: a block, a branch above its ancestor."""
    return [
        f"{name(step.ancestor.hash)}<{' '.join(name(one.hash) for one in step.payloads)}"
        if isinstance(step, Branch)
        else name(step.hash)
        for step in steps
    ]


def given_all(branches: ReorgGrouping, payloads: list[Payload]) -> list[str]:
    return shown([step for payload in payloads for step in branches.receive(payload)])


def begun(spec: str, *, together: bool = False) -> ReorgGrouping:
    branches = ReorgGrouping(THRESHOLD, together=together)
    given_all(branches, chain(spec))
    return branches


def test_blocks_on_the_head_and_within_the_threshold_go_one_by_one() -> None:
    branches = ReorgGrouping(THRESHOLD)
    assert given_all(branches, chain("1a 2a 3a 4a")) == ["1a", "2a", "3a", "4a"]
    assert given_all(branches, chain("2b 3b 4b 5b", root="1a")) == ["2b", "3b", "4b", "5b"]
    assert branches.rest() == []


def test_a_deep_branch_waits_until_it_is_heavier_and_goes_as_one() -> None:
    branches = begun("1a 2a 3a 4a 5a")
    assert given_all(branches, chain("2b 3b 4b 5b", root="1a")) == []
    assert given_all(branches, chain("6b 7b", root="5b")) == ["1a<2b 3b 4b 5b 6b", "7b"]


def test_together_every_branch_goes_as_one() -> None:
    branches = begun("1a 2a 3a 4a", together=True)
    assert given_all(branches, chain("4b 5b 6b", root="3a")) == ["3a<4b 5b", "6b"]


def test_a_branch_that_is_left_is_there_when_the_node_comes_back_to_it_or_above_it() -> None:
    branches = begun("1a 2a 3a 4a 5a")
    assert given_all(branches, chain("2b 3b 4b", root="1a")) == []
    assert given_all(branches, chain("4c 5c 6c", root="3b")) == ["1a<2b 3b 4c 5c 6c"]
    branches = begun("1a 2a 3a 4a 5a")
    given_all(branches, chain("2b 3b", root="1a"))
    assert given_all(branches, chain("6a", root="5a")) == ["6a"]
    assert branches.rest() == []
    assert given_all(branches, chain("4b 5b 6b", root="3b")) == []
    assert given_all(branches, chain("7a", root="6a")) == ["7a"]
    assert given_all(branches, chain("7b 8b 9b", root="6b")) == ["1a<2b 3b 4b 5b 6b 7b 8b", "9b"]


def test_a_branch_beside_the_chain_that_leaves_it_ever_deeper_goes_as_one_with_what_went_alone() -> None:
    branches = begun("1a 2a 3a")
    assert given_all(branches, chain("3b", root="2a")) == ["3b"]
    both = [chain(f"{at}{side}", root=f"{at - 1}{side}")[0] for at in range(4, 8) for side in "ab"]
    assert given_all(branches, both) == ["4a", "4b", "5a", "5b", "6a", "7a"]
    assert given_all(branches, chain("8b", root="7b")) == ["2a<3b 4b 5b 6b 7b 8b"]


def test_back_to_a_branch_that_was_the_chain_its_evicted_content_is_requested() -> None:
    branches = begun("1a 2a 3a 4a 5a")
    given_all(branches, chain("2b 3b 4b 5b 6b", root="1a"))
    (step,) = [step for payload in chain("6a 7a", root="5a") for step in branches.receive(payload)]
    assert isinstance(step, Branch)
    assert step.missing
    assert (name(step.ancestor.hash), [name(one) for one in step.hashes]) == (
        "1a",
        ["2a", "3a", "4a", "5a", "6a", "7a"],
    )
    assert {name(one) for one in step.held} == {"6a", "7a"}


def test_where_every_branch_goes_as_one_the_content_of_newer_blocks_is_at_hand() -> None:
    branches = begun("1a 2a 3a 4a", together=True)
    assert given_all(branches, chain("4b 5b", root="3a")) == ["3a<4b 5b"]
    assert given_all(branches, chain("5a 6a", root="4a")) == ["3a<4a 5a 6a"]
    assert given_all(branches, chain("6b 7b", root="5b")) == ["3a<4b 5b 6b 7b"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal.server.produce.reorg_grouping.HASHES_MAX", 20)
    monkeypatch.setattr("cardinal.server.produce.reorg_grouping.CONTENT_MAX", 10)
    branches = ReorgGrouping(THRESHOLD)
    names = [f"{number}a" for number in range(1, 60)]
    given_all(branches, chain(" ".join(names)))
    given_all(branches, chain(" ".join(f"{number}b" for number in range(41, 59)), root="40a"))
    given_all(branches, chain(" ".join(f"{number}c" for number in range(41, 58)), root="40a"))
    assert len(branches._chain) == len(branches._side) == 20
    assert len(branches._content) == 10
    assert len(branches._withheld) == 20


def test_the_end_of_the_feed_gives_what_is_kept() -> None:
    branches = begun("1a 2a 3a 4a 5a")
    given_all(branches, chain("2b 3b", root="1a"))
    assert shown(branches.rest()) == ["1a<2b 3b"]
    assert branches.rest() == []


def test_after_a_restart_the_depth_counts_from_what_is_published() -> None:
    branches = ReorgGrouping(THRESHOLD, [BlockRef(at, h(f"{at}a")) for at in range(1, 6)], 5)
    assert given_all(branches, chain("6a", root="5a")) == ["6a"]
    assert given_all(branches, chain("2b 3b 4b 5b 6b 7b", root="1a")) == ["1a<2b 3b 4b 5b 6b 7b"]


def test_a_sibling_of_the_first_block_of_all_is_a_block() -> None:
    assert given_all(begun("0a 1a 2a 3a 4a", together=True), chain("0b", root="xx")) == ["0b"]


@given(seed=st.integers(0, 10**6), together=st.booleans())
def test_nothing_of_the_final_chain_is_left_out_and_branches_are_linked(seed: int, together: bool) -> None:  # noqa: FBT001 - of Hypothesis
    rng = random.Random(seed)
    given_ = chain("0a")
    head = given_[0]
    for index in range(1, 60):
        parents = [one for one in given_ if one.number >= head.number - 6]
        parent = head if rng.random() < 0.6 else rng.choice(parents)
        block = Payload(parent.number + 1, h(f"{parent.number + 1}x{index}"), parent.hash, parent.number + 1)
        given_.append(block)
        head = max(head, block, key=lambda one: one.weight)
    branches = ReorgGrouping(THRESHOLD, together=together)
    steps = [step for payload in given_ for step in branches.receive(payload)] + branches.rest()
    published = {}
    for step in steps:
        if isinstance(step, Branch):
            assert step.ancestor.hash in published, "its ancestor was left out"
            known = [one for one in given_ if one.hash in step.hashes]
            assert [one.hash for one in known] == list(step.hashes)
            blocks = known
        else:
            blocks = [step]
        for payload in blocks:
            assert not payload.number or payload.parent in published, "its parent was left out"
            published[payload.hash] = payload
    assert max(one.weight for one in published.values()) == head.weight
