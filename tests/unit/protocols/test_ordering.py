"""Orderer: fork choice, the start, refusals, finality, resuming, bounds; and no lie makes it raise or hang."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from cardinal.errors import ConfigurationError, CursorMismatchError, MissingPayloadError
from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Completed,
    Finality,
    FinalityViolated,
    ForkBelowStart,
    MissingPayload,
    OnFinalityViolation,
    Orderer,
    Overflow,
    Payload,
    Quarantined,
    Stale,
)
from cardinal.protocols.streams.events import Change
from cardinal.protocols.streams.ordering.history import ChainHistory, Parents
from cardinal.protocols.streams.ordering.orderer import Reach
from cardinal.protocols.streams.ordering.settings import OrderingSettings
from channels import shape
from examples import few
from streams import cursor_at, h, name, number

ROOT = BlockRef(0, h("0g"))


def header(name_: str, parent: str, weight: int | None = None, *, at: int | None = None) -> Payload:
    at = number(name_) if at is None else at
    return Payload(at, h(name_), h(parent), at if weight is None else weight)


def run(tag: str, first: int, last: int, below: str) -> list[Payload]:
    names = [below, *(f"{at}{tag}" for at in range(first, last + 1))]
    return [header(child, parent) for parent, child in pairwise(names)]


def chain(spec: str, **weights: int) -> list[Payload]:
    """Blocks, each on the one before it; ``2b:1a`` stands on 1a. Weights are numbers, or given as ``w2b``."""
    blocks, below = [], "0g"
    for item in spec.split():
        child, _, parent = item.partition(":")
        blocks.append(header(child, parent or below, weights.get(f"w{child}")))
        below = child
    return blocks


def start(reorg_threshold: int = 128, whitelist: Mapping[int, bytes] | None = None, **options: object) -> Orderer:
    return Orderer(ROOT, 0, reorg_threshold, whitelist, OrderingSettings(**options))  # type: ignore[arg-type]


def begun(*blocks: Payload, threshold: int = 128) -> Orderer:
    """Begun by itself with these blocks."""
    orderer = Orderer(reorg_threshold=threshold)
    feed(orderer, blocks)
    orderer.caught_up()
    return orderer


def resumed(
    orderer: Orderer, ring: str, blocks: Iterable[Payload] = (), *, first: str = "", **options: bytes | frozenset[bytes]
) -> list[str]:
    """The updates after a restart with this ring, newest first."""
    refs = [BlockRef(number(one), h(one)) for one in ring.split()]
    begin = BlockRef(number(first), h(first)) if first else None
    cursor = cursor_at(refs, refs[0].number, len(refs), begin, **options)  # type: ignore[arg-type]
    return [shape(update) for update in orderer.restore(cursor, blocks)]


def feed(orderer: Orderer, blocks: Iterable[Payload]) -> list[str]:
    return [shape(update) for payload in blocks for update in orderer.receive(payload)]


def reported(orderer: Orderer, kind: type) -> list[str]:
    """The names of blocks in such reports."""
    return [name(one.block) for one in orderer.take_reports() if isinstance(one, kind)]  # type: ignore[union-attr]


# --- fork choice -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "updates"),
    [
        pytest.param(chain("1a 2a 3a 2b:1a 3b 4b"), "+1a +2a +3a -3a-2a+2b+3b+4b", id="heavier, newest removed first"),
        pytest.param(chain("1a 2a 3a 1b:0g", w1b=9), "+1a +2a +3a -3a-2a-1a+1b", id="shorter but heavier"),
        pytest.param(chain("1a 2a 2b:1a 3b 3a:2a 4a"), "+1a +2a -2a+2b+3b -3b-2b+2a+3a+4a", id="back again"),
        pytest.param(chain("3a:2a 2a:1a 1a:0g"), "+1a+2a+3a", id="children wait for their parent"),
        pytest.param(chain("2a:1a 3a 2b:1a 3b 1a:0g", w3b=7), "+1a+2b+3b", id="of waiting branches the heaviest"),
        pytest.param(chain("2a:1a 3a 1a:0g", w2a=90, w3a=5), "+1a+2a+3a", id="the middle is heaviest"),
        pytest.param(chain("5x:1a 6x 1a:0g 2a"), "+1a +2a", id="a waiting block with a wrong number"),
    ],
)
def test_the_chain_that_blocks_make(blocks: list[Payload], updates: str) -> None:
    assert " ".join(feed(start(), blocks)) == updates


def test_a_number_that_does_not_follow_is_refused_with_all_above_it_also_at_the_start() -> None:
    orderer = begun(header("1a", "0g"), header("2a", "1a"), header("9z", "2a"), header("10z", "9z"))
    assert orderer.head == BlockRef(2, h("2a"))
    (first, second) = orderer.take_reports()
    assert isinstance(first, Quarantined)
    assert first.reason == "its number is 9, its parent's is 2"
    assert isinstance(second, Quarantined)


def test_a_side_branch_whose_fork_point_is_forgotten_goes_with_it() -> None:
    orderer = start(reorg_threshold=3)
    feed(orderer, [*run("a", 1, 5, "0g"), *run("b", 3, 5, "2a")])
    assert orderer.state_of(h("5b")) == "on a side branch"
    feed(orderer, run("a", 6, 6, "5a"))
    assert not any(orderer.holds(h(f"{at}b")) for at in (3, 4, 5))
    assert orderer.state_of(h("5b")) == "pruned: farther below the head than the reorg threshold"
    assert orderer.take_reports() == []
    assert feed(orderer, [header("6b", "5b", 99)]) == [], "it has no way back to the chain"


def test_a_long_extension_can_be_divided_into_several_updates_but_no_switch() -> None:
    orderer = start(max_update=3)
    feed(orderer, run("a", 2, 8, "1a"))
    assert feed(orderer, run("a", 1, 1, "0g")) == ["+1a+2a+3a", "+4a+5a+6a", "+7a+8a"]
    feed(orderer, run("b", 4, 9, "3b"))
    assert feed(orderer, run("b", 3, 3, "2a")) == ["-8a-7a-6a-5a-4a-3a+3b+4b+5b+6b+7b+8b+9b"]


@pytest.mark.parametrize(
    ("until", "max_update", "updates"),
    [
        (0, None, ["+1a+2a+3a+4a+5a"]),
        (1, None, ["+1a", "+2a+3a+4a+5a"]),
        (4, None, ["+1a+2a+3a+4a", "+5a"]),
        (5, None, ["+1a+2a+3a+4a+5a"]),
        (9, None, ["+1a+2a+3a+4a+5a"]),
        (3, 2, ["+1a+2a", "+3a", "+4a+5a"]),
        (4, 2, ["+1a+2a", "+3a+4a", "+5a"]),
    ],
)
def test_an_extension_across_a_number_is_divided_there(until: int, max_update: int | None, updates: list[str]) -> None:
    orderer = start(until=until, max_update=max_update)
    feed(orderer, run("a", 2, 5, "1a"))
    assert feed(orderer, run("a", 1, 1, "0g")) == updates


def test_a_switch_across_a_number_is_one_update() -> None:
    orderer = start(until=3)
    feed(orderer, [*run("a", 1, 2, "0g"), *run("b", 3, 5, "2b")])
    assert feed(orderer, run("b", 2, 2, "1a")) == ["-2a+2b+3b+4b+5b"]


def test_below_the_floor_there_is_no_fork_point_until_the_head_falls() -> None:
    orderer = start(reorg_threshold=2)
    feed(orderer, run("a", 1, 6, "0g"))
    assert not orderer.holds(h("3a"))
    assert feed(orderer, [header("5b", "4a", 50)]) == ["-6a-5a+5b"]
    assert feed(orderer, [header("3a", "2a")]) == [], "it was delivered"
    assert feed(orderer, [header("4c", "3a", 60)]) == ["-5b-4a+4c"]


# --- the start ---------------------------------------------------------------------------------------------


def test_a_chain_longer_than_the_threshold_starts_without_waiting() -> None:
    orderer = Orderer(reorg_threshold=4)
    first, *_, last = feed(orderer, run("a", 1, 29, "0g"))
    assert first.startswith("+1a+2a+3a+4a+5a")
    assert last == "+29a"


def test_a_start_is_not_searched_among_refused_blocks() -> None:
    orderer = Orderer(reorg_threshold=1, whitelist={1: h("1z")})
    assert feed(orderer, [header(f"1{tag}", "0g") for tag in "abc"]) == []


def test_a_block_below_the_start_is_refused_and_a_heavier_fork_from_there_reported_once() -> None:
    orderer = begun(*run("a", 5, 6, "4g"))
    assert feed(orderer, run("b", 4, 8, "3g")) == []
    assert orderer.take_reports() == [
        Stale(BlockRef(4, h("4b")), "below the first block of this stream"),
        ForkBelowStart(BlockRef(7, h("7b")), BlockRef(5, h("5a"))),
    ]


def test_what_comes_below_the_start_late_makes_its_parent_a_fork_point_and_nothing_deeper() -> None:
    orderer = begun(header("3a", "2a"))
    late = [header("2a", "1a"), header("1a", "0a"), header("2b", "1a"), header("3b", "2b", 5), header("4b", "3b", 7)]
    assert feed(orderer, late) == []
    assert [one for one in orderer.take_reports() if isinstance(one, ForkBelowStart)] == [
        ForkBelowStart(BlockRef(3, h("3b")), BlockRef(3, h("3a")))
    ]
    assert feed(orderer, [header("3c", "2a", 4)]) == ["-3a+3c"]


@pytest.mark.parametrize("last", ["4b", "3b", "2b"])
def test_a_better_chain_below_the_start_is_reported_whichever_of_its_blocks_comes_last(last: str) -> None:
    orderer = begun(header("3a", "2a"), threshold=8)
    better = [header("5b", "4b"), header("4b", "3b", 2), header("3b", "2b", 1), header("2b", "1b", 1)]
    feed(orderer, sorted(better, key=lambda one: one.hash == h(last)))
    assert [one for one in orderer.take_reports() if isinstance(one, ForkBelowStart)] == [
        ForkBelowStart(BlockRef(5, h("5b")), BlockRef(3, h("3a")))
    ]


def test_a_reader_that_begins_above_a_given_block_never_removes_it_nor_takes_a_chain_from_below() -> None:
    orderer = Orderer(BlockRef(3, h("3a")), 3, 8, settings=OrderingSettings(start_delivered=False))
    assert feed(orderer, [header("2a", "1a"), header("3b", "2a", 9), header("4a", "3a")]) == ["+4a"]
    assert orderer.start == BlockRef(4, h("4a"))
    assert feed(orderer, [header("5a", "4a"), header("4b", "3b", 10), header("5b", "4b", 11)]) == ["+5a"]
    assert orderer.is_overtaken
    (report,) = [one for one in orderer.take_reports() if isinstance(one, ForkBelowStart)]
    assert report == ForkBelowStart(BlockRef(4, h("4b")), BlockRef(4, h("4a")))
    assert str(report).endswith("leaves below block 4, where this reader began")
    assert feed(orderer, [header("6a", "5a", 20)]) == ["+6a"]
    assert not orderer.is_overtaken


def test_a_stream_begins_anew_with_a_heavier_chain_below_its_start_and_may_come_back() -> None:
    options = OrderingSettings(begin_anew=True, max_update=1, **marks({"9b": Finality(None, 4)}))  # type: ignore[arg-type]
    orderer = Orderer(settings=options)
    feed(orderer, [header("3a", "2a")])
    assert [shape(update) for update in orderer.caught_up()] == ["+3a"]
    assert feed(orderer, [header("4c", "3a", 3), header("4a", "3a"), header("3b", "2b", 3)]) == ["+4c", "-4c+4a"]
    (update,) = orderer.receive(header("4b", "3b", 5))
    assert shape(update) == "-4a-3a+3b+4b"
    assert (update.first_seq, orderer.start) == (5, BlockRef(3, h("3b")))
    assert (orderer.state_of(h("4c")), orderer.removed_at(h("4c"))) == ("removed", 4)
    assert (orderer.state_of(h("4a")), orderer.removed_at(h("4a"))) == ("removed", 3)
    assert feed(orderer, [header("5a", "4a", 9)]) == ["-4b-3b+3a+4a+5a"]
    assert feed(orderer, [header("5b", "4b", 10), header("6b", "5b", 11)]) == ["-5a-4a-3a+3b+4b+5b", "+6b"]
    blocks = [*run("b", 7, 9, "6b")]
    assert feed(orderer, [replace(block, weight=block.weight + 5) for block in blocks]) == ["+7b", "+8b", "+9b"]
    assert feed(orderer, [header("6a", "5a", 99)]) == []
    assert orderer.violation == FinalityViolated(BlockRef(6, h("6a")), 4)


def test_forks_below_the_start_are_searched_within_a_budget_downwards_and_upwards() -> None:
    orderer = begun(header("5a", "4a"))
    feed(orderer, run("b", 6, 5_000, "5b"))
    orderer._start_forks._steps = 0
    feed(orderer, [header("5b", "4b", 10_000)])
    assert len(orderer.take_reports()) == 1
    feed(orderer, (header(f"5x{index}", f"4x{index}", 10_000, at=5) for index in range(1_100)))
    assert len(orderer._start_forks._reported) == 1_024
    orderer._start_forks._steps = 0
    orderer.take_reports()
    feed(orderer, [header("5001b", "5000b", 10_001)])
    assert orderer.take_reports() == []
    orderer = Orderer(settings=OrderingSettings(max_waiting=60_000))
    feed(orderer, [header("3a", "2a")])
    orderer.caught_up()
    feed(orderer, (Payload(4, index.to_bytes(32, "little"), h("3b"), 9) for index in range(30_000)))
    feed(orderer, [header("3b", "2b", 2)])
    assert orderer.take_reports() == []


def test_the_parent_of_the_start_may_claim_any_number() -> None:
    orderer = begun(header("4z", "3z", 1, at=9), header("5a", "4z", 9))
    assert orderer.head == BlockRef(5, h("5a"))
    assert orderer.take_reports() == [Stale(BlockRef(9, h("4z")), "its number should be 4")]


def test_below_a_given_start_a_chain_is_linked_when_its_parent_comes_last() -> None:
    orderer = Orderer(BlockRef(2, h("2a")), 2)
    assert feed(orderer, [header("2a", "1a"), header("1b", "0g"), header("2b", "1b", 9)]) == []
    assert feed(orderer, [header("1a", "0g")]) == ["-2a-1a+1b+2b"]


def test_a_given_start_that_is_read_is_no_news() -> None:
    orderer = start()
    assert feed(orderer, [header("0q", "none"), header("0g", "none")]) == []
    assert orderer.state_of(h("0g")) == "delivered"


# --- refusals and finality ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["2b 3b 1a 2a", "1a 2a 3b 2b", "1a 2b 2a 3b"])
@pytest.mark.parametrize("options", [{"whitelist": {2: h("2a")}}, {"blacklist": [h("2b")]}], ids=str)
def test_a_blacklist_refuses_a_block_and_its_descendants(options: dict[str, object], order: str) -> None:
    """As a whitelist refuses every other block at a number."""
    blocks = {name(one.hash): one for one in chain("1a 2a 2b:1a 3b", w3b=50)}
    orderer = start(**options)  # type: ignore[arg-type]
    assert feed(orderer, [blocks[key] for key in order.split()]) == ["+1a", "+2a"]
    assert set(reported(orderer, Quarantined)) == {"2b", "3b"}


def test_a_list_that_forbids_a_delivered_block_refuses_to_resume() -> None:
    with pytest.raises(CursorMismatchError, match="whitelist pins another block at 2"):
        resumed(Orderer(whitelist={2: h("2b")}), "2a")
    with pytest.raises(CursorMismatchError, match="blacklist names a block at 2"):
        resumed(Orderer(settings=OrderingSettings(blacklist=frozenset({h("2a")}))), "2a")


def test_a_refused_block_takes_nothing_of_the_delivered_chain_with_it() -> None:
    """The start's parent comes so late that it is forgotten, and the whitelist pins another block at its number."""
    orderer = Orderer(reorg_threshold=1, whitelist={1: h("1z")})
    assert feed(orderer, run("a", 2, 3, "1a")) == ["+2a+3a"]
    assert feed(orderer, [header("1a", "0g")]) == []
    assert reported(orderer, Quarantined) == ["1a"]
    assert feed(orderer, [header("3b", "2a", 4), header("4b", "3b", 5)]) == ["-3a+3b", "+4b"]


