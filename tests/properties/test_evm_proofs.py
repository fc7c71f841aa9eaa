"""Changes between two tries are found completely from proofs, or refused; the tries here are built on their own."""

from __future__ import annotations

import pytest
import sha3
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal.errors import ApplicationError
from cardinal_ethereum import rlp
from cardinal_ethereum.checks.proofs import UnknownChangeError, changes, nodes_by_hash
from cardinal_ethereum.checks.trie import EMPTY_ROOT
from examples import examples
from tries import Grown

Trie = dict[bytes, bytes]
# Keys that agree in many digits give long extensions, and short nodes that stand in their parents.
keys = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.integers(0, 40).map(lambda number: number.to_bytes(32, "big")),
    st.integers(0, 40).map(lambda number: number.to_bytes(2, "big") + bytes(30)),
)
tries = st.dictionaries(keys, st.binary(min_size=1, max_size=40), max_size=12)


def difference(before: Trie, after: Trie) -> dict[bytes, tuple[bytes | None, bytes | None]]:
    return {
        key: (before.get(key), after.get(key))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }


def proved(before: Grown, after: Grown, asked: set[bytes]) -> dict[bytes, bytes]:
    return dict(nodes_by_hash(node for key in asked for trie in (before, after) for node in trie.proof(key)))


@given(tries, tries, st.sets(keys, max_size=4))
@settings(max_examples=examples(300), deadline=None)
def test_proofs_of_what_changed_tell_all_that_changed(common: Trie, other: Trie, more: set[bytes]) -> None:
    for before, after in ((common, {**common, **other}), (other, common), ({**common, **other}, common)):
        due = difference(before, after)
        old, new = Grown(before), Grown(after)
        nodes = proved(old, new, set(due) | more)
        found = {key: (was, now) for key, was, now in changes(old.root, new.root, nodes)}
        assert found == due


@given(tries, tries, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_change_that_no_proof_shows_is_refused_and_never_left_out(
    before: Trie, after: Trie, data: st.DataObject
) -> None:
    due = difference(before, after)
    old, new = Grown(before), Grown(after)
    asked = data.draw(st.sets(st.sampled_from(sorted(due)), max_size=len(due))) if due else set()
    try:
        found = {key: (was, now) for key, was, now in changes(old.root, new.root, proved(old, new, asked))}
    except UnknownChangeError:
        assert asked != set(due)
    else:
        assert found == due


@given(tries.filter(lambda trie: len(trie) > 1), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_altered_nodes_are_as_good_as_none(before: Trie, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from(sorted(before)))
    after = {**before, changed: b"other than any"}
    old, new = Grown(before), Grown(after)
    nodes = [node for trie in (old, new) for node in trie.proof(changed)]
    at = data.draw(st.integers(0, len(nodes) - 1))
    wrong = bytearray(nodes[at])
    wrong[data.draw(st.integers(0, len(wrong) - 1))] ^= data.draw(st.integers(1, 255))
    altered = [*nodes[:at], bytes(wrong), *nodes[at + 1 :]]
    try:
        found = {key: now for key, _, now in changes(old.root, new.root, nodes_by_hash(altered))}
    except UnknownChangeError:
        return
    assert found == {changed: b"other than any"}


def test_two_empty_tries_do_not_differ() -> None:
    assert list(changes(EMPTY_ROOT, EMPTY_ROOT, {})) == []


@pytest.mark.parametrize(
    "node",
    [
        [b"", b"x"],
        [b"\x20"],
        [b"\x20", [b"x"]],
        [b"\x00\x12", b"short"],
        [b"\x16", b"short"],
        [b"\x20", b"x"],
        [b"\x20\x12\x34", b"x"],
        [b"\x00", bytes(32)],
    ],
    ids=[
        "no path",
        "one item",
        "leaf of a list",
        "reference of five bytes",
        "odd reference of five bytes",
        "leaf without a key",
        "leaf of a short key",
        "extension by nothing",
    ],
)
def test_what_is_no_node_of_a_trie_is_refused(node: list[rlp.Item]) -> None:
    written = rlp.encode(node)
    root = bytes(sha3.keccak_256(written).digest())
    with pytest.raises(ApplicationError):
        list(changes(root, EMPTY_ROOT, nodes_by_hash([written])))
