"""Minipool: links and votes. Rounds: the combination of votes. Observers: acknowledgements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.protocols.replication import Block, Ref, Rules, State
from cardinal.protocols.replication.pool import Pool
from cardinal.protocols.replication.rounds import Round, combine, cut
from replicating import EMPTY, MEMBERS, batch, block, chain, name


def pool(state: State, *blocks: Block) -> Pool:
    it = Pool()
    it.relink(state)
    for one in blocks:
        it.add(one)
    return it


def names(blocks: list[Block]) -> list[str]:
    return [one.hash.rstrip(b".").decode() for one in blocks]


STATE = EMPTY.after(batch(EMPTY, chain("99a", "100a", "101a", "102a")))
"""The head is 102a, its weight 3."""


def test_nothing_is_linked_before_there_is_a_state() -> None:
    it = Pool()
    it.add(block("100a", "99a"))
    assert it.first is None
    assert it.suffix(9) == []
    assert not it.links(block("101a", "100a"))
    it.relink(EMPTY)
    assert names(it.suffix(9)) == ["100a"]


@pytest.mark.parametrize("order", [1, -1])
def test_the_suffix_is_the_best_descendant_of_the_head(order: int) -> None:
    blocks = [*chain("102a", "103a", "104a"), *chain("102a", "103b"), *chain("101a", "102b", "103c")]
    assert names(pool(STATE, *blocks[::order]).suffix(9)) == ["103a", "104a"]
    assert names(pool(STATE, *blocks[::order]).suffix(1)) == ["103a"]


def test_another_tip_must_be_heavier_than_head_and_descendants() -> None:
    side = [block("102b", "101a", 3), block("103b", "102b", 5)]
    assert names(pool(STATE, side[0]).suffix(9)) == []
    assert names(pool(STATE, *side).suffix(9)) == ["102b", "103b"]
    assert names(pool(STATE, *side, block("103a", "102a", 5)).suffix(9)) == ["103a"]
    assert names(pool(STATE, *side, block("103a", "102a", 4)).suffix(9)) == ["102b", "103b"]


def test_removed_blocks_are_unlinked() -> None:
    blocks = chain("102a", "103a", "104a")
    it = pool(STATE, *blocks, block("104b", "103a"))
    assert it.size == 30
    it.remove(blocks[1])
    it.relink(STATE)
    assert names(it.suffix(9)) == ["103a", "104b"]
    it.remove(blocks[0])
    it.relink(STATE)
    assert it.first is None
    assert (it.size, names(list(it.children(name("103a"))))) == (10, ["104b"])


@given(st.data())
def test_a_pool_votes_alike_whatever_the_order_of_arrival(data: st.DataObject) -> None:
    blocks = [
        *chain("102a", "103a", "104a", "105a"), *chain("103a", "104b"), *chain("101a", "102b", "103b", "104c", "105c"),
    ]  # fmt: skip
    some = data.draw(st.lists(st.sampled_from(blocks), unique=True))
    expected = pool(STATE, *some).suffix(9)
    assert pool(STATE, *data.draw(st.permutations(some))).suffix(9) == expected
    late = Pool()
    for one in some:
        late.add(one)
    late.relink(STATE)
    assert late.suffix(9) == expected


# --- rounds -----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_combined_votes_are_a_path(data: st.DataObject) -> None:
    """A vote is a path from the agreed blocks; what more than half voted for is one, too."""
    parents = {0: 0}
    for one in range(1, data.draw(st.integers(1, 12))):
        parents[one] = data.draw(st.integers(0, one - 1))

    def path(tip: int) -> tuple[Ref, ...]:
        refs: list[Ref] = []
        while tip:
            refs.insert(0, Ref(depth(tip), bytes([tip])))
            tip = parents[tip]
        return tuple(refs)

    def depth(one: int) -> int:
        return 0 if one == 0 else 1 + depth(parents[one])

    size = data.draw(st.integers(1, 5))
    votes = [path(data.draw(st.sampled_from(sorted(parents)))) for _ in range(size)]
    combined = combine(votes, size // 2 + 1)
    assert tuple(combined) == (path(combined[-1].hash[0]) if combined else ())


def test_a_path_is_cut_at_a_missing_body_at_a_gap_and_at_the_limits() -> None:
    blocks = chain("99a", "100a", "101a", "102a", "103a")
    refs = [one.ref for one in blocks]
    held = {one.hash: one for one in blocks}
    assert cut(refs, held, 9, 999) == blocks
    assert cut(refs, held, 2, 999) == blocks[:2]
    assert cut(refs, held, 9, 35) == blocks[:3]
    assert cut(refs, held, 9, 1) == blocks[:1]
    assert cut(refs, {one: held[one] for one in held if one != refs[2].hash}, 9, 999) == blocks[:2]
    assert cut([refs[0], refs[2]], held, 9, 999) == blocks[:1]


def test_votes_are_combined_when_more_would_not_help() -> None:
    a, b = Ref(100, name("100a")), Ref(101, name("101a"))
    turn = Round(1, 1, 0.0)
    turn.vote("a", (a, b), 2, 0.0)
    assert turn.result("a", MEMBERS, 0.05, 1.0) is None
    turn.vote("b", (a,), 2, 1.0)
    assert turn.result("a", MEMBERS, 0.05, 1.0) is None
    assert turn.result("a", MEMBERS, 0.05, 1.05) == [a]
    assert turn.result("a", MEMBERS, 0.05, 2.0) is None
    turn = Round(2, 1, 0.0)
    for member in "abc":
        turn.vote(member, (a,) if member == "c" else (a, b), 2, 0.0)
    assert turn.result("a", MEMBERS, 9.0, 0.0) == [a, b]
    turn = Round(3, 1, 0.0)
    turn.vote("a", (a,), 2, 0.0)
    turn.vote("b", (a, b), 2, 0.0)
    assert turn.result("a", MEMBERS, 9.0, 0.0) == [a]


def test_rules_are_no_part_of_the_state() -> None:
    other = State.empty(Rules(100, 9, 9), MEMBERS.cluster, MEMBERS.stream)
    assert other.digest == EMPTY.digest