def marks(table: Mapping[str, Finality]) -> dict[str, object]:
    return {"finality_of": lambda item: table.get(name(item.hash))}


def test_finality_rises_and_never_falls() -> None:
    """Nor above the block that says so."""
    table = {"1a": Finality(1, 0), "2a": Finality(0, None), "3a": Finality(9, 1)}
    orderer = start(**marks(table))  # type: ignore[arg-type]
    seen = [orderer.receive(one)[0].finality for one in chain("1a 2a 3a")]
    assert seen == [Finality(1, 0), Finality(1, 0), Finality(3, 1)]


@pytest.mark.parametrize(
    ("policy", "shapes"), [(OnFinalityViolation.HALT, []), (OnFinalityViolation.FOLLOW, ["-3a-2a+2b+3b+4b"])]
)
def test_a_switch_below_a_finalized_block_latches(policy: OnFinalityViolation, shapes: list[str]) -> None:
    orderer = start(on_finality_violation=policy, **marks({"3a": Finality(None, 2)}))
    feed(orderer, chain("1a 2a 3a"))
    assert feed(orderer, chain("2b:1a 3b 4b")) == shapes
    assert orderer.violation == FinalityViolated(BlockRef(4, h("4b")), 2)
    assert "would remove the finalized block 2" in str(orderer.violation)
    assert orderer.violation in orderer.take_reports()


