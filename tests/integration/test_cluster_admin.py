"""`cardinal cluster init`, `reconfigure` and `status` on a real broker: the claim log, and what is reported."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_streams import DEADLINE, a_chain, everything_on, named, small_stream

from cardinal.cli.main import cardinal
from cardinal.config.settings import find_url
from cardinal.errors import ConfigurationError, TopicError
from cardinal.metrics import CollectorRegistry, Endpoint, GaugeMetricFamily
from cardinal.producer import Producer
from cardinal.server.topics import delete_topics, topics_of
from cardinal_ingest.cluster.admin import Begun, Signer, begin_cluster, reconfigure_cluster
from cardinal_ingest.cluster.claims import ClaimWriter
from cardinal_ingest.cluster.config import ClusterFile, load_cluster
from cardinal_ingest.cluster.keys import SecretKey, generate_key, load_key, verify
from cardinal_ingest.cluster.log_state import cluster_before
from cardinal_ingest.cluster.promotion_writer import Agreed, PromotionWriter
from cardinal_ingest.cluster.status import ClusterStatus, cluster_status
from cardinal_ingest.cluster.topics import ClusterTopics, claims_topic, promoted_topic
from cardinal_ingest.errors import TopicSettingError
from cardinal_ingest.protocols.replication import (
    NO_HASH,
    Checkpoint,
    Claim,
    ClaimLog,
    Close,
    Epoch,
    Header,
    Item,
    Marker,
    Opened,
    State,
    claim_bytes,
    decode_record,
    encode,
    record_bytes,
    saved_bytes,
    seal_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from cardinal.apps import Application
    from cardinal_devkit.kafka import EmbeddedKafka


@dataclass
class TestCluster:
    """A cluster on topics of its own; nothing of it runs. ``state`` is for a test to remember."""

    __test__ = False

    url: str
    folder: Path
    app: Application = field(default_factory=lambda: small_stream(f"c-{uuid.uuid4().hex[:10]}"))
    keys: dict[str, SecretKey] = field(default_factory=dict)
    state: State = field(init=False)

    def file(self, members: str = "abc", *, epoch: int = 0, metrics: Mapping[str, str] | None = None) -> Path:
        """`cluster.toml` of these members."""
        lines = ['name = "main"', f"epoch = {epoch}"]
        for number, one in enumerate(members, 1):
            key = self.key(one)
            lines += [f"[members.{one}]", f'key = "{key.public.hex()}"', f'address = "127.0.0.1:{2_000 + 10 * number}"']
            lines += [f'metrics = "{metrics[one]}"'] if metrics and one in metrics else []
        path = self.folder / f"cluster-{epoch}-{members}.toml"
        path.write_text("\n".join(lines))
        return path

    def key(self, member: str) -> SecretKey:
        """The key of a member, in the file `a.key`."""
        if member not in self.keys:
            path = self.folder / f"{member}.key"
            self.keys[member] = load_key(path) if path.exists() else generate_key(path)
        return self.keys[member]

    # --- the log ----------------------------------------------------------------------------------------------------

    def values(self, epoch: int = 0) -> list[bytes]:
        """Records of an epoch's claim log."""
        return [one.value for one in everything_on(self.url, self.app, [claims_topic(self.app.default_topic, epoch)])]

    def opened(self, file: Path) -> tuple[Epoch, State]:
        """The Epoch record and its state, as a member accepts it."""
        found = load_cluster(file)
        log, value = ClaimLog(found.membership(self.app), verify), self.values(found.epoch)[0]
        verdict = log.read(0, value)
        assert isinstance(verdict, Opened)
        record = decode_record(value)
        assert isinstance(record, Epoch)
        return record, verdict.state

    def append(self, values: Iterable[bytes], epoch: int = 0) -> None:
        """Append records to an epoch's claim log."""
        self._write(claims_topic(self.app.default_topic, epoch), values)

    def claims(self, file: Path, state: State, batches: Iterable[str], claimers: str) -> tuple[list[bytes], State]:
        """Claims of batches such as `"1a 2a"`, above the state's head, and the state after them."""
        found, values = load_cluster(file), []
        for spec, claimer in zip(batches, claimers, strict=True):
            header = self._header(found, state, spec)
            values.append(encode(self._claim(found, header, claimer)))
            state = state.after(header)
        return values, state

    def checkpoint(self, file: Path, state: State, author: str) -> bytes:
        """A checkpoint with this state."""
        unsigned = Checkpoint(state.raw, author, b"")
        cluster = load_cluster(file).membership(self.app).cluster
        return encode(replace(unsigned, signature=self.key(author).sign(record_bytes(cluster, unsigned))))

    def promote(self, file: Path, num: int, index: int, writer: str) -> None:
        """Write a marker."""
        membership = load_cluster(file).membership(self.app)
        marker = Marker(membership.cluster, membership.stream, num, index, bytes(32), writer)
        self._write(promoted_topic(self.app.default_topic), [encode(marker)])

    def _write(self, topic: str, values: Iterable[bytes]) -> None:
        writer = ClaimWriter(self.url, topic)
        try:
            for done in [writer.append(self.app.default_topic.encode(), value) for value in values]:
                done.result(DEADLINE)
        finally:
            writer.close()

    def _header(self, file: ClusterFile, state: State, spec: str) -> Header:
        membership, names = file.membership(self.app), spec.split()
        numbers = [int("".join(filter(str.isdigit, name))) for name in names]
        assert all(low + 1 == high for low, high in pairwise(numbers))
        parent = state.head.hash if state.ring else named(f"{numbers[0] - 1}a")
        items = [Item(number, named(name), bytes(32)) for number, name in zip(numbers, names, strict=True)]
        return seal_header(
            membership.cluster, membership.stream, state.num + 1, state.hash, state.digest, parent, numbers[-1], items
        )

    def _claim(self, file: ClusterFile, header: Header, claimer: str) -> Claim:
        saved = saved_bytes(header.cluster, header.stream, header.num, header.hash)
        certificate = tuple((one, self.key(one).sign(saved)) for one in sorted(file.members))
        unsigned = Claim(header, claimer, 0, certificate, b"")
        return replace(unsigned, signature=self.key(claimer).sign(claim_bytes(header.cluster, unsigned)))


pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> TestCluster:
    return TestCluster(f"kafka://{cardinal_broker.bootstrap}", tmp_path)


def init(cluster: TestCluster, file: Path, start: int | None = None, by: str = "a") -> Begun:
    signer = Signer(by, cluster.key(by))
    return begin_cluster(find_url(cluster.url), cluster.app, load_cluster(file), signer, start)


def reconfigure(cluster: TestCluster, old: Path, new: Path, by: str = "a") -> Begun:
    signer = Signer(by, cluster.key(by))
    return reconfigure_cluster(find_url(cluster.url), cluster.app, load_cluster(old), load_cluster(new), signer)


def publish(cluster: TestCluster, spec: str) -> None:
    with Producer(cluster.url, cluster.app, producer_id="one") as producer:
        for block in a_chain(spec):
            producer.add(block)
        producer.flush(DEADLINE)


def chain(first: int, last: int) -> str:
    return " ".join(f"{number}a" for number in range(first, last + 1))


# --- init -------------------------------------------------------------------------------------------------------------


def test_a_cluster_begins_once_with_the_first_block_that_is_given(cluster: TestCluster) -> None:
    file = cluster.file("ab")
    with pytest.raises(ConfigurationError, match=r"the topics are empty: give the number .* \(--start\)"):
        init(cluster, file)
    begun = init(cluster, file, 7)
    assert (begun.head, begun.start, begun.already) == (None, 7, False)
    assert "2 members tolerate no more failures than 1" in begun.warnings[0]
    record, state = cluster.opened(file)
    assert (record.name, record.epoch, record.previous, record.id) == ("main", 0, NO_HASH, "a")
    assert (record.start, record.window, record.max_blocks) == (7, cluster.app.reorg_threshold, 500)
    assert (state.num, state.highest, dict(state.ring)) == (0, 6, {})
    values, _ = cluster.claims(file, state, [chain(7, 9)], "b")
    cluster.append(values)
    with pytest.raises(ConfigurationError, match="has records, so a cluster has begun"):
        init(cluster, file, 7)
    assert len(cluster.values()) == 2


