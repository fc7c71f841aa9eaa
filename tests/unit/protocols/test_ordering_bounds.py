"""What an orderer holds is bounded, what a block costs does not grow, and no lie makes it raise or hang."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import pytest

from cardinal.protocols.streams import BlockRef, Completed, Orderer, Payload, Quarantined, Stale
from cardinal.protocols.streams.events import ForkBelowStart, OrderingEvent, Overflow
from cardinal.protocols.streams.ordering.history import ChainHistory, Parents
from cardinal.protocols.streams.ordering.orderer import OrderingSettings, Reach
from streams import block, cursor_at, h, name


def header(name_: str, parent: str, number: int, weight: int | None = None) -> Payload:
    return Payload(number, h(name_), h(parent), number if weight is None else weight)


def run(tag: str, first: int, last: int, below: str) -> list[Payload]:
    out = []
    for number in range(first, last + 1):
        out.append(header(f"{number}{tag}", below, number))
        below = f"{number}{tag}"
    return out


def start(reorg_threshold: int = 128, **options: object) -> Orderer:
    return Orderer(BlockRef(0, h("0g")), 0, reorg_threshold, settings=OrderingSettings(**options))  # type: ignore[arg-type] # tests name them


def feed(orderer: Orderer, blocks: Iterable[Payload]) -> list[str]:
    updates = [update for payload in blocks for update in orderer.receive(payload)]
    return [
        "".join(f"-{name(b.hash)}" for b in u.removed) + "".join(f"+{name(b.hash)}" for b in u.added) for u in updates
    ]


def evicted(events: Sequence[OrderingEvent]) -> list[str]:
    return [name(event.block) for event in events if isinstance(event, Overflow)]


# --- bounds ------------------------------------------------------------------------------------------------


def test_of_too_many_waiting_blocks_the_ones_farthest_above_the_head_go() -> None:
    orderer = start(max_waiting=3)
    feed(orderer, run("a", 2, 6, "1a"))
    reason = "too many blocks wait for a parent"
    assert orderer.take_reports() == [
        Overflow(h("5a"), 5, {}, reason, h("4a")),
        Overflow(h("6a"), 6, {}, reason, h("5a")),
    ]
    feed(orderer, [header("3z", "2z", 3)])
    assert evicted(orderer.take_reports()) == ["4a"], "among equals the youngest goes first, but it is not the farthest"
    assert orderer.state_of(h("4a")) == f"evicted: {reason}"
    assert not any(orderer.holds(h(f"{number}a")) for number in (4, 5, 6))
    assert feed(orderer, [header("1a", "0g", 1)]) == ["+1a+2a+3a"]


def test_waiting_blocks_are_bounded_in_bytes() -> None:
    orderer = start(max_bytes=250)
    for payload in run("a", 2, 5, "1a"):
        orderer.receive(Completed(payload, {}, size=100))
    assert evicted(orderer.take_reports()) == ["4a", "5a"]
    assert orderer._waiting.bytes == 200
    orderer.receive(header("1a", "0g", 1))
    assert orderer._waiting.bytes == 0


def test_of_too_many_side_blocks_the_lightest_leaf_goes() -> None:
    orderer = start(max_side=3)
    feed(orderer, run("a", 1, 9, "0g"))
    feed(
        orderer,
        [header("4b", "3a", 4, 2), header("5b", "4b", 5, 4), header("4c", "3a", 4, 3), header("4d", "3a", 4, 3)],
    )
    assert evicted(orderer.take_reports()) == ["4d"], "of equal leaves the last received; 4b is lighter, but no leaf"
    feed(orderer, [header("4e", "3a", 4, 8)])
    assert evicted(orderer.take_reports()) == ["4c"]
    feed(orderer, [header("4f", "3a", 4, 8)])
    assert evicted(orderer.take_reports()) == ["5b"]
    feed(orderer, [header("4g", "3a", 4, 8)])
    assert evicted(orderer.take_reports()) == ["4b"], "a leaf now"


def test_side_blocks_are_bounded_in_bytes_also_when_their_content_comes_later() -> None:
    orderer = start(max_bytes=250)
    feed(orderer, run("a", 1, 5, "0g"))
    for number in range(4):
        orderer.receive(Completed(header(f"4{'bcde'[number]}", "3a", 4), {}, size=100))
    assert evicted(orderer.take_reports()) == ["4d", "4e"]
    orderer.receive(header("6f", "5f", 6, 1))
    orderer.bridge(header("5f", "4a", 5, 1))
    orderer.receive(Completed(header("5f", "4a", 5, 1), {}, size=100))
    assert orderer._side.bytes == 200
    assert evicted(orderer.take_reports()) == ["6f", "5f"]


def test_a_side_branch_whose_fork_point_is_forgotten_goes_with_it() -> None:
    orderer = start(reorg_threshold=3)
    feed(orderer, [*run("a", 1, 5, "0g"), *run("b", 3, 5, "2a")])
    assert orderer.state_of(h("5b")) == "on a side branch"
    feed(orderer, run("a", 6, 6, "5a"))
    assert not any(orderer.holds(h(f"{number}b")) for number in (3, 4, 5))
    assert orderer.state_of(h("5b")) == "pruned: farther below the head than the reorg threshold"
    assert orderer.take_reports() == []


def test_what_became_of_blocks_is_remembered_within_bounds() -> None:
    orderer = Orderer(BlockRef(0, h("0g")), 0, whitelist={1: h("1a")})
    feed(orderer, (header(f"1x{number}", "0g", 1) for number in range(5000)))
    assert orderer.state_of(h("1x0")) is None
    assert orderer.state_of(h("1x4999")) == "refused: the whitelist pins another block at its number"


def test_a_long_extension_can_be_cut_into_several_updates_but_no_switch() -> None:
    orderer = start(max_update=3)
    feed(orderer, run("a", 2, 8, "1a"))
    assert feed(orderer, run("a", 1, 1, "0g")) == ["+1a+2a+3a", "+4a+5a+6a", "+7a+8a"]
    feed(orderer, run("b", 4, 9, "3b"))
    assert feed(orderer, run("b", 3, 3, "2a")) == ["-8a-7a-6a-5a-4a-3a+3b+4b+5b+6b+7b+8b+9b"]


# --- cost --------------------------------------------------------------------------------------------------


def wild(count: int) -> Iterable[Payload]:
    return (header(f"w{index}", f"v{index}", 10 + index * 7919 % 10**12, 10**6) for index in range(count))


FLOODS = {
    "orphans of one number": lambda count: (header(f"w{index}", f"v{index}", 300, 10**6) for index in range(count)),
    "numbers far ahead": wild,
    "children of one old block": lambda count: (header(f"w{index}", "150a", 151, 1) for index in range(count)),
    "a chain without its beginning": lambda count: run("w", 400, 400 + count, "399w"),
    "waiting children of one block": lambda count: (header(f"w{index}", "v", 300, 10**6) for index in range(count)),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_costs_the_same_per_block_however_much_is_held(flood: str) -> None:
    """Counted in calls: ten times as many blocks make hardly more than ten times as many (a square law: a hundred)."""
    calls = []
    for count in (1_200, 12_000):
        orderer = start()
        feed(orderer, run("a", 1, 200, "0g"))
        blocks = [*FLOODS[flood](count), *run("a", 201, 300, "200a")]
        calls.append(calls_of(lambda orderer=orderer, blocks=blocks: feed(orderer, blocks)))
        assert len(orderer._tree) <= 10_000 + 130
        assert orderer.head == BlockRef(300, h("300a"))
    assert calls[1] < 13 * calls[0]


def test_ten_thousand_forks_at_one_height_go_in_as_many_steps() -> None:
    """Coming in, and going all at once when the floor passes their height."""
    orderer = start(max_side=20_000)
    feed(orderer, run("a", 1, 150, "0g"))
    forks = [header(f"f{index}", "149a", 150, 1) for index in range(10_000)]
    inserted = calls_of(lambda: feed(orderer, forks))
    assert len(orderer._tree) > 10_000
    removed = calls_of(lambda: feed(orderer, run("a", 151, 300, "150a")))
    assert len(orderer._tree) == 129
    assert len(orderer._tree._numbers._live) == 129
    assert len(orderer._tree._numbers._heap) < 400
    assert max(inserted, removed) < 150 * len(forks)


def calls_of(work: Callable[[], object]) -> int:
    """How many calls some work makes, of functions in C too, and steps of generators."""
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


def test_numbers_that_come_and_go_leave_nothing_behind() -> None:
    orderer = start(max_waiting=10)
    feed(orderer, wild(5_000))
    assert len(orderer._tree._numbers._heap) < 200
    assert len(orderer._waiting._order._heap) < 200
    feed(orderer, run("a", 1, 300, "0g"))
    feed(orderer, [header("9z", "8z", 999)])
    orderer = start()
    feed(orderer, run("a", 2, 300, "1a"))
    feed(orderer, [header("1a", "0g", 1), header("9z", "8z", 999)])
    assert len(orderer._waiting._order._heap) == 1
    orderer = start(max_side=4)
    feed(orderer, run("a", 1, 100, "0g"))
    for index in range(3_000):
        feed(orderer, [header(f"w{index}", "50a", 51, index % 7)])
    assert len(orderer._side._order._heap) < 200


def test_a_chain_of_any_length_takes_the_same_memory() -> None:
    orderer = start(history=1_000)
    feed(orderer, run("a", 1, 5_000, "0g"))
    assert len(orderer._tree) == 129
    assert 1_000 <= len(orderer.history) <= 1_250


# --- lies --------------------------------------------------------------------------------------------------


def test_blocks_that_name_each_other_as_parents_only_wait() -> None:
    for orderer in (start(), Orderer()):
        feed(orderer, [header("9a", "9b", 9), header("9b", "9a", 10), header("8c", "9a", 8, 99)])
        orderer.caught_up()
        feed(orderer, run("a", 1, 20, "0g"))
        feed(orderer, [header("5x", "5x", 5)])
        (event,) = [event for event in orderer.take_reports() if isinstance(event, Quarantined)][-1:]
        assert event.reason == "it names itself as its parent"


def test_blocks_that_cannot_be_are_refused() -> None:
    orderer = start()
    feed(orderer, [Payload(1, h("1x"), b"short", 1), header("1y", "0g", -1), header("2y", "1y", 0)])
    assert [event.reason for event in orderer.take_reports() if isinstance(event, Quarantined)] == [
        "its parent is no hash",
        "its number is negative",
        "it descends from a refused block",
    ]


@pytest.mark.parametrize(
    "lie",
    [
        header("0g", "0g", 0),
        header("0g", "1a", 7),
        header("0g", "1a", 0),
        Payload(0, h("0g"), b"short", 0),
    ],
)
def test_a_lie_about_a_delivered_block_is_not_believed(lie: Payload) -> None:
    orderer = start()
    feed(orderer, run("a", 1, 2, "0g"))
    assert feed(orderer, [lie]) == []
    assert [type(event) for event in orderer.take_reports()] == [Quarantined]
    assert feed(orderer, run("b", 1, 3, "0g")) == ["-2a-1a+1b+2b+3b"]


def test_a_lie_about_a_block_that_is_read_again_is_not_believed() -> None:
    orderer = Orderer()
    orderer.restore(cursor_at([BlockRef(2, h("2a")), BlockRef(1, h("1a"))], 2, 2), [header("2a", "1z", 2)])
    assert [type(event) for event in orderer.take_reports()] == [Quarantined]


def test_the_parent_of_the_start_may_claim_any_number() -> None:
    orderer = Orderer()
    feed(orderer, [header("4z", "3z", 9, 1), header("5a", "4z", 5, 9)])
    (update,) = orderer.caught_up()
    assert [name(added.hash) for added in update.added] == ["5a"]
    assert orderer.take_reports() == [Stale(BlockRef(9, h("4z")), "its number should be 4")]


def test_forks_below_the_start_are_looked_for_within_a_budget() -> None:
    orderer = Orderer()
    feed(orderer, [header("5a", "4a", 5)])
    orderer.caught_up()
    chain = run("b", 6, 5000, "5b")
    feed(orderer, chain)
    assert [type(event) for event in orderer.take_reports()] == []
    orderer._start_forks._steps = 0
    feed(orderer, [header("5b", "4b", 5, 10_000)])
    assert [type(event) for event in orderer.take_reports()] == [ForkBelowStart]
    for number in range(1100):
        feed(orderer, [header(f"5x{number}", f"4x{number}", 5, 10_000)])
    assert len(orderer._start_forks._reported) == 1024
    orderer._start_forks._steps = 0
    top = header("5001b", "5000b", 5001, 10_001)
    feed(orderer, [top])
    assert len(orderer._start_forks._reported) == 1024


# --- asking ------------------------------------------------------------------------------------------------


def test_an_orderer_without_a_start_knows_nothing() -> None:
    orderer = Orderer()
    assert not orderer.waits(h("1a"))
    assert orderer.caught_up() == []
    assert orderer.reach(BlockRef(0, h("0g"))) is Reach.AHEAD
    assert orderer.bridge(block("1a", "0g")) == []
    feed(orderer, [header("5a", "4a", 5)])
    orderer.caught_up()
    assert orderer.state_of(h("4a")) == "below the first block of this stream"
    assert orderer.history.lowest == BlockRef(4, h("4a"))
    feed(orderer, [header("9a", "8a", 9)])
    assert orderer.state_of(h("9a")) == f"waiting for parent {h('8a').hex()}"
    orderer.settle(BlockRef(1, h("1z")))


def test_of_a_chain_whose_middle_is_heaviest_everything_goes() -> None:
    orderer = start()
    feed(orderer, [header("2a", "1a", 2, 90), header("3a", "2a", 3, 5)])
    assert feed(orderer, [header("1a", "0g", 1)]) == ["+1a+2a+3a"]


def test_after_a_resume_the_better_of_a_child_and_a_fork_goes() -> None:
    orderer = Orderer()
    ring, blocks = [BlockRef(3, h("3a")), BlockRef(2, h("2a"))], [header("4a", "3a", 4), *run("b", 3, 6, "2a")]
    assert orderer.reach(ring[1]) is Reach.AHEAD
    (update,) = orderer.restore(cursor_at(ring, 3, 2, BlockRef(1, h("1a"))), blocks)
    assert [name(added.hash) for added in update.added] == ["3b", "4b", "5b", "6b"]
    assert orderer.reach(BlockRef(1, h("1a"))) is Reach.FORGOTTEN
    assert orderer.recall({h("2a"): h("1a")}) == 1
    assert orderer.reach(BlockRef(1, h("1a"))) is Reach.ON_CHAIN
    graft = [Completed(payload, {}) for payload in run("c", 2, 9, "1a")]
    (update,) = orderer.graft(BlockRef(1, h("1a")), graft)
    assert [name(removed.hash) for removed in update.removed] == ["6b", "5b", "4b", "3b", "2a"]


# --- parts -------------------------------------------------------------------------------------------------


def test_a_history_begins_anew_where_a_number_is_skipped() -> None:
    history = ChainHistory(4)
    assert history.lowest is None
    assert history.recall({h("1a"): h("0g")}, 0) == 0
    for number in (1, 2, 5, 6):
        history.append(BlockRef(number, h(f"{number}a")))
    assert history.lowest == BlockRef(5, h("5a"))
    history.cut(0)
    history.cut(1)
    assert (len(history), history.at(6), history.at(5)) == (1, None, h("5a"))
    assert history.recall({h(f"{n}a"): h(f"{n - 1}a") for n in range(1, 6)}, 3) == 2
    assert history.at(3) == h("3a")
    assert list(history.upwards(4)) == [BlockRef(4, h("4a")), BlockRef(5, h("5a"))]
    assert history.recalls(2)
    assert not history.recalls(1), "4 blocks are remembered at most"


def test_parents_lead_down_as_far_as_batches_agree() -> None:
    parents = Parents()
    for number in range(1, 9):
        parents.add(h(f"{number}a"), h(f"{number - 1}a"))
    parents.add(h("5a"), h("4a"))
    top = BlockRef(8, h("8a"))
    assert parents.lead(top, 8)
    assert parents.lead(top, 0)
    assert not parents.lead(BlockRef(8, h("8b")), 7)
    for parent in ("4b", "4a"):
        parents.add(h("5a"), h(parent))
        assert parents.lead(top, 5)
        assert not parents.lead(top, 4)
        assert h("5a") not in parents.links


# --- found by the model ------------------------------------------------------------------------------------


def test_a_start_is_not_looked_for_among_refused_blocks() -> None:
    orderer = Orderer(reorg_threshold=1, whitelist={1: h("1z")})
    assert feed(orderer, [header("1a", "0g", 1), header("1b", "0g", 1), header("1c", "0g", 1)]) == []


def test_a_better_chain_below_the_start_is_reported_also_when_it_was_read_while_resuming() -> None:
    orderer = Orderer()
    assert orderer.restore(cursor_at([BlockRef(6, h("6a")), BlockRef(5, h("5a"))], 6, 2), run("b", 5, 9, "4b")) == []
    assert orderer.take_reports() == [ForkBelowStart(BlockRef(9, h("9b")), BlockRef(5, h("5a")))]


def test_a_block_that_left_the_chain_before_its_content_came_stays_beside_it() -> None:
    orderer = Orderer(BlockRef(0, h("0g")), 0)
    orderer.restore(cursor_at([BlockRef(2, h("2a")), BlockRef(1, h("1a"))], 2, 2), [])
    (update,) = orderer.receive(header("1b", "0g", 1, 9))
    assert [name(removed.hash) for removed in update.removed] == ["2a", "1a"]
    feed(orderer, [header("1a", "0g", 1)])
    assert orderer.state_of(h("1a")) == "removed"
    assert feed(orderer, [header("2c", "1a", 2, 99)]) == ["-1b+1a+2c"]


def test_below_the_floor_there_is_no_fork_point() -> None:
    orderer = Orderer(BlockRef(0, h("0g")), 0, reorg_threshold=1)
    orderer.restore(cursor_at([BlockRef(2, h("2a")), BlockRef(1, h("1a"))], 2, 2), [])
    feed(orderer, [header("1a", "0g", 1)])
    assert not orderer.holds(h("0g"))
    assert feed(orderer, [header("1b", "0g", 1, 50)]) == []