# --- resuming ----------------------------------------------------------------------------------------------


def test_after_resuming_everything_is_judged_once_with_the_ring_that_was_re_read() -> None:
    blocks = [*run("a", 1, 2, "0g"), *run("b", 2, 4, "1a"), *run("a", 3, 3, "2a")]
    assert resumed(Orderer(), "3a 2a 1a", blocks) == ["-3a-2a+2b+3b+4b"]


def test_a_removed_block_that_was_not_re_read_is_a_missing_payload() -> None:
    orderer = Orderer()
    assert resumed(orderer, "2a 1a") == []
    (update,) = orderer.receive(header("2b", "1a", 9))
    assert shape(update) == "-?2a+2b"
    with pytest.raises(MissingPayloadError, match="block 2"):
        update.inverted()


@pytest.mark.parametrize(
    ("given", "ring", "options", "read", "then"),
    [
        pytest.param("", "1a", {"first": "1b"}, [("1a", "0g", 5)], {("1c", "0g", 6): "-1a+1c"}, id="a sibling of it"),
        pytest.param(
            *("", "2a", {"first": "2a", "root": h("1g")}, []),
            {("2b", "1g", 3): "-?2a+2b", ("3a", "2a", 4): "-2b+?2a+3a"},
            id="without its content",
        ),
        pytest.param("2a", "2b", {"first": "2b", "root": h("1g")}, [], {("2c", "1g", 4): "-?2b+2c"}, id="a given one"),
        pytest.param(
            *("0g", "1a", {"missing": frozenset([h("1a")])}, [("1a", "0g", 1)]),
            {("1b", "0g", 2): "-?1a+1b", ("2a", "1a", 3): "-1b+1a+2a"},
            id="with content that is disputed",
        ),
        pytest.param(
            *("0g", "2a 1a", {}, []),
            {("1b", "0g", 9): "-?2a-?1a+1b", ("1a", "0g", 1): "", ("2c", "1a", 99): "-1b+1a+2c"},
            id="with content that comes later",
        ),
    ],
)
def test_the_start_is_replaced_after_a_resume_too(
    given: str,
    ring: str,
    options: dict[str, object],
    read: Sequence[tuple[str, str, int]],
    then: Mapping[tuple[str, str, int], str],
) -> None:
    orderer = Orderer(BlockRef(number(given), h(given)) if given else None, 0, reorg_threshold=8)
    assert resumed(orderer, ring, [header(*one) for one in read], **options) == []  # type: ignore[arg-type]
    assert [" ".join(feed(orderer, [header(*one)])) for one in then] == [*then.values()]


