"""Fork choice, case by case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from cardinal.errors import ConfigurationError, CursorMismatchError, MissingPayloadError
from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Finality,
    FinalityViolated,
    ForkBelowStart,
    MissingPayload,
    OnFinalityViolation,
    Orderer,
    Payload,
    Quarantined,
    Stale,
)
from cardinal.protocols.streams.events import Change
from cardinal.protocols.streams.ordering.orderer import OrderingSettings
from streams import block, chain, cursor_at, h, name


def start(threshold: int = 128, whitelist: Mapping[int, bytes] | None = None, **options: object) -> Orderer:
    return Orderer(BlockRef(0, h("0g")), 0, threshold, whitelist, OrderingSettings(**options))  # type: ignore[arg-type]


def feed(orderer: Orderer, blocks: Iterable[Payload]) -> list[str]:
    return [shape(update) for payload in blocks for update in orderer.receive(payload)]


def shape(update: ChainUpdate) -> str:
    return " ".join(f"-{name(b.hash)}" for b in update.removed) + "".join(f"+{name(b.hash)}" for b in update.added)


def test_children_extend_the_head_one_update_each() -> None:
    assert feed(start(), chain("1a 2a 3a")) == ["+1a", "+2a", "+3a"]


def test_a_heavier_branch_is_one_update_newest_removed_first() -> None:
    assert feed(start(), chain("1a 2a 3a | 1a 2b 3b 4b")) == ["+1a", "+2a", "+3a", "-3a -2a+2b+3b+4b"]


def test_an_equal_weight_keeps_the_first_received() -> None:
    assert feed(start(), chain("1a 2a | 1a 2b")) == ["+1a", "+2a"]


def test_a_lighter_child_extends_the_head_all_the_same() -> None:
    assert feed(start(), chain("1a 2a", {"1a": 10, "2a": 5})) == ["+1a", "+2a"]


def test_a_shorter_but_heavier_branch_removes_more_than_it_adds() -> None:
    assert feed(start(), chain("1a 2a 3a | 1b", {"1b": 9})) == ["+1a", "+2a", "+3a", "-3a -2a -1a+1b"]


def test_children_that_wait_leave_with_their_parent_in_one_update() -> None:
    blocks = {name(b.hash): b for b in chain("1a 2a 3a")}
    assert feed(start(), [blocks["3a"], blocks["2a"], blocks["1a"]]) == ["+1a+2a+3a"]


def test_of_waiting_branches_the_heaviest_goes() -> None:
    blocks = {name(b.hash): b for b in chain("1a 2a 3a | 1a 2b 3b", {"3a": 3, "3b": 7})}
    order = ["2a", "3a", "2b", "3b", "1a"]
    assert feed(start(), [blocks[key] for key in order]) == ["+1a+2b+3b"]


def test_a_branch_off_the_start_block_is_a_reorg() -> None:
    assert feed(start(), chain("1a 2a | 1b 2b 3b")) == ["+1a", "+2a", "-2a -1a+1b+2b+3b"]


def test_the_way_back_to_a_branch_that_was_left_is_known() -> None:
    assert feed(start(), chain("1a 2a | 1a 2b 3b | 1a 2a 3a 4a")) == ["+1a", "+2a", "-2a+2b+3b", "-3b -2b+2a+3a+4a"]


def test_blocks_below_the_threshold_are_dropped_and_reported() -> None:
    orderer = start(threshold=2)
    feed(orderer, chain("1a 2a 3a 4a"))
    assert feed(orderer, [block("1b", "0g", 99)]) == []
    assert orderer.take_reports() == [Stale(BlockRef(1, h("1b")), "farther below the head than the reorg threshold")]


def test_a_number_that_does_not_follow_its_parent_is_quarantined() -> None:
    orderer = start()
    feed(orderer, chain("1a"))
    assert feed(orderer, [block("7a", "1a")]) == []
    (event,) = orderer.take_reports()
    assert isinstance(event, Quarantined)
    assert "its number is 7" in event.reason
    assert feed(orderer, chain("1a 2a")[1:]) == ["+2a"]


def test_a_waiting_block_with_a_wrong_number_goes_with_all_above_it() -> None:
    orderer = start()
    waiting = [block("5x", "1a"), block("6x", "5x")]
    assert feed(orderer, [*waiting, *chain("1a 2a")]) == ["+1a", "+2a"]
    assert {name(e.block) for e in orderer.take_reports() if isinstance(e, Quarantined)} == {"5x", "6x"}


@pytest.mark.parametrize("order", [["2b", "3b", "1a", "2a"], ["1a", "2a", "3b", "2b"], ["1a", "2b", "2a", "3b"]])
def test_a_whitelist_refuses_the_other_block_and_its_descendants(order: list[str]) -> None:
    blocks = {name(b.hash): b for b in chain("1a 2a | 1a 2b 3b", {"3b": 50})}
    orderer = start(whitelist={2: h("2a")})
    shapes = feed(orderer, [blocks[key] for key in order])
    assert shapes == ["+1a", "+2a"]
    assert {name(e.block) for e in orderer.take_reports() if isinstance(e, Quarantined)} == {"2b", "3b"}


def test_a_whitelist_that_contradicts_the_cursor_refuses_to_resume() -> None:
    orderer = Orderer(whitelist={2: h("2b")})
    with pytest.raises(CursorMismatchError, match="whitelist pins another block at 2"):
        orderer.restore(cursor_at([BlockRef(2, h("2a"))], 2, 1), [])


@pytest.mark.parametrize("order", [["2b", "3b", "1a", "2a"], ["1a", "2a", "3b", "2b"], ["1a", "2b", "2a", "3b"]])
def test_a_blacklist_refuses_a_block_and_its_descendants(order: list[str]) -> None:
    blocks = {name(b.hash): b for b in chain("1a 2a | 1a 2b 3b", {"3b": 50})}
    orderer = start(blacklist=[h("2b")])
    shapes = feed(orderer, [blocks[key] for key in order])
    assert shapes == ["+1a", "+2a"]
    assert {name(e.block) for e in orderer.take_reports() if isinstance(e, Quarantined)} == {"2b", "3b"}


def test_a_blacklist_that_names_a_delivered_block_refuses_to_resume() -> None:
    orderer = Orderer(settings=OrderingSettings(blacklist=frozenset({h("2a")})))
    with pytest.raises(CursorMismatchError, match="blacklist names a block at 2"):
        orderer.restore(cursor_at([BlockRef(2, h("2a"))], 2, 1), [])


# --- start from nothing ------------------------------------------------------------------------------------


def test_nothing_is_delivered_before_the_reader_has_caught_up() -> None:
    orderer = Orderer()
    assert feed(orderer, chain("5a 6a | 5b 6b 7b", root="4g")) == []
    assert [shape(update) for update in orderer.caught_up()] == ["+5b+6b+7b"]
    assert feed(orderer, [block("8b", "7b")]) == ["+8b"]


def test_a_chain_longer_than_the_threshold_starts_without_waiting() -> None:
    orderer = Orderer(reorg_threshold=4)
    shapes = feed(orderer, chain(" ".join(f"{i}a" for i in range(1, 30)), root="0g"))
    assert shapes[0].startswith("+1a+2a+3a+4a+5a")
    assert shapes[-1] == "+29a"


def test_a_heavier_chain_with_the_starts_parent_removes_through_the_start() -> None:
    orderer = Orderer()
    feed(orderer, chain("5a 6a", root="4g"))
    orderer.caught_up()
    assert feed(orderer, chain("5b 6b 7b", root="4g")) == ["-6a -5a+5b+6b+7b"]


def test_a_heavier_chain_from_deeper_is_reported_once() -> None:
    orderer = Orderer()
    feed(orderer, chain("5a 6a", root="4g"))
    orderer.caught_up()
    assert feed(orderer, chain("4b 5b 6b 7b 8b", root="3g")) == []
    assert orderer.take_reports() == [
        Stale(BlockRef(4, h("4b")), "below the first block of this stream"),
        ForkBelowStart(BlockRef(7, h("7b")), BlockRef(5, h("5a"))),
    ]


def test_the_genesis_block_can_be_the_start() -> None:
    orderer = Orderer()
    feed(orderer, [block("0a", "none"), block("1a", "0a")])
    assert [shape(update) for update in orderer.caught_up()] == ["+0a+1a"]


# --- finality ----------------------------------------------------------------------------------------------


def marks(table: Mapping[str, Finality]) -> dict[str, object]:
    return {"finality_of": lambda item: table.get(name(item.hash))}


def test_finality_rises_and_never_falls() -> None:
    table = {"1a": Finality(1, 0), "2a": Finality(0, None), "3a": Finality(2, 1)}
    orderer = start(**marks(table))
    seen = [orderer.receive(b)[0].finality for b in chain("1a 2a 3a")]
    assert seen == [Finality(1, 0), Finality(1, 0), Finality(2, 1)]


@pytest.mark.parametrize(
    ("policy", "shapes"), [(OnFinalityViolation.HALT, []), (OnFinalityViolation.FOLLOW, ["-3a -2a+2b+3b+4b"])]
)
def test_a_switch_below_a_finalized_block_latches(policy: OnFinalityViolation, shapes: list[str]) -> None:
    orderer = start(on_finality_violation=policy, **marks({"3a": Finality(None, 2)}))
    feed(orderer, chain("1a 2a 3a"))
    assert feed(orderer, chain("1a 2b 3b 4b")) == shapes
    assert orderer.violation == FinalityViolated(BlockRef(4, h("4b")), 2)
    assert orderer.violation in orderer.take_reports()


# --- resuming ----------------------------------------------------------------------------------------------


def test_after_resuming_everything_is_judged_once_with_the_ring_that_is_read_again() -> None:
    orderer = Orderer()
    ring = [BlockRef(3, h("3a")), BlockRef(2, h("2a")), BlockRef(1, h("1a"))]
    (update,) = orderer.restore(cursor_at(ring, 3, 3), [*chain("1a 2a | 1a 2b 3b 4b"), *chain("1a 2a 3a")[2:]])
    assert shape(update) == "-3a -2a+2b+3b+4b"
    assert all(isinstance(removed, Payload) for removed in update.removed)
    assert (update.first_seq, update.seq) == (4, 8)


def test_a_removed_block_that_cannot_be_read_again_is_a_missing_payload() -> None:
    orderer = Orderer()
    assert orderer.restore(cursor_at([BlockRef(2, h("2a")), BlockRef(1, h("1a"))], 2, 2), []) == []
    (update,) = orderer.receive(block("2b", "1a", 9))
    assert update.removed == (MissingPayload(2, h("2a")),)
    with pytest.raises(MissingPayloadError, match="block 2"):
        update.inverted()


def test_resumed_at_the_streams_start_nothing_that_was_never_delivered_is_removed() -> None:
    """Blocks 1a and 2a were read before the stream's first block, 3a: a better chain above 1a is no chain of ours."""
    orderer = Orderer()
    assert orderer.restore(cursor_at([BlockRef(3, h("3a"))], 3, 1), chain("1a 2a 3a | 1a 2b 3b 4b")) == []
    assert feed(orderer, [block("5b", "4b")]) == []
    assert orderer.take_reports() == [ForkBelowStart(BlockRef(4, h("4b")), BlockRef(3, h("3a")))]
    assert feed(orderer, [block("4a", "3a")]) == ["+4a"]


# --- values ------------------------------------------------------------------------------------------------


def test_an_update_and_its_inverse_undo_each_other() -> None:
    orderer = start()
    *_, update = [u for b in chain("1a 2a | 1a 2b 3b") for u in orderer.receive(b)]
    back = update.inverted()
    assert (back.removed, back.added) == (update.added[::-1], update.removed[::-1])
    assert (update.change, back.change) == (Change.REORG, Change.REORG)
    assert back.first_seq == update.seq + 1
    assert repr(update) == "<ChainUpdate 3..5 -2:00000000 +2:00000000 +3:00000000>"


def test_updates_are_values() -> None:
    one, other = start().receive(block("1a", "0g")), start().receive(block("1a", "0g"))
    assert one == other
    assert len({one[0], other[0]}) == 1
    assert one[0] != "update"
    with pytest.raises(AttributeError, match="seq"):
        one[0].seq = 2  # type: ignore[misc]
    with pytest.raises(LookupError, match="no cursor"):
        _ = one[0].cursor


def test_a_threshold_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="threshold"):
        Orderer(reorg_threshold=0)
