"""Parts of the node feed: URL, framing, seen blocks, request sizes, choice of a node, total difficulty."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal.config.url import Endpoint
from cardinal.errors import ConfigurationError, IntegrityError, NodeAnswerError
from cardinal.protocols.streams.types import BlockRef
from cardinal_ethereum.feed import open_feed
from cardinal_ethereum.feed.chain.blocks import BlockHeader, ChainMovedError
from cardinal_ethereum.feed.chain.fetch import BlockFetcher
from cardinal_ethereum.feed.chain.recent_blocks import RecentBlocks
from cardinal_ethereum.feed.nodes.health import PoolHealth
from cardinal_ethereum.feed.nodes.locate import locate
from cardinal_ethereum.feed.rpc.client import RpcClient
from cardinal_ethereum.feed.rpc.json_stream import JsonFrames
from cardinal_ethereum.feed.rpc.rate import FORGETS, STEPS, BatchSize, RateLimit
from cardinal_ethereum.feed.settings import FeedSettings, RpcSettings, quoted
from cardinal_ethereum.feed.url import NodeOptions, read_url
from cardinal_ethereum.feed.verify.total_difficulty import HEADERS_AT_ONCE, TotalDifficulties

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_nodes_and_options_are_read() -> None:
    nodes, settings = read_url("ws://a:1/k,ey,http://b:2?x=1#lag=3&rate=2.5&finality=safe&batch=9&state=yes&workers=0")
    assert [node.url for node in nodes] == ["ws://a:1/k,ey", "http://b:2?x=1"]
    assert settings == FeedSettings(
        lag=3, finality="safe", state=True, workers=0, worker_bytes=0, rpc=RpcSettings(rate=2.5, batch=9)
    )


def test_options_go_before_settings_and_leave_the_others() -> None:
    given = FeedSettings(lag=7, poll=9.0, rpc=RpcSettings(timeout=3.0, batch=4))
    assert read_url("http://a#lag=1&batch=8", given)[1] == FeedSettings(
        lag=1, poll=9.0, rpc=RpcSettings(timeout=3.0, batch=8)
    )
    assert read_url("http://a", given)[1] == given


def test_checks_that_a_chain_does_not_satisfy_are_named() -> None:
    assert read_url("http://a#unchecked=gas,bloom")[1].unchecked == {"gas", "bloom"}
    assert read_url("http://a#unchecked=receipts+root")[1].unchecked == {"receipts root"}
    for text in ("hash", "speed"):
        with pytest.raises(ConfigurationError, match=f"no check that can be left out is named '{text}'"):
            read_url(f"http://a#unchecked={text}")


@pytest.mark.parametrize(
    "option", ["speed=1", "lag=-1", "lag=x", "rate=0", "rate=nan", "finality=soon", "batch=0", "timeout=0", "workers="]
)
def test_wrong_option_is_one_sentence_without_the_urls_secrets(option: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_feed(f"http://user:s3cr3t@a/key#{option}")
    assert refused.value.setting == option.partition("=")[0]
    assert "s3cr3t" not in str(refused.value)
    assert "key" not in str(refused.value)


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match=r"there is no option lags of a node's URL: did you mean lag\?"):
        open_feed("http://a#lags=4")


def test_every_option_is_a_setting() -> None:
    for name in NodeOptions.model_fields:
        assert hasattr(FeedSettings(), name) or hasattr(RpcSettings(), name)


@pytest.mark.parametrize("url", ["ipc://run/geth.ipc", "ipc://", "ftp://a", "http://a,ftp://b"])
def test_address_that_no_node_has_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_feed(url)


# --- JSON texts out of a stream, however it is cut and whatever stands between them ----------------------------------


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\{}[]\n\té', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='k"}\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
TEXTS = st.lists(st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=6)


@given(texts=TEXTS, between=st.sampled_from(["", "\n", "\r\n", " "]), cuts=st.lists(st.integers(1, 9), min_size=1))
def test_texts_are_found_wherever_the_stream_is_cut(texts: list[Any], between: str, cuts: list[int]) -> None:
    stream = "".join(json.dumps(text) + between for text in texts).encode()
    frames, found, at, turn = JsonFrames(most=1 << 20), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += frames.receive(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert [json.loads(frame) for frame in found] == texts


def test_text_over_several_lines_is_one_text() -> None:
    shown = json.dumps({"id": 1, "result": ["0x1", {"a": None}]}, indent=2).encode()
    assert JsonFrames(most=1000).receive(shown) == [shown]


def test_text_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    frames = JsonFrames(most=100)
    frames.receive(b'["' + b"0" * 98)
    with pytest.raises(NodeAnswerError, match="longer than 100 bytes"):
        frames.receive(b"0")


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(NodeAnswerError, match="not in JSON-RPC"):
        JsonFrames(most=100).receive(b"HTTP/1.1 400 Bad Request\r\n")


# --- the memory of a feed: closed under parents, bounded, several branches side by side ------------------------------


def name(text: str) -> bytes:
    return text.encode().ljust(32, b"\0")


def ref(text: str) -> BlockRef:
    return BlockRef(int(text[:-1]), name(text))


def test_published_blocks_are_known_without_their_totals() -> None:
    known = RecentBlocks([ref("5a"), ref("6a"), ref("7a")], window=10)
    assert name("6a") in known
    assert (known.number(name("7a")), known.total(name("7a"))) == (7, None)
    assert (known.oldest(), known.highest) == (ref("5a"), 7)
    known.learn(name("7a"), 70)
    assert known.total(name("7a")) == 70


def test_parent_of_the_first_block_is_remembered_with_its_total() -> None:
    known = RecentBlocks([], window=10)
    known.add(ref("8a"), name("7a"), total=80, difficulty=9)
    assert known.number(name("7a")) == 7
    assert known.total(name("7a")) == 71


def test_block_zero_has_no_parent_to_remember() -> None:
    known = RecentBlocks([], window=10)
    known.add(ref("0a"), bytes(32), total=9, difficulty=9)
    assert known.numbers() == [0]
    assert bytes(32) not in known


@pytest.mark.parametrize(("published", "window"), [(40, 0), (40, 1), (40, 7), (8, 7), (7, 7)])
def test_published_blocks_far_below_the_highest_are_forgotten_too(published: int, window: int) -> None:
    """From the beginning, and after the first block that is given; of two branches both."""
    refs = [ref(f"{number}{branch}") for number in range(100, 100 + published) for branch in "ab"]
    known = RecentBlocks(refs, window=window)
    highest = 99 + published
    kept = list(range(max(100, highest - window), highest + 1))
    assert known.numbers() == kept
    assert len(known) == 2 * len(kept)
    assert {one.hash for one in refs if one.hash in known} == {one.hash for one in refs if one.number >= kept[0]}
    known.add(ref(f"{highest + 1}a"), name(f"{highest}a"), total=9, difficulty=1)
    assert known.numbers() == list(range(max(100, highest + 1 - window), highest + 2))
    assert known.oldest().number == known.numbers()[0]


@pytest.mark.parametrize("jump", [2, 30, 5_000])
def test_everything_that_a_jump_leaves_far_below_is_forgotten_at_once(jump: int) -> None:
    """What is published may have gaps, where producers left blocks half published."""
    known = RecentBlocks([ref(f"{number}a") for number in range(10, 20)], window=9)
    known.add(ref(f"{19 + jump}a"), name(f"{18 + jump}a"), total=9, difficulty=1)
    assert known.numbers() == [*(number for number in range(10, 20) if number >= 10 + jump), 19 + jump]


# --- what a node bears, learned; and calls a second ------------------------------------------------------------------


def drive(bearing: BatchSize, bears: int, requests: int) -> list[int]:
    """The sizes of requests to a node that bears so many calls; which of them were refused shows in the size."""
    sizes = []
    for _ in range(requests):
        sizes.append(bearing.size)
        if bearing.size > bears:
            bearing.refused(bearing.size)
        else:
            bearing.succeeded(bearing.size)
    return sizes


@given(most=st.integers(1, 1000), bears=st.integers(1, 1200))
def test_size_settles_near_what_is_borne_and_is_rarely_refused(most: int, bears: int) -> None:
    bearing = BatchSize(most)
    sizes = drive(bearing, bears, 3000)
    assert all(1 <= size <= most for size in sizes)
    settled = sizes[1500:]
    refused = sum(size > bears for size in settled)
    assert refused <= 1500 // STEPS // 4
    assert sum(settled) >= len(settled) * min(most, bears) * 0.45


def test_size_that_was_refused_in_a_busy_hour_is_reached_again_after_it() -> None:
    bearing = BatchSize(500)
    drive(bearing, 20, 200)
    assert bearing.size <= 20
    drive(bearing, 500, 20 * STEPS + FORGETS * 2)
    assert bearing.size == 500


def test_several_requests_in_flight_that_are_refused_do_not_cut_twice() -> None:
    bearing = BatchSize(100)
    for _ in range(4):
        bearing.refused(100)
    assert bearing.size == 50


@given(rate=st.integers(1, 200), calls=st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_calls_keep_to_the_rate_but_for_one_seconds_worth(rate: int, calls: list[int]) -> None:
    now = [100.0]
    throttle = RateLimit(rate, lambda: now[0])
    made = 0
    for count in calls:
        now[0] += throttle.wait(count)
        made += count
        assert made <= rate * (now[0] - 100.0) + rate + 1e-6 * made
    assert now[0] - 100.0 <= made / rate


def test_no_rate_never_waits() -> None:
    assert RateLimit(None, lambda: 0.0).wait(10_000) == 0.0


# --- pauses between attempts, and a node's own words in errors -------------------------------------------------------


def test_pauses_double_and_are_bounded() -> None:
    settings = RpcSettings(backoff=0.1)
    pauses = [settings.pause(attempt) for attempt in range(1, 12)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) == pytest.approx(2.0)


def test_a_nodes_words_are_quoted_without_what_its_url_hides() -> None:
    endpoint = Endpoint.parse("https://al:a%40sesame@node.example/v3/s3same-open")
    said = "not for\x1b[2Jal:\n a@sesame, s3same-open, t0ken of v3"
    assert quoted(endpoint, said, ["t0ken", ""]) == "not for [2Jal: …, …, … of v3"
    assert len(quoted(endpoint, "x" * 5_000)) < 500


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://al:sesame@node.example/rpc?v=1", "al is not in rpc v1"),
        ("ipc:///var/run/geth.ipc", "no such file /var/run/geth.ipc"),
    ],
)
def test_words_that_hide_nothing_are_left_as_they_are(url: str, words: str) -> None:
    assert quoted(Endpoint.parse(url), words) == words


# --- which of several nodes is followed ------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def standings(heads: Sequence[int | None], clock: Clock | None = None) -> PoolHealth:
    made = PoolHealth(len(heads), behind=3, rest=30.0, clock=clock or Clock())
    for place, head in enumerate(heads):
        made.of[place].head = head
    return made


def test_node_that_failed_rests_and_its_head_counts_for_nothing() -> None:
    clock = Clock()
    nodes = standings([100, 10_000_000, 99], clock)
    nodes.failed(1)
    assert nodes.best(active=0) == 0
    assert nodes.lag(0) == 0
    clock.now += 30.0
    assert nodes.best(active=0) == 1


def test_where_all_failed_the_one_whose_failure_is_longest_ago_is_tried() -> None:
    clock = Clock()
    nodes = standings([5, 5, 5], clock)
    for place in (1, 2, 0):
        nodes.failed(place)
        clock.now += 1
    assert nodes.best(active=0) == 1


def test_node_of_another_chain_is_never_followed() -> None:
    nodes = standings([5, 500])
    nodes.of[1].wrong = True
    assert nodes.best(active=0) == 0
    assert nodes.lag(0) == 0
    nodes.of[0].wrong = True
    assert nodes.best(active=0) is None


@given(heads=st.lists(st.none() | st.integers(0, 50), min_size=1, max_size=5), data=st.data())
def test_followed_node_is_in_order_and_close_where_any_is_and_choosing_twice_changes_nothing(
    heads: list[int | None], data: st.DataObject
) -> None:
    nodes = standings(heads)
    failed = data.draw(st.sets(st.integers(0, len(heads) - 1)))
    for place in failed:
        nodes.failed(place)
    active = data.draw(st.integers(0, len(heads) - 1))
    best = nodes.best(active)
    assert best is not None
    assert best == active or active in failed or nodes.lag(active) > 3, "it stays while it is not far behind"
    assert nodes.best(best) == best
    if len(failed) < len(heads):
        assert best not in failed
        known = [head for place, head in enumerate(heads) if place not in failed and head is not None]
        head = heads[best]
        assert head is None or head >= max(known) - 3


# --- the total difficulty where nodes disagree on serving it ---------------------------------------------------------


def header(number: int, *, difficulty: int, served: int | None = None) -> BlockHeader:
    return BlockHeader(
        number=hex(number),
        hash=f"0x{number:064x}",
        parent_hash=f"0x{max(0, number - 1):064x}",
        difficulty=hex(difficulty),
        total_difficulty=None if served is None else hex(served),
    )


def total_of(one: BlockHeader, *, parent_total: int | None = None) -> int:
    """Nobody listens on this node: what is reported is reported without a request."""

    async def ask() -> int:
        client = RpcClient(Endpoint.parse("http://127.0.0.1:9"))
        known = RecentBlocks([BlockRef(one.height - 1, one.parent)] if one.height else [], window=10)
        if parent_total is not None:
            known.learn(one.parent, parent_total)
        try:
            return await TotalDifficulties(BlockFetcher(client), known, sum_blocks=10).of(one)
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("number", "difficulty", "served", "parent_total", "total"),
    [
        (0, 17, None, None, 17),
        (0, 17, 17, None, 17),
        (0, 17, 18, None, None),
        (9, 5, 1000, None, 1000),
        (9, 5, 1000, 995, 1000),
        (9, 5, None, 995, 1000),
        (9, 5, 0, 995, 1000),
        *((9, 5, served, 995, None) for served in (1001, 999, 5)),
        *((9, 0, served, 1000, 1000) for served in (None, 0, 1000, 1001)),  # after the merge
        *((9, 0, served, parent, 0) for served in (None, 0, 1000, 10**30) for parent in (None, 0)),
    ],
)
def test_a_total_is_the_parents_and_the_blocks_own_difficulty_whatever_the_node_serves(
    number: int, difficulty: int, served: int | None, parent_total: int | None, total: int | None
) -> None:
    """None is refused; the total of a merged chain that nothing tells is 0, and left to the application."""
    one = header(number, difficulty=difficulty, served=served)
    if total is not None:
        assert total_of(one, parent_total=parent_total) == total
        return
    with pytest.raises(IntegrityError) as refused:
        total_of(one, parent_total=parent_total)
    assert refused.value.check == "total difficulty"


FORK, HEAD = HEADERS_AT_ONCE - 50, HEADERS_AT_ONCE + 50
"""Where two branches begin to differ, in the first of two batches of headers, and their height."""


def of_branch(number: int, branch: int) -> BlockHeader:
    """A header of one of two branches; below the fork they are one."""

    def name(at: int) -> str:
        return f"0x{branch if at >= FORK else 0:032x}{max(at, 0):032x}"

    return BlockHeader(number=hex(number), hash=name(number), parent_hash=name(number - 1), difficulty=hex(5))


class Moving:
    """A node that serves no totals, and the branch that its chain is on at each batch of headers."""

    def __init__(self, branches: Sequence[int]) -> None:
        self._branches = iter(branches)

    async def header_by_hash(self, block_hash: bytes) -> BlockHeader | None:
        assert block_hash == of_branch(HEAD, 0).parent
        return of_branch(HEAD - 1, 0)

    async def header(self, number: int) -> BlockHeader:
        return of_branch(number, 0)

    async def call(self, _: object, method: str, *params: object) -> None:
        raise NodeAnswerError(f"no {method} of {params}", code=-32601)

    async def headers(self, numbers: Sequence[int]) -> list[BlockHeader]:
        branch = next(self._branches)
        return [of_branch(number, branch) for number in numbers]


@pytest.mark.parametrize("branches", [(0, 0), (1, 0), (0, 1)], ids=["one chain", "there and back", "away"])
def test_a_difficulty_is_added_up_over_headers_of_one_chain_alone(branches: tuple[int, int]) -> None:
    fetcher: Any = Moving(branches)
    totals = TotalDifficulties(fetcher, RecentBlocks([], window=10), sum_blocks=HEAD)
    if branches == (0, 0):
        assert asyncio.run(totals.of(of_branch(HEAD, 0))) == 5 * (HEAD + 1)
        return
    with pytest.raises(ChainMovedError, match="during the sum of its difficulties"):
        asyncio.run(totals.of(of_branch(HEAD, 0)))


class Headers:
    """Fetcher of a chain's headers by number, with these timestamps."""

    def __init__(self, *timestamps: int) -> None:
        self.headers = [
            BlockHeader(hex(number), f"0x{number:064x}", f"0x{number:064x}", timestamp=hex(timestamp))
            for number, timestamp in enumerate(timestamps)
        ]

    async def header(self, name: int | str) -> BlockHeader | None:
        return self.headers[-1 if isinstance(name, str) else name]


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_a_block_is_located_by_time_in_any_unit(unit: int) -> None:
    chain = Headers(0, *(second * unit for second in range(1_700_000_000, 1_700_000_009)))
    found = [
        asyncio.run(locate(chain, text))  # type: ignore[arg-type] # the part that is used
        for text in ("2023-11-14T22:13:20Z", "2023-11-14T22:13:25Z", "2023-11-14T22:13:25.1Z", "1970-01-01")
    ]
    assert found == [1, 6, 7, 0]
    with pytest.raises(NodeAnswerError, match="no block at or after"):
        asyncio.run(locate(chain, "2023-11-14T22:13:29Z"))  # type: ignore[arg-type] # the same


def test_a_time_that_no_calendar_has_is_after_all_others() -> None:
    chain = Headers(0, 1_700_000_000, 2**70)
    assert asyncio.run(locate(chain, "2024-01-01")) == 2  # type: ignore[arg-type] # the part that is used