def test_resumed_at_the_streams_start_nothing_that_was_never_delivered_is_removed() -> None:
    """Blocks 1a and 2a were read before the stream's first block, 3a: a better chain above 1a is no chain of ours."""
    orderer = Orderer()
    assert resumed(orderer, "3a", [*run("a", 1, 3, "0g"), *run("b", 2, 4, "1a")]) == []
    assert feed(orderer, [header("5b", "4b")]) == []
    assert orderer.take_reports() == [ForkBelowStart(BlockRef(4, h("4b")), BlockRef(3, h("3a")))]
    assert feed(orderer, [header("4a", "3a")]) == ["+4a"]


def test_a_ring_that_reaches_below_the_given_start_is_taken_as_it_is() -> None:
    orderer = Orderer(BlockRef(2, h("2a")), 2)
    assert resumed(orderer, "3b 2a 1b", first="1b") == []
    assert [orderer.history.at(at) for at in (1, 2, 3)] == [h("1b"), h("2a"), h("3b")]
    assert orderer.head == BlockRef(3, h("3b"))
    assert orderer.state_of(h("2a")) == "delivered"


def test_after_a_resume_the_better_of_a_child_and_a_fork_goes_and_older_blocks_can_be_recalled() -> None:
    orderer = Orderer()
    below = BlockRef(1, h("1a"))
    assert orderer.reach(below) is Reach.AHEAD
    blocks = [header("4a", "3a"), *run("b", 3, 6, "2a")]
    assert resumed(orderer, "3a 2a", blocks, first="1a") == ["-?3a+3b+4b+5b+6b"]
    assert orderer.reach(below) is Reach.FORGOTTEN
    assert orderer.recall({h("2a"): h("1a")}) == 1
    assert orderer.reach(below) is Reach.ON_CHAIN
    (update,) = orderer.graft(below, [Completed(payload, {}) for payload in run("c", 2, 9, "1a")])
    assert shape(update).startswith("-6b-5b-4b-3b-?2a+2c")