def test_the_newest_blocks_of_topics_in_use_are_the_first_state(cluster: TestCluster) -> None:
    """As deep as the reorg threshold. A block above them is agreed by the first claim."""
    publish(cluster, chain(1, 40))
    file = cluster.file()
    with pytest.raises(ConfigurationError, match=r"the topics end with block 40, .*: leave out --start"):
        init(cluster, file, 1)
    begun = init(cluster, file)
    assert (begun.head, begun.start) == ((40, named("40a"), 40), 41)
    record, state = cluster.opened(file)
    assert (state.head, state.highest, record.start) == (begun.head, 40, 41)
    assert dict(state.ring) == {named(f"{number}a"): number for number in range(24, 41)}
    assert cluster.claims(file, state, ["41a"], "c")[1].head.number == 41


@pytest.mark.slow
def test_a_cluster_that_follows_another_one_on_its_topics_counts_on(cluster: TestCluster) -> None:
    """Without the old markers the headers on the topics count: batches with lower numbers would be left out."""
    file, blocks = cluster.file(), a_chain("1a 2a 3a")
    init(cluster, file, 1)

    async def promote() -> None:
        topic = cluster.app.default_topic
        markers = ClusterTopics(cluster.url, topic).ensure_promoted()
        writer = PromotionWriter(cluster.url, cluster.app, cluster="main", key=topic.encode(), markers=markers)
        assert await writer.take() is None
        await writer.write([(Agreed(num, 0), block) for num, block in enumerate(blocks, 5)], b"\x80")
        await writer.close()

    asyncio.run(promote())
    topics = [claims_topic(cluster.app.default_topic, 0), promoted_topic(cluster.app.default_topic)]
    delete_topics(find_url(cluster.url), topics[:1])
    with pytest.raises(ConfigurationError, match="something else writes to it"):
        init(cluster, file)
    cluster.promote(file, 7, 1, "a")
    with pytest.raises(ConfigurationError, match=r"restore its claim log; to begin another .*, delete both topics"):
        init(cluster, file)
    delete_topics(find_url(cluster.url), topics)
    begun = init(cluster, file)
    assert begun.head == (3, named("3a"), 3)
    assert cluster.opened(file)[1].num == 7


def test_who_is_no_member_of_epoch_0_does_not_begin_it(cluster: TestCluster) -> None:
    file = cluster.file()
    with pytest.raises(ConfigurationError, match="d is no member of epoch 0: sign as one of a, b, c"):
        init(cluster, file, 0, by="d")
    with pytest.raises(ConfigurationError, match="the key is not that of a in epoch 0"):
        begin_cluster(find_url(cluster.url), cluster.app, load_cluster(file), Signer("a", cluster.key("b")), 0)
    with pytest.raises(ConfigurationError, match="has epoch 1: set epoch = 0, or run `cardinal cluster reconfigure`"):
        init(cluster, cluster.file(epoch=1), 0)
    with pytest.raises(TopicError):
        cluster.values()


# --- reconfigure ------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(cluster: TestCluster) -> tuple[TestCluster, Path]:
    """A cluster that has agreed on the blocks 1 to 20 in three batches."""
    file = cluster.file()
    init(cluster, file, 1)
    batches = [chain(1, 2), chain(3, 3), chain(4, 20)]
    values, cluster.state = cluster.claims(file, cluster.opened(file)[1], batches, "abc")
    cluster.append(values)
    return cluster, file


@dataclass(eq=False)
class Member:
    """Metrics of a member, as an ingest node serves them; ``scraped`` is called before they are read."""

    numbers: dict[str, int] = field(default_factory=dict)
    labels: dict[str, tuple[str, str]] = field(default_factory=dict)
    scraped: Callable[[], object] = lambda: None

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.scraped()
        yield GaugeMetricFamily("cardinal_ingest_ready", "", value=1)
        yield GaugeMetricFamily("cardinal_ingest_pool_bytes", "", value=3 << 20)
        for name, value in self.numbers.items():
            yield GaugeMetricFamily(f"cardinal_ingest_cluster_{name}", "", value=value)
        for name, (label, value) in self.labels.items():
            family = GaugeMetricFamily(f"cardinal_ingest_cluster_{name}", "", labels=[label])
            family.add_metric([value], 1)
            yield family


def served(member: Member, waits_for: str = "") -> Endpoint:
    """The endpoint of a member's metrics, to be entered."""
    registry = CollectorRegistry()
    registry.register(member)  # type: ignore[arg-type] # a collector by its methods
    return Endpoint("127.0.0.1:0", registry, lambda: waits_for)


