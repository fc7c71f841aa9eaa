"""Topics that a consumer need not read, and that leaving them out loses nothing."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocks import DEADLINE, Blocks, line, publish, steps, until
from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.consuming.patterns import may_be_found
from cardinal.consuming.pruning import wanted_topics
from cardinal.protocols.streams import SubBatch
from cardinal.testing.memory import MemoryBroker

EVM = apps.get("evm", chain_id=1)


@pytest.mark.parametrize(
    ("tracked", "topics"),
    [
        (["c/1/b/[0-9a-z]+/t/"], {"tx"}),
        (["c/1/b/[0-9a-z]+/l/", "c/1/b/[0-9a-z]+/r/"], {"logs", "receipt"}),
        (["c/1/a/"], {"state"}),
        (["^c/1/c/$"], {"code"}),
        (["c/[0-9]+/b/.*/[tr]/"], {"tx", "receipt", "logs", "block"} & {"tx", "receipt"}),
        (["c/1/b/"], {"block", "tx", "receipt", "logs"}),
        (["/h$"], {"block"}),
        ([], set()),
        (["c/2/a/"], set()),
        (["(?i)C/1/A"], {"block", "code", "logs", "receipt", "state", "tx"}),
        (["(?=c)c/1/a/"], {"block", "code", "logs", "receipt", "state", "tx"}),
    ],
)
def test_of_an_evm_chain_only_the_topics_are_read_that_the_expressions_can_reach(
    tracked: list[str], topics: set[str]
) -> None:
    assert wanted_topics(EVM, tracked) == ("cardinal-1", *sorted(f"cardinal-1-{topic}" for topic in topics))


@pytest.mark.parametrize(
    ("sub_batches", "tracked", "topics"),
    [
        ((), "/x", set()),
        (("b/[0-9]+/x",), "/x", {"b"}),
        (("b/[0-9]+/x",), "/y", set()),
        (("a/x", "c/x"), "/x", {"a"}),
        (None, "/x", {"a", "b"}),
        (None, "^b/", {"b"}),
        (None, "^c/", set()),
    ],
)
def test_a_sub_batch_may_lie_behind_what_its_topics_expression_matches(
    sub_batches: tuple[str, ...] | None, tracked: str, topics: set[str]
) -> None:
    """An application that does not say where its sub batches lie may have them anywhere."""
    assert wanted_topics(Blocks(sub_batches=sub_batches), [tracked]) == ("block", *sorted(topics))


def test_what_is_followed_of_a_sub_batch_comes_though_its_topics_expression_says_less() -> None:
    app = Blocks(sub_batches=None)
    far = [
        replace(one, sub_batches={bytes([7]) * 32: SubBatch("b/far/x", {"b/far/x/1": b"5"}, frozenset())})
        for one in line(1, 30)
    ]
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, far, app=app)
        with Consumer(broker.url, app, tracked=["far/"], idle_timeout=DEADLINE) as reading:
            updates = until(reading, "30a")
    assert [dict(block.updates) for update in updates for block in update.added] == [{"b/far/x/1": b"5"}] * 30  # type: ignore[union-attr] # they are whole


def test_by_default_all_topics_are_read() -> None:
    assert wanted_topics(EVM, None) == tuple(EVM.all_topics)
    assert wanted_topics(EVM, EVM.prefixes) == tuple(EVM.all_topics)


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "/",
        ".",
        "[ab]",
        "[^a]",
        "[a-c]",
        "a?",
        "b*",
        "(?:ab)+",
        "(a|b/)",
        "a{2}",
        "[ab]{0,2}",
        r"\d",
        r"\.",
        "a{1,}",
    ]
)
EXPRESSIONS = st.lists(PIECES, min_size=1, max_size=5).map("".join)


@given(matched=EXPRESSIONS, searched=EXPRESSIONS, ends=st.sampled_from(["", "^", "$", "^$"]), data=st.data())
def test_what_can_be_found_is_never_denied(matched: str, searched: str, ends: str, data: st.DataObject) -> None:
    """Python's own expressions are the judge, over texts that the one expression matches."""
    searched = ("^" if "^" in ends else "") + searched + ("$" if "$" in ends else "")
    text = data.draw(st.from_regex(re.compile(matched), fullmatch=True).filter(lambda found: not found.endswith("\n")))
    if re.search(searched, text):
        assert may_be_found(searched, matched)


@pytest.mark.parametrize(
    ("searched", "matched", "found"),
    [
        ("b/", "a/", False),
        ("a/", "aa/", True),
        ("^a/", "ba/", False),
        ("a/", "b[0-9]+/a/", True),
        ("x", "[a-w]*", False),
        ("x", "[^x]{3}", False),
        ("ab|xy", "a/xy", True),
        ("a{3}", "a{2}", False),
        ("a{3}", "a{2,}", True),
        ("aa", "(?:ab)+", False),
        ("ba", "(?:ab)+", True),
        ("", "a/", True),
    ],
)
def test_whether_an_expression_can_be_found(searched: str, matched: str, found: bool) -> None:  # noqa: FBT001 - a column of the table
    assert may_be_found(searched, matched) is found


def test_a_consumer_with_few_wishes_reads_few_topics_and_gives_the_same_chain() -> None:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, line(1, 30))
        with Consumer(broker.url, Blocks(), tracked=["b/"], idle_timeout=DEADLINE) as reading:
            updates = until(reading, "30a")
            assert {topic for topic, _ in reading.positions} == {"block", "b"}
    assert steps(updates) == [f"+{number}a" for number in range(1, 31)]
    assert all(set(block.updates) == {"b/1"} for update in updates for block in update.added)  # type: ignore[union-attr] # they are whole


def test_a_cursor_that_knows_more_topics_is_read_on_in_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made when less was known about which topics can be left out."""
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, line(1, 30))
        with monkeypatch.context() as before:
            before.setattr("cardinal.consuming.pruning.may_be_found", lambda _searched, _matched: True)
            with Consumer(broker.url, Blocks(), tracked=["b/"], idle_timeout=DEADLINE) as reading:
                cursor = until(reading, "30a")[-1].cursor
        publish(broker, line(31, 40))
        with Consumer(broker.url, Blocks(), tracked=["b/"], start=cursor, idle_timeout=DEADLINE) as reading:
            assert steps(until(reading, "40a")) == [f"+{number}a" for number in range(31, 41)]
