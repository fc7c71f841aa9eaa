"""First block of a stream without a cursor: not above blocks that are about to come, or that lack messages."""

from __future__ import annotations

import pytest

from cardinal.protocols.streams import BlockRef, Follower, FollowerSettings, Orderer, Payload, Quarantined, Record
from cardinal.protocols.streams.events import BeganAbove
from cardinal.protocols.streams.following.settings import OnIncomplete
from cardinal.protocols.streams.following.start_wait import StartWait
from cardinal.protocols.streams.ordering.settings import OrderingSettings
from cardinal.protocols.streams.ordering.start import StartCandidate
from channels import THRESHOLD, Stream, line, shape
from streams import SCHEMA, Log, block, chain, h, messages, name


def test_a_reader_from_the_end_starts_with_the_first_block_that_it_sees_complete() -> None:
    log = Log()
    first, second, third = chain("1a 2a 3a")
    halves = messages(first)
    log.append(halves[:2])
    follower = Follower(FollowerSettings("test", "test:1", prefixes=tuple(SCHEMA)))
    assert follower.step([], log.ends(), log.ends()).items == []

    def read(records: list[Record]) -> list[str]:
        updates = follower.step(records, log.ends(), log.ends()).updates
        return [name(payload.hash) for update in updates for payload in update.added]

    assert read(log.append(halves[2:])) == []
    assert read(log.append(messages(second))) == ["2a"]
    assert read(log.append(messages(third))) == ["3a"]


# --- missing messages near the beginning -------------------------------------------------------------------

BLOCKS = [block("0a", "none", 0), *line("a", 1, 59, "0a")]


def lacking(payload: Payload, count: int, **options: object) -> Stream:
    """A stream of 60 blocks from which so many messages of one are lost, and never its Batch."""
    stream = Stream(patient=True, **options)
    stream.publish(BLOCKS[: payload.number])
    stream.write(messages(payload)[count:])
    stream.publish(BLOCKS[payload.number + 1 :])
    return stream


@pytest.mark.parametrize("step", [1, 7, 1_000])
@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_leads_through_a_block_that_lacks_messages_and_begins_with_its_lowest_block(
    count: int, step: int
) -> None:
    stream = lacking(BLOCKS[25], count)
    stream.read(step)
    stream.rest()
    expected = "".join(f"+{'?' if number == 25 else ''}{number}a" for number in range(60))
    assert "".join(map(shape, stream.updates)) == expected
    assert stream.named(BeganAbove) == []
    assert [event.block for event in stream.named(Quarantined)] == [BLOCKS[25].hash]  # type: ignore[attr-defined] # of Quarantined


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_a_stream_that_halts_on_incomplete_blocks_waits_at_the_block_that_lacks_messages(step: int) -> None:
    stream = lacking(BLOCKS[25], 1, on_incomplete=OnIncomplete.HALT)
    stream.read(step)
    stream.rest(9)
    assert "".join(map(shape, stream.updates)) == "".join(f"+{number}a" for number in range(25))
    assert stream.named(Quarantined) == []
    stream.write(messages(BLOCKS[25])[:1])
    stream.read(step)
    assert "".join(map(shape, stream.updates)) == "".join(f"+{number}a" for number in range(60))


def test_a_stream_begins_above_its_lowest_block_where_only_that_one_lacks_messages() -> None:
    """There is no complete block below it that it could hide."""
    stream = lacking(BLOCKS[0], 1)
    stream.read()
    stream.rest()
    assert "".join(map(shape, stream.updates)).startswith("+1a+2a")


# --- blocks that no Batch links ----------------------------------------------------------------------------


def unlinked(last: int) -> Stream:
    """Blocks 1 to 3, and from 20 on, without a trace of those between."""
    stream = Stream(patient=True)
    stream.publish([*line("a", 1, 3, "0a"), *line("a", 20, last, "19a")])
    stream.read()
    return stream


def test_blocks_that_no_batch_links_are_waited_for_before_the_stream_begins_above_them() -> None:
    stream = unlinked(30)
    assert stream.updates == []
    assert stream.follower.in_doubt
    stream.give([])
    assert stream.updates == []
    stream.rest()
    assert stream.named(BeganAbove) == [BeganAbove(BlockRef(20, h("20a")), 1)]
    assert "".join(map(shape, stream.updates)) == "".join(f"+{number}a" for number in range(20, 31))
    assert not stream.follower.in_doubt


def test_blocks_that_link_the_lowest_ones_in_time_leave_nothing_out() -> None:
    stream = unlinked(30)
    stream.publish(line("a", 4, 19, "3a"))
    stream.read()
    stream.rest()
    assert stream.named(BeganAbove) == []
    assert "".join(map(shape, stream.updates)) == "".join(f"+{number}a" for number in range(1, 31))


def test_above_four_thresholds_of_blocks_the_stream_begins_without_waiting() -> None:
    stream = unlinked(20 + 4 * THRESHOLD)
    assert stream.named(BeganAbove) == [BeganAbove(BlockRef(20, h("20a")), 1)]
    assert shape(stream.updates[0]).startswith("+20a+21a")


def test_an_incomplete_block_below_the_start_leaves_a_doubt_too() -> None:
    stream = Stream(patient=True)
    stream.write(messages(block("3a", "2a"))[1:])
    stream.publish(line("a", 20, 30, "19a"))
    stream.read()
    assert stream.updates == []
    stream.rest()
    assert stream.named(BeganAbove) == [BeganAbove(BlockRef(20, h("20a")), 3)]


