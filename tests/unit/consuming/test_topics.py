"""Topics that a consumer need not read, and that leaving them out loses nothing."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocks import Blocks, added, consumer, line, publish, steps, updates_until
from cardinal import apps
from cardinal.apps import Application
from cardinal.consuming.topics import tracked_expressions, wanted_topics
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams import SubBatch
from cardinal_devkit.testing.memory import MemoryBroker

EVM = apps.get("evm", chain_id=1)


@pytest.mark.parametrize(
    ("tracked", "topics"),
    [
        (["c/1/b/[0-9a-z]+/t/"], {"tx"}),
        (["c/1/b/[0-9a-z]+/l/", "c/1/b/[0-9a-z]+/r/"], {"logs", "receipt"}),
        (["c/1/a/"], {"state"}),
        (["^c/1/c/"], {"code"}),
        (["c/1/b/[0-9a-z]+/[tr]/"], {"block", "logs", "receipt", "tx"}),
        (["c/[0-9]+/b/.*/[tr]/"], {"block", "code", "logs", "receipt", "state", "tx"}),
        (["c/1/b/"], {"block", "tx", "receipt", "logs"}),
        (["/h$"], {"block", "code", "logs", "receipt", "state", "tx"}),
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
        (("b/[0-9]+/x",), "/x/y", set()),
        (("a/x", "c/x"), "/x", {"a"}),
        (None, "/x", {"a", "b"}),
        (None, "^b/", {"a", "b"}),
    ],
)
def test_a_sub_batch_may_lie_behind_what_its_topics_expression_matches(
    sub_batches: tuple[str, ...] | None, tracked: str, topics: set[str]
) -> None:
    """An application that does not say where its sub batches lie may have them anywhere."""
    assert wanted_topics(Blocks(sub_batches=sub_batches), [tracked]) == ("block", *sorted(topics))


def test_what_is_followed_of_a_sub_batch_comes_though_its_topics_expression_covers_less() -> None:
    app = Blocks(sub_batches=None)
    far = [
        replace(one, sub_batches={bytes([7]) * 32: SubBatch("b/far/x", {"b/far/x/1": b"5"}, frozenset())})
        for one in line(1, 30)
    ]
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, far, app=app)
        with consumer(broker, app=app, tracked=["far/"]) as reading:
            updates = updates_until(reading, "30a")
    assert [dict(block.updates) for update in updates for block in update.added] == [{"b/far/x/1": b"5"}] * 30  # type: ignore[union-attr] # they are whole


PARTS = st.sampled_from(["a", "b", "ab", "[ab]+", "a[a-b]", "[a-b]{2}", "[0-9a-b]*", "(a|b)", "a?", r"\\w", "."])


EXPRESSIONS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@given(matched=EXPRESSIONS, searched=EXPRESSIONS, anchor=st.sampled_from(["", "^"]), data=st.data())
def test_no_topic_is_left_out_in_which_something_can_be_found(
    matched: str, searched: str, anchor: str, data: st.DataObject
) -> None:
    """Python's own expressions are the judge, over texts that the topic's expression matches."""
    app = Application(name="one", chain="one:1", default_topic="one", topics={matched: "two"}, sub_batches=())
    entry = data.draw(st.from_regex(re.compile(matched), fullmatch=True).filter(lambda text: not text.endswith("\n")))
    if re.search(anchor + searched, entry):
        assert wanted_topics(app, [anchor + searched]) == ("one", "two")


def test_a_consumer_with_few_wishes_reads_few_topics_and_gives_the_same_chain() -> None:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, line(1, 30))
        with consumer(broker, tracked=["b/"]) as reading:
            updates = updates_until(reading, "30a")
            assert {topic for topic, _ in reading.positions} == {"block", "b"}
    assert steps(updates) == added(1, 30)
    assert all(set(block.updates) == {"b/1"} for update in updates for block in update.added)  # type: ignore[union-attr] # they are whole


@pytest.mark.parametrize(
    ("tracked", "expressions", "topics"),
    [
        ("logs", ["c/5dc/b/[0-9a-z]+/l/"], ["logs"]),
        (["logs", "transactions"], ["c/5dc/b/[0-9a-z]+/l/", "c/5dc/b/[0-9a-z]+/t/"], ["logs", "tx"]),
        (["headers", "c/5dc/c/"], ["c/5dc/b/[0-9a-z]+/h", "c/5dc/b/[0-9a-z]+/d", "c/5dc/c/"], ["block", "code"]),
        ("state", ["c/5dc/a/", "c/5dc/s"], ["state"]),
        ("c/5dc/b/[0-9a-z]+/l/", ["c/5dc/b/[0-9a-z]+/l/"], ["logs"]),
    ],
)
def test_an_application_s_names_stand_for_its_expressions(
    tracked: str | list[str], expressions: list[str], topics: list[str]
) -> None:
    app = apps.get("evm", chain_id=1500)
    found = tracked_expressions(app, tracked)
    assert found == tuple(expressions)
    assert wanted_topics(app, found) == ("cardinal-1500", *(f"cardinal-1500-{topic}" for topic in topics))


@pytest.mark.parametrize("app", [EVM, apps.get("evm", chain="polygon"), apps.get("blob")], ids=lambda app: app.chain)
def test_names_stand_for_what_the_application_counts_under(app: Application) -> None:
    named = {expression for expressions in app.names.values() for expression in expressions}
    assert named == set(app.prefixes)


@pytest.mark.parametrize(
    ("tracked", "says"),
    [
        (
            "log",
            "'log' is no name of an entry of evm:1500: did you mean logs\\?",
        ),
        (["logs", "nonsense"], "'nonsense' is no name of an entry of evm:1500: use blocks"),
        (["c/1500/b/[0-9a-z]+/l/"], r"can match no entry of evm:1500: did you mean c/5dc/b/\[0-9a-z\]\+/l/\?"),
        ("logs/", r"contains the text 'logs': pass names as a list, tracked=\['logs'\]"),
        ("logs|receipts", r"pass names as a list, tracked=\['logs', 'receipts'\]"),
        ("c/5dc/n/safe", r"'c/5dc/n/safe' can match no entry of evm:1500: did you mean c/5dc/n/\?"),
    ],
)
def test_what_can_match_nothing_is_refused_with_what_can(tracked: str | list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        tracked_expressions(apps.get("evm", chain_id=1500), tracked)
    assert caught.value.setting == "tracked"


def test_an_application_without_names_takes_every_expression() -> None:
    assert tracked_expressions(Blocks(), ["inside", "c/1500/b/"]) == ("inside", "c/1500/b/")