def test_below_the_floor_nothing_is_linked_after_a_resume() -> None:
    orderer = Orderer(ROOT, 0, reorg_threshold=1)
    resumed(orderer, "2a 1a")
    feed(orderer, [header("1a", "0g")])
    assert not orderer.holds(h("0g"))
    assert feed(orderer, [header("1b", "0g", 50)]) == []


# --- bounds ------------------------------------------------------------------------------------------------


def test_of_too_many_waiting_blocks_the_ones_farthest_above_the_head_go() -> None:
    orderer = start(max_waiting=3)
    feed(orderer, run("a", 2, 6, "1a"))
    reason = "too many blocks wait for a parent"
    assert orderer.take_reports() == [Overflow(h(f"{at}a"), at, {}, reason, h(f"{at - 1}a")) for at in (5, 6)]
    feed(orderer, [header("3z", "2z")])
    assert reported(orderer, Overflow) == ["4a"], "among equals the youngest goes first, but it is not the farthest"
    assert orderer.state_of(h("4a")) == f"evicted: {reason}"
    assert not any(orderer.holds(h(f"{at}a")) for at in (4, 5, 6))
    assert feed(orderer, [header("1a", "0g")]) == ["+1a+2a+3a"]


def test_of_too_many_side_blocks_the_lightest_leaf_goes() -> None:
    orderer = start(max_side=3)
    feed(orderer, run("a", 1, 9, "0g"))
    sides = [("4b", "3a", 2), ("5b", "4b", 4), ("4c", "3a", 3), ("4d", "3a", 3)]
    feed(orderer, [header(*side) for side in sides])
    assert reported(orderer, Overflow) == ["4d"], "of equal leaves the last received; 4b is lighter, but no leaf"
    for child, evicted in (("4e", "4c"), ("4f", "5b"), ("4g", "4b")):
        feed(orderer, [header(child, "3a", 8)])
        assert reported(orderer, Overflow) == [evicted]