def test_the_next_epoch_continues_with_the_state_of_the_one_before(running: tuple[TestCluster, Path]) -> None:
    cluster, old = running
    cluster.promote(old, 3, 17, "b")
    new = cluster.file("abd", epoch=1)
    begun = reconfigure(cluster, old, new)
    assert (begun.head, begun.start, begun.already) == ((20, named("20a"), 20), 21, False)
    record, state = cluster.opened(new)
    assert record.previous == load_cluster(old).membership(cluster.app).cluster
    before = [cluster_before(find_url(cluster.url), cluster.app, load_cluster(one)) for one in (old, new)]
    assert before == [NO_HASH, record.previous]
    assert (record.epoch, record.start, [name for name, _ in record.members]) == (1, 21, ["a", "b", "d"])
    assert (state.num, state.highest, len(state.ring)) == (3, 20, cluster.app.reorg_threshold + 1)
    values, after = cluster.claims(new, state, [chain(21, 22)], "d")
    cluster.append(values, epoch=1)
    assert (after.num, after.head.number) == (4, 22)
    assert isinstance(decode_record(cluster.values()[-1]), Close)
    assert reconfigure(cluster, old, new).already
    assert (len(cluster.values()), len(cluster.values(1))) == (5, 2)
    with pytest.raises(ConfigurationError, match="with another cluster: its members are a, b, d, not a, b, e"):
        reconfigure(cluster, old, cluster.file("abe", epoch=1))


def test_an_epoch_does_not_end_by_wrong_files_nor_before_all_that_it_agreed_on_is_promoted(
    running: tuple[TestCluster, Path],
) -> None:
    cluster, old = running
    new, before = cluster.file("abd", epoch=1), cluster.values()
    with pytest.raises(ConfigurationError, match=r'set name = "main" and epoch = 1 in the new file'):
        reconfigure(cluster, old, cluster.file("abd", epoch=2))
    with pytest.raises(ConfigurationError, match="c is no member of epoch 1"):
        reconfigure(cluster, old, cluster.file("abd", epoch=1), by="c")
    with pytest.raises(ConfigurationError, match="is of another cluster: its members are a, b, c, not a, b, e"):
        reconfigure(cluster, cluster.file("abe"), cluster.file("abd", epoch=1))
    for marker, waiting in ((None, 3), ((1, 2), 2), ((3, 16), 1)):
        if marker is not None:
            cluster.promote(old, *marker, "b")
        with pytest.raises(ConfigurationError, match=f"^{waiting} agreed batches, up to 3, are not on the topics"):
            reconfigure(cluster, old, new)
    assert cluster.values() == before
    with pytest.raises(TopicError):
        cluster.values(1)


@pytest.mark.slow
def test_an_epoch_does_not_end_while_a_member_reports_blocks_that_are_not_agreed(
    running: tuple[TestCluster, Path],
) -> None:
    cluster, plain = running
    cluster.promote(plain, 3, 17, "b")
    member = Member({"unagreed_blocks": 2})
    with served(member) as endpoint:
        old = cluster.file(metrics={"b": endpoint.address, "c": "127.0.0.1:1"})
        with pytest.raises(ConfigurationError, match="b has 2 acknowledged blocks that are not agreed: stop the publi"):
            reconfigure(cluster, old, cluster.file("abd", epoch=1))
        member.numbers["unagreed_blocks"] = 0
        begun = reconfigure(cluster, old, cluster.file("abd", epoch=1))
    assert begun.warnings == ("not checked for acknowledged blocks that are not agreed: a, c",)


@pytest.mark.slow
def test_a_batch_that_is_agreed_before_the_close_is_in_the_next_epoch(running: tuple[TestCluster, Path]) -> None:
    """It comes when the log was read already: the Close names the state before it, and counts for nothing."""
    cluster, plain = running
    cluster.promote(plain, 3, 17, "b")
    values, state = cluster.claims(plain, cluster.state, [chain(21, 21)], "c")
    member = Member({"unagreed_blocks": 0}, scraped=lambda: cluster.append(values))
    new = cluster.file("abd", epoch=1)
    with served(member) as endpoint:
        old = cluster.file(metrics={"b": endpoint.address})
        with pytest.raises(ConfigurationError, match="a batch was agreed meanwhile: stop the publishers, and repeat"):
            reconfigure(cluster, old, new)
        member.scraped = lambda: None
        with pytest.raises(ConfigurationError, match=r"^1 agreed batches, up to 4, are not on the topics"):
            reconfigure(cluster, old, new)
        cluster.promote(plain, 4, 1, "b")
        assert reconfigure(cluster, old, new).head == state.head
    assert cluster.opened(new)[1].num == 4


