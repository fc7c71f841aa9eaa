"""Containers with lazy deletion and with a bound, against plain ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardinal.protocols.streams.lazy import BoundedDict, LazyHeap

STEPS = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9)), max_size=300)


@given(STEPS)
def test_a_lazy_heap_is_the_lowest_of_a_dictionary(steps: list[tuple[int, int | None]]) -> None:
    heap: LazyHeap[int, int] = LazyHeap()
    plain: dict[int, int] = {}
    for key, priority in steps:
        if priority is None:
            heap.discard(key)
            plain.pop(key, None)
        else:
            heap.put(key, priority)
            plain[key] = priority
        assert len(heap) == len(plain)
        lowest = heap.lowest()
        assert lowest == (min((value, name) for name, value in plain.items()) if plain else None)


def test_a_lazy_heap_holds_little_more_than_its_keys() -> None:
    heap: LazyHeap[int, int] = LazyHeap()
    for number in range(10_000):
        heap.put(number, 0)
        heap.put(number, -number)
        heap.discard(number - 5)
    assert len(heap._heap) < 100
    assert heap.lowest() == (-9_999, 9_999)


def test_a_bounded_dictionary_evicts_the_oldest_entry() -> None:
    bounded: BoundedDict[str, int] = BoundedDict(2)
    for name in "abac":
        bounded[name] = 1
    assert list(bounded) == ["a", "c"]