def test_blocks_are_bounded_in_bytes_also_when_their_content_comes_later() -> None:
    orderer = start(max_bytes=250)
    for payload in run("a", 2, 5, "1a"):
        orderer.receive(Completed(payload, {}, size=100))
    assert reported(orderer, Overflow) == ["4a", "5a"]
    assert orderer.fullness == 0.8
    assert feed(orderer, run("a", 1, 5, "0g")) == ["+1a+2a+3a", "+4a", "+5a"]
    assert orderer.fullness == 0
    for tag in "bcde":
        orderer.receive(Completed(header(f"4{tag}", "3a"), {}, size=100))
    assert reported(orderer, Overflow) == ["4d", "4e"]
    feed(orderer, [header("6f", "5f", 1)])
    orderer.bridge(header("5f", "4a", 1))
    orderer.receive(Completed(header("5f", "4a", 1), {}, size=100))
    assert reported(orderer, Overflow) == ["6f", "5f"]


def test_what_is_remembered_of_blocks_is_bounded() -> None:
    orderer = start(whitelist={1: h("1a")})
    feed(orderer, (header(f"1x{index}", "0g", at=1) for index in range(5_000)))
    assert orderer.state_of(h("1x0")) is None
    assert orderer.state_of(h("1x4999")) == "refused: the whitelist pins another block at its number"
    orderer = start(history=1_000)
    feed(orderer, run("a", 1, 5_000, "0g"))
    assert len(orderer._tree) == 129
    assert 1_000 <= len(orderer.history) <= 1_250


