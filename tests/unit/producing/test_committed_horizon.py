"""Up to when a stream is known, of which always some transaction is open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardinal.producing.standby.committed_horizon import Horizon
from cardinal.protocols.streams.types import Partition

A, B = ("block", 0), ("block", 1)


class Topic:
    """Two partitions: what is written, and what of it was read."""

    def __init__(self) -> None:
        self.written: dict[Partition, int] = {A: 0, B: 0}
        self.read: dict[Partition, int] = {A: 0, B: 0}
        self.away = False
        self.asked = 0

    def horizon(self) -> Horizon:
        return Horizon(self._look, lambda: dict(self.read))

    def _look(self) -> dict[Partition, int] | None:
        self.asked += 1
        return None if self.away else dict(self.written)


def test_the_horizon_of_an_idle_stream_is_now() -> None:
    topic = Topic()
    horizon = topic.horizon()
    assert [horizon.reached(now) for now in (1.0, 2.5)] == [1.0, 2.5]


def test_the_horizon_rises_when_everything_before_it_is_read() -> None:
    topic = Topic()
    horizon = topic.horizon()
    topic.written[A] = 3
    assert horizon.reached(1.0) is None
    topic.written = {A: 9, B: 4}
    topic.read[A] = 2
    assert horizon.reached(2.0) is None
    topic.read[A] = 3
    assert horizon.reached(3.0) == 1.0
    assert topic.asked == 1, "one look for one moment"
    assert horizon.reached(4.0) is None
    topic.read = {A: 9, B: 4}
    topic.written = {A: 12, B: 12}
    assert horizon.reached(5.0) == 4.0


def test_without_watermarks_there_is_no_horizon_and_the_query_is_repeated() -> None:
    topic = Topic()
    horizon = topic.horizon()
    topic.away = True
    assert [horizon.reached(now) for now in (1.0, 2.0)] == [None, None]
    topic.away = False
    assert horizon.reached(3.0) == 3.0


def test_unread_and_unknown_partitions_do_not_hold_the_horizon() -> None:
    assert Horizon(lambda: {A: 5}, lambda: {B: 0}).reached(1.0) == 1.0


@given(st.lists(st.tuples(st.sampled_from(("write", "read", "look")), st.sampled_from((A, B)), st.integers(1, 3))))
def test_the_horizon_never_passes_unread_records_and_never_falls(
    steps: list[tuple[str, Partition, int]],
) -> None:
    topic = Topic()
    horizon = topic.horizon()
    history: dict[float, dict[Partition, int]] = {}
    last = -1.0
    for now, (what, where, much) in enumerate(steps):
        if what == "write":
            topic.written[where] += much
        elif what == "read":
            topic.read[where] = min(topic.written[where], topic.read[where] + much)
        else:
            history[now] = dict(topic.written)
            moment = horizon.reached(now)
            if moment is not None:
                assert all(topic.read[one] >= end for one, end in history[moment].items())
                assert moment > last
                last = moment
    topic.read = dict(topic.written)
    end = float(len(steps))
    assert end in (horizon.reached(end), horizon.reached(end)), "with everything read it is there at the second look"