@pytest.mark.slow
def test_a_reconfiguration_that_was_interrupted_is_continued(running: tuple[TestCluster, Path]) -> None:
    """Between the Close and the next Epoch: here the next log cannot be created."""
    cluster, old = running
    cluster.promote(old, 3, 17, "b")
    new, log = cluster.file("abd", epoch=1), claims_topic(cluster.app.default_topic, 1)
    broker = AdminClient({"bootstrap.servers": cluster.url.removeprefix("kafka://")})
    broker.create_topics([NewTopic(log, 2, 1)])[log].result(DEADLINE)
    with pytest.raises(TopicSettingError, match="partitions=2"):
        reconfigure(cluster, old, new)
    closed = cluster.values()
    assert isinstance(decode_record(closed[-1]), Close)
    delete_topics(find_url(cluster.url), [log])
    assert not reconfigure(cluster, old, new, by="b").already
    assert cluster.values() == closed
    assert cluster.opened(new)[0].id == "b"


# --- status ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(cluster: TestCluster) -> TestCluster:
    init(cluster, cluster.file(), 1)
    return cluster


def status(begun: TestCluster, file: Path) -> ClusterStatus:
    return cluster_status(find_url(begun.url), begun.app, load_cluster(file))


NUMBERS = {
    "agreed_batch": 3,
    "agreed_block": 20,
    "promoted_batch": 2,
    "acknowledged_block": 22,
    "unagreed_blocks": 2,
    "peers_connected": 1,
    "peers_suspected": 1,
    "promoter": 1,
}


def test_one_screen_lists_the_leader_and_what_waits_for_what(begun: TestCluster) -> None:
    plain = begun.file()
    values, _ = begun.claims(plain, begun.opened(plain)[1], ["1a 2a", "3a", "4a 5a 6a"], "aba")
    begun.append([*values[:2], values[0], b"\xff", values[2]])
    begun.promote(plain, 3, 1, "b")
    pending = 'the body of block 5 ("5a") is on no disk'
    with ExitStack() as opened:
        first = Member(NUMBERS, {"leader": ("member", "b"), "pending": ("reason", pending)})
        second = Member({"agreed_batch": 1, "agreed_block": 2}, {"leader": ("member", "b")})
        metrics = {
            "a": opened.enter_context(served(first)).address,
            "b": opened.enter_context(served(second, "the claim log is read")).address,
            "c": "127.0.0.1:1",
        }
        file = begun.file(metrics=metrics)
        found = status(begun, file)
        options = ["cluster", "status", "--cluster", str(file), "--to", begun.url, "--app", "blob"]
        options += ["--topic", begun.app.default_topic]
    assert (found.agreed, found.head, found.highest) == (3, (6, named("6a"), 6), 6)
    assert (found.promoted, found.unpromoted, found.promoter) == (2, 1, "a")
    assert (found.leader, found.claims) == ("b", {"a": 2, "b": 1, "c": 0})
    assert (found.begin, found.end, found.closed) == (0, 6, False)
    assert found.refused == {"BadNumber": 1, "Malformed": 1}
    one, two, three = found.nodes
    assert (one.acknowledged_block, one.unagreed_blocks, one.connected, one.suspected) == (22, 2, 1, 1)
    assert (one.waits_for, one.pending, one.pool_bytes, found.behind(one)) == ("", (pending,), 3 << 20, 0)
    assert (two.waits_for, found.behind(two), two.unagreed_blocks) == ("the claim log is read", 2, None)
    assert three.error.startswith("it does not answer: ")
    assert found.behind(three) is None
    refused = CliRunner().invoke(cardinal, options)
    assert "is of another cluster: its application, chain or topics are others" in str(refused.exception)