FLOODS: dict[str, Callable[[int], Iterable[Payload]]] = {
    "orphans of one number": lambda count: (header(f"w{i}", f"v{i}", 10**6, at=300) for i in range(count)),
    "numbers far ahead": lambda count: (header(f"w{i}", f"v{i}", 10**6, at=10 + i * 7919) for i in range(count)),
    "children of one old block": lambda count: (header(f"w{i}", "150a", 1, at=151) for i in range(count)),
    "a chain without its beginning": lambda count: run("w", 400, 400 + count, "399w"),
    "waiting children of one block": lambda count: (header(f"w{i}", "v", 10**6, at=300) for i in range(count)),
}


@pytest.mark.parametrize("flood", few(1, FLOODS))
def test_a_flood_costs_the_same_per_block_at_any_number_of_held_blocks(flood: str) -> None:
    """Counted in calls: ten times as many blocks make hardly more than ten times as many (a square law: a hundred).

    Coming in, and going all at once when the floor passes them.
    """
    calls = []
    for count in (1_200, 12_000):
        orderer = start()
        feed(orderer, run("a", 1, 200, "0g"))
        blocks = [*FLOODS[flood](count), *run("a", 201, 300, "200a")]
        calls.append(calls_of(lambda orderer=orderer, blocks=blocks: feed(orderer, blocks)))
        assert len(orderer._tree) <= 10_000 + 130
        assert orderer.head == BlockRef(300, h("300a"))
    assert calls[1] < 13 * calls[0]


