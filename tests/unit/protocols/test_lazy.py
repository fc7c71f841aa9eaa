"""Containers with lazy deletion and with a bound, against plain ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardinal.protocols.streams.lazy import BoundedDict, LazyHeap

STEPS = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=300)


@given(STEPS)
def test_a_lazy_heap_is_a_sorted_dictionary(steps: list[tuple[int, int | None]]) -> None:
    heap: LazyHeap[int, int] = LazyHeap()
    plain: dict[int, int] = {}
    for key, priority in steps:
        plain.pop(key, None)
        if priority is None:
            heap.discard(key)
        else:
            heap.put(key, priority)
            plain[key] = priority
        assert (key in heap) == (key in plain)
        assert heap.lowest == min(plain.values(), default=None)
    order = sorted(plain, key=lambda key: plain[key])
    if order:
        assert heap.pop() == order[0]
    assert heap.pop_below(5) == [key for key in order[1:] if plain[key] < 5]
    assert heap.pop_below(10) == [key for key in order[1:] if plain[key] >= 5]


def test_a_lazy_heap_holds_little_more_than_its_keys() -> None:
    heap: LazyHeap[int, int] = LazyHeap()
    for number in range(10_000):
        heap.put(number, 0)
        heap.put(number, -number)
        heap.discard(number - 5)
    assert len(heap._heap) < 100
    assert heap.lowest == -9_999
    heap.discard(9_999)
    assert heap.pop() == 9_998


def test_a_bounded_dictionary_evicts_the_oldest_entry() -> None:
    bounded: BoundedDict[str, int] = BoundedDict(2)
    for name in "abac":
        bounded[name] = 1
    assert list(bounded) == ["a", "c"]