# --- partitions that are read one ahead of the other -------------------------------------------------------

PLACE = ("t", 0)


def waiting(time: int) -> StartWait:
    """One partition was read up to this time; block 1a was published at 1,000."""
    wait = StartWait(THRESHOLD)
    wait.completed(h("1a"), 1_000)
    wait.read([Record(*PLACE, 5, b"", b"", time)])
    return wait


@pytest.mark.parametrize(
    ("time", "length", "case", "begins"),
    [
        (3_000, THRESHOLD + 1, {}, True),
        (2_999, THRESHOLD + 1, {}, False),
        (3_000, THRESHOLD, {}, False),
        (3_000, THRESHOLD, {"crowded": True}, True),
        (1_000, THRESHOLD, {"crowded": True}, True),
        (999, THRESHOLD, {"crowded": True}, False),
        (3_000, 4 * THRESHOLD, {"doubt": True}, False),
        (3_000, 4 * THRESHOLD + 1, {"doubt": True}, True),
        (0, 1, {"caught_up": True}, True),
        (0, 1, {"caught_up": True, "doubt": True}, False),
        (0, 1, {"caught_up": True, "doubt": True, "waited": True}, True),
        (0, 1, {"waited": True}, False),
    ],
)
def test_when_a_stream_begins(*, time: int, length: int, case: dict[str, bool], begins: bool) -> None:
    candidate = StartCandidate(BlockRef(1, h("1a")), length, 1)
    facts = dict.fromkeys(("doubt", "crowded", "caught_up", "waited"), False) | case
    assert waiting(time).begins(candidate, {PLACE: 6}, **facts) == begins


def test_a_candidate_is_looked_for_when_the_blocks_have_grown_by_a_sixteenth() -> None:
    wait = StartWait(THRESHOLD)
    assert not wait.looks(caught_up=True), "there are no blocks"
    looks = []
    for number in range(1_000):
        wait.completed(h(f"{number}a"), 0)
        looks += [number] if wait.looks(caught_up=False) else []
    assert looks[:16] == list(range(16))
    assert len(looks) < 100
    assert wait.looks(caught_up=True)


# --- the candidate -------------------------------------------------------------------------------------------


def patient(*blocks: Payload, threshold: int = 128) -> Orderer:
    orderer = Orderer(reorg_threshold=threshold, settings=OrderingSettings(patient=True))
    for payload in blocks:
        assert orderer.receive(payload) == []
    return orderer


def candidate(orderer: Orderer, *incomplete: Payload) -> tuple[int, int, int]:
    found = orderer.candidate(incomplete)
    assert found is not None
    return found.start.number, found.length, found.lowest


CHAIN = line("a", 0, 60, "none")


@pytest.mark.parametrize("threshold", [4, 128])
def test_one_lost_message_near_the_beginning_hides_no_complete_block_below_it(threshold: int) -> None:
    orderer = patient(*CHAIN[:25], *CHAIN[26:], threshold=threshold)
    assert candidate(orderer) == ((26, 35, 0) if threshold == 128 else (0, 25, 0))
    assert candidate(orderer, CHAIN[25]) == (0, 60, 0)
    assert [shape(update) for update in orderer.begin(BlockRef(0, CHAIN[0].hash))] == [
        "".join(f"+{number}a" for number in range(25))
    ]
    assert orderer.orphans() == [(CHAIN[25].hash, 25)]
    (update,) = orderer.bridge(CHAIN[25])
    assert shape(update) == "+?25a" + "".join(f"+{number}a" for number in range(26, 61))


def test_a_chain_leads_through_several_incomplete_blocks_but_begins_with_a_complete_one() -> None:
    orderer = patient(*CHAIN[3:10], *CHAIN[13:])
    assert candidate(orderer, *CHAIN[:3], *CHAIN[10:13]) == (3, 55, 3)
    assert candidate(orderer, *CHAIN[:3], *CHAIN[10:12])[0] == 13, "one of their Batches is missing too"


def test_the_heaviest_chain_decides_through_incomplete_blocks_too() -> None:
    low, high = line("a", 1, 9, "0r"), line("b", 6, 12, "5a", 50)
    orderer = patient(*low[:4], *low[5:], *high)
    assert orderer.candidate([low[4]]) == StartCandidate(BlockRef(1, h("1a")), 11, 1)


def test_no_chain_leads_through_a_batch_whose_number_does_not_rise() -> None:
    false = Payload(30, h("5a"), h("4a"), 5)
    low = line("a", 1, 9, "0r")
    orderer = patient(*low[:4], *low[5:])
    assert candidate(orderer, false) == (6, 4, 1)
    assert candidate(orderer, Payload(5, h("5a"), h("9a"), 5)) == (6, 4, 1), "its parent is above it"


def test_a_block_is_no_child_of_one_with_its_own_number() -> None:
    orderer = patient(*line("a", 1, 6, "0r"), Payload(6, h("6x"), h("6a"), 99))
    assert orderer.candidate() == StartCandidate(BlockRef(6, h("6x")), 1, 1)


def test_a_complete_block_counts_as_what_it_is_also_where_it_is_called_incomplete() -> None:
    orderer = patient(*CHAIN)
    assert candidate(orderer, *CHAIN) == (0, 61, 0)
    assert Orderer().candidate(CHAIN) is None