def calls_of(work: Callable[[], object]) -> int:
    """The calls that some work makes, of functions in C too, and steps of generators."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


# --- lies --------------------------------------------------------------------------------------------------


def test_blocks_that_name_each_other_as_parents_only_wait() -> None:
    for orderer in (start(), Orderer()):
        feed(orderer, [header("9a", "9b"), header("9b", "9a", at=10), header("8c", "9a", 99)])
        orderer.caught_up()
        feed(orderer, [*run("a", 1, 20, "0g"), header("5x", "5x")])
        *_, event = orderer.take_reports()
        assert isinstance(event, Quarantined)
        assert event.reason == "it names itself as its parent"


def test_blocks_that_cannot_be_are_refused() -> None:
    orderer = start()
    feed(orderer, [Payload(1, h("1x"), b"short", 1), header("1y", "0g", at=-1), header("2y", "1y", at=0)])
    assert [event.reason for event in orderer.take_reports() if isinstance(event, Quarantined)] == [
        "its parent is no hash",
        "its number is negative",
        "it descends from a refused block",
    ]


@pytest.mark.parametrize(
    "lie", [header("0g", "0g"), header("0g", "1a", at=7), header("0g", "1a"), Payload(0, h("0g"), b"short", 0)]
)
def test_a_lie_about_a_delivered_block_is_not_believed(lie: Payload) -> None:
    orderer = start()
    feed(orderer, run("a", 1, 2, "0g"))
    assert feed(orderer, [lie]) == []
    assert reported(orderer, Quarantined) == ["0g"]
    assert feed(orderer, run("b", 1, 3, "0g")) == ["-2a-1a+1b+2b+3b"]


@pytest.mark.parametrize(("ring", "root"), [("2a 1a", ""), ("2a", "1g")])
def test_a_lie_about_a_block_that_is_re_read_is_not_believed(ring: str, root: str) -> None:
    orderer = Orderer()
    assert resumed(orderer, ring, [header("2a", "1z")], first=ring[-2:], root=h(root) if root else b"") == []
    assert reported(orderer, Quarantined) == ["2a"]


# --- queries and values ------------------------------------------------------------------------------------


def test_queries_of_an_orderer_without_a_start() -> None:
    orderer = Orderer()
    assert not orderer.waits(h("1a"))
    assert orderer.caught_up() == []
    assert orderer.reach(ROOT) is Reach.AHEAD
    assert orderer.bridge(header("1a", "0g")) == []
    orderer.settle(BlockRef(1, h("1z")))
    feed(orderer, [header("5a", "4a")])
    orderer.caught_up()
    assert orderer.state_of(h("4a")) == "below the first block of this stream"
    assert orderer.history.lowest == BlockRef(4, h("4a"))
    feed(orderer, [header("9a", "8a")])
    assert orderer.state_of(h("9a")) == f"waiting for parent {h('8a').hex()}"


def test_an_update_and_its_inverse_undo_each_other() -> None:
    orderer = start()
    *_, update = [one for payload in chain("1a 2a 2b:1a 3b") for one in orderer.receive(payload)]
    back = update.inverted()
    assert (back.removed, back.added) == (update.added[::-1], update.removed[::-1])
    assert (update.change, back.change) == (Change.REORG, Change.REORG)
    assert back.first_seq == update.seq + 1
    assert repr(update) == "<ChainUpdate 3..5 -2:00000000 +2:00000000 +3:00000000>"


def test_an_update_is_pickled_with_its_cursor_and_nothing_else() -> None:
    update = ChainUpdate(1, (), (MissingPayload(1, h("1a")),))
    cursor = cursor_at([BlockRef(1, h("1a"))], 1, 1)
    for one in (update, replace(update, _cursor=lambda: cursor)):
        again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(one))))  # noqa: S301 - our own
        assert again == one
        assert (again._cursor is None) == (one._cursor is None)
    assert again.cursor == cursor


def test_updates_are_values() -> None:
    one, other = start().receive(header("1a", "0g")), start().receive(header("1a", "0g"))
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


def test_parents_lead_down_as_far_as_batches_agree() -> None:
    parents, top = Parents(), BlockRef(8, h("8a"))
    for at in (*range(1, 9), 5):
        parents.add(h(f"{at}a"), h(f"{at - 1}a"))
    assert parents.lead(top, 8)
    assert parents.lead(top, 0)
    assert not parents.lead(BlockRef(8, h("8b")), 7)
    for parent in ("4b", "4a"):
        parents.add(h("5a"), h(parent))
        assert parents.lead(top, 5)
        assert not parents.lead(top, 4)
        assert h("5a") not in parents.links


def test_a_history_looks_upwards_and_recalls_no_more_than_it_may_remember() -> None:
    history = ChainHistory(4)
    for block in (BlockRef(5, h("5a")), BlockRef(6, h("6a"))):
        history.append(block)
    assert list(history.upwards(6)) == [BlockRef(6, h("6a"))]
    assert history.recalls(3)
    assert not history.recalls(2)
