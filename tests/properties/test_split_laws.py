"""A payload's messages: everything once, counted right, equal bytes for equal payloads; or refused by name."""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cardinal.apps.blob import Blob
from cardinal.errors import ConfigurationError, SplitError
from cardinal.protocols.streams import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    BlockRef,
    Message,
    Payload,
    Reorg,
    ReorgComplete,
    Routed,
    SubBatch,
    SubBatchHeader,
    SubBatchMsg,
    decode,
    reorg_topic,
    split,
    split_reorg,
    split_sub_batch,
)
from cardinal.protocols.streams.publishing.splitter import name_sub_batch
from cardinal.protocols.streams.publishing.topic_schema import Router, Unsure
from cardinal.protocols.streams.types import NO_ID, path_expression
from cardinal_devkit.testing.generator import SCHEMA
from streams import chain, h

PLAIN = {"b/[0-9a-z]+/t/": "tx", "b/[0-9a-z]+/l/": "logs", "b/[0-9a-z]+/h": "heads", "s/": "state", "n": "notes"}
ODD = {r"b/\w+/.*/": "tx", "s/?x": "state", "(?i:N)": "notes", "a/(?=b)": "heads"}
SCHEMAS = st.sampled_from([PLAIN, ODD, dict(SCHEMA), {"s/": "state"}, {}])
PATHS = st.one_of(
    st.text("abhlnstx/1", max_size=10),
    st.builds("b/{}/{}/{}".format, st.sampled_from("12"), st.sampled_from("tlhx"), st.integers(0, 9)),
    st.builds(
        "{}{}".format,
        st.sampled_from(["s/", "s", "n", "b/1/h", "b/1/item/", "b/2/nn", "a/"]),
        st.text("ab/x", max_size=3),
    ),
    st.binary(max_size=4).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
VALUES = st.binary(max_size=5)
SUBS = st.builds(
    SubBatch,
    st.sampled_from(["s/", "ledger", "s/x"]),
    st.dictionaries(PATHS, VALUES, max_size=3),
    st.frozensets(PATHS, max_size=2),
)
IDS = st.binary(min_size=32, max_size=32).filter(lambda one: one != NO_ID)
PAYLOADS = st.builds(
    Payload,
    st.integers(0, 2**63 - 1),
    st.just(h("1a")),
    st.just(h("0a")),
    st.integers(0, 2**256 - 1),
    st.dictionaries(PATHS, VALUES, max_size=12),
    st.frozensets(PATHS, max_size=4),
    st.dictionaries(IDS, st.one_of(st.none(), SUBS), max_size=2),
)


def made(payload: Payload, schema: Mapping[str, str]) -> list[Routed]:
    """The messages; the example is dropped where the payload contradicts itself."""
    try:
        return split(payload, schema, "blocks")
    except SplitError:
        assume(condition=False)
        raise


def read(messages: list[Routed]) -> list[tuple[str, Message]]:
    return [(topic, decode(key, value)) for topic, key, value in messages]


@given(PAYLOADS, SCHEMAS)
def test_every_update_and_delete_travels_exactly_once_and_nothing_else(
    payload: Payload, schema: dict[str, str]
) -> None:
    *rest, (last_topic, batch) = read(made(payload, schema))
    assert isinstance(batch, Batch)
    assert last_topic == "blocks"
    assert (batch.hash, batch.number, batch.weight, batch.parent) == (
        payload.hash, payload.number, payload.weight, payload.parent,
    )  # fmt: skip
    counted = {message.path: message.value for _, message in rest if isinstance(message, BatchMsg)}
    deleted = [message.path for _, message in rest if isinstance(message, BatchDeleteMsg)]
    inside = {path: entry for path, entry in batch.updates.items() if not entry.count and entry.sub_batch == NO_ID}
    values = {path: entry.value for path, entry in inside.items() if not entry.delete}
    assert counted | values == dict(payload.updates)
    assert len(counted) + len(values) == len(payload.updates)
    assert sorted([*deleted, *(path for path, entry in inside.items() if entry.delete)]) == sorted(payload.deletes)
    keys = [message[1:] for message in split(payload, schema, "blocks")]
    assert len({key for key, _ in keys}) == len(keys)


@given(PAYLOADS, SCHEMAS)
def test_each_count_is_the_number_of_messages_of_its_prefix_on_its_topic(
    payload: Payload, schema: dict[str, str]
) -> None:
    *rest, (_, batch) = read(made(payload, schema))
    router = Router(tuple(schema.items()))
    counts: Counter[str] = Counter()
    for topic, message in rest:
        if isinstance(message, BatchMsg | BatchDeleteMsg):
            route = router.route(message.path)
            assert route is not None
            assert route.topic == topic
            assert message.path.startswith(route.prefix)
            counts[route.prefix] += 1
    assert isinstance(batch, Batch)
    assert {path: entry.count for path, entry in batch.updates.items() if entry.count} == counts


@given(PAYLOADS, SCHEMAS)
def test_each_sub_batch_is_announced_and_has_its_header_and_every_index(
    payload: Payload, schema: dict[str, str]
) -> None:
    *rest, (_, batch) = read(made(payload, schema))
    assert isinstance(batch, Batch)
    announced = {entry.sub_batch for entry in batch.updates.values()} - {NO_ID}
    assert announced == payload.sub_batches.keys()
    for batch_id, sub_batch in payload.sub_batches.items():
        headers = [one for _, one in rest if isinstance(one, SubBatchHeader) and one.batch_id == batch_id]
        parts = [one for _, one in rest if isinstance(one, SubBatchMsg) and one.batch_id == batch_id]
        if sub_batch is None:
            assert not headers
            assert not parts
            continue
        assert [header.count for header in headers] == [len(parts)]
        assert [part.index for part in parts] == list(range(len(parts)))
        assert {path: value for part in parts for path, value in part.updates.items()} == dict(sub_batch.updates)
        assert {path for part in parts for path in part.deletes} == sub_batch.deletes


@given(PAYLOADS, SCHEMAS, st.integers(0, 999))
def test_equal_payloads_are_equal_bytes_in_equal_order(payload: Payload, schema: dict[str, str], seed: int) -> None:
    messages = made(payload, schema)
    rng = random.Random(seed)
    updates, sub_batches = list(payload.updates.items()), list(payload.sub_batches.items())
    rng.shuffle(updates)
    rng.shuffle(sub_batches)
    again = dataclasses.replace(payload, updates=dict(updates), sub_batches=dict(sub_batches))
    assert split(again, schema, "blocks") == messages


# --- the short way -----------------------------------------------------------------------------------------

PARTS = st.sampled_from(
    ["a", "b", "x", "/", "/", "[a-c]", "[0-9a-z]+", r"\w*", r"\d?", "b{2}", "x{1,2}", "-", r"\.", "[a-z", "]", "[--9]",
     ".", ".*", "[^a]", r"\S", "(a|b/)", "a|b", "/?", "/+", "(?=x)", "$", "^", r"\b", r"\/", "(?i)", "a++", "[a-z--9]"]
)  # fmt: skip
EXPRESSIONS = st.lists(PARTS, min_size=1, max_size=5).map("".join)
LONGER = st.text("abx./-1", max_size=9)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Python warns of classes that look like a set difference
@given(st.lists(EXPRESSIONS, min_size=1, max_size=2, unique=True), LONGER)
@example(["a/b"], "a/b")
@example(["a/b"], "a/b/c")
@example(["[a-z--9]*/x"], "a/x/y")
@example([r"\w+/"], "ab")
def test_what_holds_of_a_directory_holds_of_every_path_in_it(expressions: list[str], path: str) -> None:
    try:
        router = Router(tuple((source, str(index)) for index, source in enumerate(expressions)))
    except ConfigurationError:
        return
    answer = router.directory(path[: path.rfind("/") + 1])
    assert answer is Unsure.NEEDS_PATH or answer == router.route(path)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(st.lists(EXPRESSIONS, max_size=3, unique=True), st.lists(LONGER | st.text(max_size=4), unique=True).map(sorted))
@example(["a/b/", "c"], ["a/b/", "a/b/c/d", "a/b/x", "a/b0", "a/c", "a/c/", "c", "c/", "ca"])
@example([], ["", "/", "a"])
@example(["a/"], ["a", "a-/x", "a/", "a/\U0010ffff", "a/\udcff", "a0"])
def test_paths_come_in_runs_of_one_answer_each(expressions: list[str], paths: list[str]) -> None:
    try:
        router = Router(tuple((source, str(index)) for index, source in enumerate(expressions)))
    except ConfigurationError:
        return
    runs = list(router.runs(paths))
    assert [path for _, run in runs for path in run] == paths
    for directory, run in runs:
        assert run
        assert all(path.startswith(directory) for path in run)
        answer = router.directory(directory)
        assert answer is Unsure.NEEDS_PATH or all(router.route(path) == answer for path in run)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(st.lists(EXPRESSIONS, min_size=1, max_size=4, unique=True), LONGER)
@example(["a*", "b"], "b")
@example(["[0-9a-z]+/b/", "[0-9a-z]+/bx?", "a/"], "a/b/c/d")
@example([r"a/\w*/x", "[a-c]/b{2}/"], "a/bb/x/")
@example(["a", "ab", "x"], "ab")
@example(["x", "a+", "a/"], "a/")
def test_all_expressions_at_once_match_what_each_matches_by_itself(expressions: list[str], path: str) -> None:
    schema = tuple((source, str(index)) for index, source in enumerate(expressions))
    try:
        together = Router(schema)
    except ConfigurationError:
        return
    matches = [(topic, re.compile(f"(?:{source})").match(path)) for source, topic in schema]
    alone = [(topic, match.group()) for topic, match in matches if match and match.group()]
    if len(alone) > 1:
        with pytest.raises(SplitError, match=f"matches {len(alone)} expressions"):
            together.route(path)
    else:
        assert together.route(path) == (alone[0] if alone else None)


def test_the_short_way_is_taken_for_the_applications_own_expressions() -> None:
    router = Router(tuple(PLAIN.items()))
    assert router.directory("b/3a/t/") == ("tx", "b/3a/t/")
    assert router.directory("b/3a/t/deeper/") == ("tx", "b/3a/t/")
    assert router.directory("s/") == ("state", "s/")
    assert router.directory("else/") is None
    assert router.directory("b/3a/") is Unsure.NEEDS_PATH
    assert Router(tuple(ODD.items())).directory("s/") is Unsure.NEEDS_PATH


def test_long_paths_and_paths_of_many_parts_are_matched_like_others() -> None:
    router = Router((*PLAIN.items(), ("k*", "many")))
    far = "x" * 1000
    assert router.route(f"b/{far}/t/{far}") == ("tx", f"b/{far}/t/")
    assert router.route(f"s/{far}") == ("state", "s/")
    assert router.route(f"kk{far}/a") == ("many", "kk")
    assert router.route("s/" + "a/" * 5000) == ("state", "s/")
    assert router.route("/" * 5000) is None


# --- what is refused ---------------------------------------------------------------------------------------


def payload(**changes: object) -> Payload:
    return dataclasses.replace(Payload(1, h("1a"), h("0a"), 1), **changes)  # type: ignore[arg-type]  # any field


REFUSED: list[tuple[Payload, object]] = [
    (payload(updates={"b/1/t/": b"", "b/1/t/2": b"", "b/1/t": b"1"}, deletes=frozenset({"b/1/t"})), "b/1/t"),
    (payload(updates={"x": b"1"}, deletes=frozenset({"x"})), "x"),
    (payload(updates={"no1": b"", "n": b"", "u": b""}, sub_batches={h("s"): SubBatch("n")}), "n"),
    (payload(updates={"u": b""}, sub_batches={h("s"): SubBatch("u")}), "u"),
    (payload(deletes=frozenset({"u"}), sub_batches={h("s"): SubBatch("u")}), "u"),
    (payload(sub_batches={h("s"): SubBatch("u"), h("t"): SubBatch("u")}), "u"),
    (payload(updates={h("s").hex(): b""}, sub_batches={h("s"): None}), h("s").hex()),
    (payload(sub_batches={NO_ID: None}), NO_ID),
    (payload(sub_batches={b"short": SubBatch("s")}), b"short"),
    (payload(updates={"b/1/t/\ud800": b""}), "b/1/t/\ud800"),
    (payload(updates={"x\ud800": b""}), "x\ud800"),
    (payload(deletes=frozenset({"b/1/t/\ud800"})), "b/1/t/\ud800"),
    (payload(updates={"x": "text"}), "x"),
    (payload(updates={"b/1/t/9": "text"}), "b/1/t/9"),
    (payload(updates={"b/1/t/8": b"", "b/1/t/9": "text"}), "b/1/t/9"),
    (payload(updates={"b/1/t/8": b"", "b/1/t/\ud800": b""}), "b/1/t/\ud800"),
    (payload(sub_batches={h("s"): SubBatch("s/", {"\ud800": b""})}), "\ud800"),
    (payload(sub_batches={h("s"): SubBatch("s/", {}, frozenset({"\ud800"}))}), "\ud800"),
    (payload(hash=b"short"), b"short"),
    (payload(parent=b"short"), b"short"),
    (payload(parent=h("1a")), h("1a")),
    (Blob(1, h("1a"), h("0g")), None),
    (payload(hash="0x11"), None),
    (payload(number="1"), None),
    (payload(weight=1.5), None),
    (payload(number=-1), None),
    (payload(number=2**63), None),
    (payload(weight=-1), None),
    (payload(weight=2**512), None),
]


@pytest.mark.parametrize(("wrong", "path"), REFUSED, ids=lambda one: repr(one)[:60])
def test_what_contradicts_itself_is_refused_with_its_name(wrong: Payload, path: object) -> None:
    with pytest.raises(SplitError) as caught:
        split(wrong, PLAIN, "blocks")
    assert caught.value.path == path


class _Named(bytes):
    """Bytes of another type, as some libraries return them."""


def test_values_of_a_type_that_is_bytes_are_taken_as_bytes() -> None:
    plain = {f"b/1a/t/{index}": b"%d" % index for index in range(3)}
    named = payload(updates={path: _Named(value) for path, value in plain.items()})
    assert split(named, PLAIN, "blocks") == split(payload(updates=plain), PLAIN, "blocks")


def test_paths_of_one_directory_keep_bytes_that_are_not_utf_8() -> None:
    updates = {"b/1/t/" + raw.decode("utf-8", "surrogateescape"): raw for raw in (b"8", b"\xff\xfe", b"\xc3\xa9")}
    *content, _ = split(payload(updates=updates), PLAIN, "blocks")
    assert sorted(message.key[33:] for message in content) == sorted(b"b/1/t/" + raw for raw in updates.values())
    assert all(message.key.endswith(message.value) for message in content)


OVERLAP = {"a/": "one", "a/b": "two"}


@pytest.mark.parametrize(
    "wrong",
    [
        payload(updates={"a/b1": b""}),
        payload(updates={"a/b/c": b""}),
        payload(deletes=frozenset({"a/b1"})),
        payload(sub_batches={h("s"): SubBatch("a/b1")}),
    ],
    ids=["update", "update below", "delete", "sub batch"],
)
def test_a_path_that_two_expressions_match_is_refused_with_its_name(wrong: Payload) -> None:
    with pytest.raises(SplitError, match=r"matches 2 expressions of the topic schema \(one, two\)") as caught:
        split(wrong, OVERLAP, "blocks")
    assert isinstance(caught.value.path, str)
    assert caught.value.path.startswith("a/b")


def test_a_counted_prefix_that_is_also_an_entry_is_refused_with_its_name() -> None:
    """The path `s` matches nothing, and `sx` counts under `s`."""
    with pytest.raises(SplitError) as caught:
        split(payload(updates={"s": b"", "sx": b""}), {"s(?=x)": "state"}, "blocks")
    assert caught.value.path == "s"


@pytest.mark.parametrize("schema", [{"(": "tx"}, {"": "tx", "a": "logs"}])
def test_a_schema_that_cannot_work_is_refused(schema: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        split(payload(), schema, "blocks")
    assert caught.value.setting == "topics"


# --- sub batches that come later ---------------------------------------------------------------------------


@given(PAYLOADS, SCHEMAS)
def test_a_sub_batch_announced_without_content_and_named_later_is_as_if_it_had_come_at_once(
    whole: Payload, schema: dict[str, str]
) -> None:
    assume(None not in whole.sub_batches.values())
    messages = made(whole, schema)
    announced = dataclasses.replace(whole, sub_batches=dict.fromkeys(whole.sub_batches))
    *now, batch = split(announced, schema, "blocks")
    later: list[Routed] = []
    for batch_id, content in whole.sub_batches.items():
        assert content is not None
        later += split_sub_batch(whole.hash, batch_id, content, schema, "blocks")
        batch = name_sub_batch(batch, batch_id, content.path)
        assert name_sub_batch(batch, batch_id, content.path) == batch
    assert sorted([*now, *later, batch]) == sorted(messages)


def test_a_name_that_the_batch_has_no_room_for_is_refused() -> None:
    batch = split(payload(updates={"u": b""}, sub_batches={h("s"): None}), PLAIN, "blocks")[-1]
    for batch_id, path in ((h("s"), "u"), (h("t"), "s/"), (NO_ID, "s/"), (h("s"), "\ud800")):
        with pytest.raises(SplitError):
            name_sub_batch(batch, batch_id, path)
    with pytest.raises(SplitError, match="announces no sub batch"):
        name_sub_batch(split(payload(updates={"n1": b""}), PLAIN, "blocks")[0], h("s"), "s/")


def test_a_sub_batch_that_is_named_already_keeps_its_name() -> None:
    batch = split(payload(sub_batches={h("s"): None}), PLAIN, "blocks")[-1]
    named = name_sub_batch(batch, h("s"), "s/")
    assert named != batch
    assert name_sub_batch(named, h("s"), "s/") == named


def test_a_sub_batch_of_no_id_is_refused() -> None:
    with pytest.raises(SplitError):
        split_sub_batch(h("1a"), NO_ID, SubBatch("s/"), PLAIN, "blocks")


@pytest.mark.parametrize(
    ("expression", "path"), [("e/\\d+/", "e/\u0663/x"), ("w/\\w+/", "w/\u00e9/x"), ("s/\\s/", "s/\u2003/x")]
)
def test_classes_of_an_expression_match_ascii(expression: str, path: str) -> None:
    """As in Go, so that Batches of both implementations are equal."""
    batch = decode(*split(payload(updates={path: b""}), {expression: "other"}, "blocks")[-1][1:])
    assert isinstance(batch, Batch)
    assert list(batch.updates) == [path]
    with pytest.raises(re.error, match="ASCII and UNICODE"):
        path_expression("(?u)a/")


# --- reorg channels ----------------------------------------------------------------------------------------


def test_a_reorg_is_announced_and_everything_else_is_on_its_channel() -> None:
    ancestor = BlockRef(2, h("2a"))
    announced, messages = split_reorg(ancestor, chain("3b 4b", root="2a"), PLAIN, "blocks")
    assert (announced.topic, decode(*announced[1:])) == ("blocks", Reorg(ancestor.hash, 2))
    assert {message.topic for message in messages} == {reorg_topic("blocks", ancestor.hash)}
    decoded = [decode(*message[1:]) for message in messages]
    assert (decoded[0], decoded[-1]) == (Reorg(ancestor.hash, 2), ReorgComplete(ancestor.hash, 2))
    assert [message.hash for message in decoded if isinstance(message, Batch)] == [h("3b"), h("4b")]
    with pytest.raises(SplitError):
        split_reorg(BlockRef(2**31, h("2a")), [], PLAIN, "blocks")