def test_the_commands_begin_and_show_a_cluster(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    url, topic = f"kafka://{cardinal_broker.bootstrap}", f"c-{tmp_path.name}"
    cluster = TestCluster(url, tmp_path)

    def run(*args: str) -> str:
        done = CliRunner().invoke(cardinal, ["cluster", *args, "--to", url, "--app", "blob", "--topic", topic])
        assert done.exit_code == 0, f"{done.output} {done.exception!r}"
        return done.stdout

    with ExitStack() as opened:
        member = Member(NUMBERS, {"leader": ("member", "b"), "pending": ("reason", "no majority")})
        files = [
            cluster.file(
                "abcd", metrics={"a": opened.enter_context(served(member, "links")).address, "c": "127.0.0.1:1"}
            )
        ]
        files += [cluster.file("ab", epoch=1)]
        signing = ("--node-id", "a", "--key", str(tmp_path / "a.key"))
        begun = run("init", "--cluster", str(files[0]), *signing, "--start", "5")
        assert begun == f"epoch 0 of main has begun, and continues with block 5: {topic}-claims-0\n"
        member.numbers = {**NUMBERS, "unagreed_blocks": 0}
        screen = run("status", "--cluster", str(files[0]))
        found: dict[str, Any] = json.loads(run("status", "--cluster", str(files[0]), "--json"))
        assert run("reconfigure", "--from", str(files[0]), "--cluster", str(files[1]), *signing) == (
            f"epoch 1 of main has begun, and continues with block 5: {topic}-claims-1\n"
        )
    for said in ("leader     b", "agreed     batch 0: nothing", "1/3 up, 1 suspected", "a: links", "a: no majority"):
        assert said in screen
    assert "no answer" in screen
    assert "c: it does not answer" in screen
    assert max(map(len, screen.splitlines())) <= 140
    assert (found["leader"], found["agreed"]["head"], found["promoted"]["waiting"]) == ("b", None, 0)
    assert [one["member"] for one in found["members"]] == ["a", "b", "c", "d"]
    assert (found["members"][0]["waits_for"], found["members"][0]["ready"]) == ("links", False)
    assert found["members"][0]["links"] == {"connected": 1, "suspected": 1}
    assert found["members"][0]["pending"] == ["no majority"]
    assert "4 members tolerate no more failures than 3" in found["warnings"][0]


def test_a_cluster_begins_again_when_the_streams_topics_are_deleted(begun: TestCluster) -> None:
    with pytest.raises(ConfigurationError, match="has records, so a cluster has begun"):
        init(begun, begun.file(), 1)
    names = topics_of(find_url(begun.url), begun.app)
    assert {claims_topic(begun.app.default_topic, 0), promoted_topic(begun.app.default_topic)} <= set(names)
    delete_topics(find_url(begun.url), names)
    assert not topics_of(find_url(begun.url), begun.app)
    assert not init(begun, begun.file(), 1).already


@pytest.mark.parametrize("refused", [2_197, 2_300], ids=["from its checkpoint", "from its beginning"])
def test_a_long_log_is_read(begun: TestCluster, refused: int) -> None:
    """Records that count for nothing stand between: the newest 2,200 begin above the checkpoint, or below it."""
    file = begun.file()
    values, state = begun.claims(file, begun.opened(file)[1], ["1a 2a", "3a"], "aa")
    after, _ = begun.claims(file, state, ["4a"], "c")
    begun.append([*values, begun.checkpoint(file, state, "b"), *[b"\xff"] * refused, *after])
    begun.promote(file, 2, 1, "b")
    found = status(begun, file)
    assert (found.agreed, found.highest, found.promoted, found.unpromoted) == (3, 4, 2, 1)
    assert found.end == 5 + refused
    assert found.refused == {"Malformed": refused}
    assert found.claims == {"a": 0 if refused < 2_200 else 2, "b": 0, "c": 1}
    assert found.leader == "a"


def test_a_cluster_that_has_not_begun_has_no_status(cluster: TestCluster) -> None:
    with pytest.raises(TopicError, match=r"the claim log .* does not exist: restore it, or begin a cluster"):
        status(cluster, cluster.file())


def test_the_difference_to_the_logs_cluster_is_named(begun: TestCluster) -> None:
    with pytest.raises(ConfigurationError, match="is of another cluster: its members are a, b, c, not a, b"):
        status(begun, begun.file("ab"))
    changed = begun.file()
    changed.write_text(changed.read_text().replace(begun.key("b").public.hex(), "77" * 32))
    with pytest.raises(ConfigurationError, match="the key of b is another one"):
        status(begun, changed)
    changed.write_text(changed.read_text().replace('"main"', '"other"'))
    with pytest.raises(ConfigurationError, match="its name is main, not other"):
        status(begun, changed)
