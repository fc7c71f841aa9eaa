"""`cardinal cluster status` on a real broker: what the topics say, and what members report."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from clusters import TestCluster
from kafka_streams import named

from cardinal.cli.main import cardinal
from cardinal.config.settings import find_url
from cardinal.errors import ConfigurationError, TopicError
from cardinal.metrics import CollectorRegistry, Endpoint, GaugeMetricFamily
from cardinal.server.ingest.cluster.admin import Signer, begin_cluster
from cardinal.server.ingest.cluster.config import load_cluster
from cardinal.server.ingest.cluster.status import ClusterStatus, cluster_status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> TestCluster:
    cluster = TestCluster(f"kafka://{cardinal_broker.bootstrap}", tmp_path)
    file = load_cluster(cluster.file())
    begin_cluster(find_url(cluster.url), cluster.app, file, Signer("a", cluster.key("a")), 1)
    return cluster


def status(cluster: TestCluster, file: Path) -> ClusterStatus:
    return cluster_status(find_url(cluster.url), cluster.app, load_cluster(file))


@dataclass(eq=False)
class Member:
    """Metrics of a member, as an ingest node serves them."""

    numbers: dict[str, int] = field(default_factory=dict)
    labels: dict[str, tuple[str, str]] = field(default_factory=dict)

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("cardinal_ingest_ready", "", value=1)
        yield GaugeMetricFamily("cardinal_ingest_pool_bytes", "", value=3 << 20)
        for name, value in self.numbers.items():
            yield GaugeMetricFamily(f"cardinal_ingest_cluster_{name}", "", value=value)
        for name, (label, value) in self.labels.items():
            family = GaugeMetricFamily(f"cardinal_ingest_cluster_{name}", "", labels=[label])
            family.add_metric([value], 1)
            yield family


def serve(opened: ExitStack, member: Member, waits_for: str = "") -> str:
    registry = CollectorRegistry()
    registry.register(member)  # type: ignore[arg-type] # a collector by its methods
    return opened.enter_context(Endpoint("127.0.0.1:0", registry, lambda: waits_for)).address


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


def test_one_screen_says_who_leads_and_what_waits_for_what(cluster: TestCluster) -> None:
    plain = cluster.file()
    values, _ = cluster.claims(plain, cluster.opened(plain)[1], ["1a 2a", "3a", "4a 5a 6a"], "aba")
    cluster.append([*values[:2], values[0], b"\xff", values[2]])
    cluster.promote(plain, 3, 1, "b")
    pending = 'the body of block 5 ("5a") is on no disk'
    with ExitStack() as opened:
        first = Member(NUMBERS, {"leader": ("member", "b"), "pending": ("reason", pending)})
        second = Member({"agreed_batch": 1, "agreed_block": 2}, {"leader": ("member", "b")})
        metrics = {
            "a": serve(opened, first),
            "b": serve(opened, second, "the claim log is read"),
            "c": "127.0.0.1:1",
        }
        file = cluster.file(metrics=metrics)
        found = status(cluster, file)
        options = ["cluster", "status", "--cluster", str(file), "--to", cluster.url, "--app", "blob"]
        options += ["--topic", cluster.app.default_topic]
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
        files = [cluster.file("abcd", metrics={"a": serve(opened, member, "links"), "c": "127.0.0.1:1"})]
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


@pytest.mark.parametrize("refused", [2_197, 2_300], ids=["from its checkpoint", "from its beginning"])
def test_a_long_log_is_read(cluster: TestCluster, refused: int) -> None:
    """Records that count for nothing stand between: the newest 2,200 begin above the checkpoint, or below it."""
    file = cluster.file()
    values, state = cluster.claims(file, cluster.opened(file)[1], ["1a 2a", "3a"], "aa")
    after, _ = cluster.claims(file, state, ["4a"], "c")
    cluster.append([*values, cluster.checkpoint(file, state, "b"), *[b"\xff"] * refused, *after])
    cluster.promote(file, 2, 1, "b")
    found = status(cluster, file)
    assert (found.agreed, found.highest, found.promoted, found.unpromoted) == (3, 4, 2, 1)
    assert found.end == 5 + refused
    assert found.refused == {"Malformed": refused}
    assert found.claims == {"a": 0 if refused < 2_200 else 2, "b": 0, "c": 1}
    assert found.leader == "a"


def test_a_cluster_that_has_not_begun_has_no_status(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    cluster = TestCluster(f"kafka://{cardinal_broker.bootstrap}", tmp_path)
    with pytest.raises(TopicError, match=r"the claim log .* does not exist: restore it, or begin a cluster"):
        status(cluster, cluster.file())


def test_the_difference_to_the_logs_cluster_is_named(cluster: TestCluster) -> None:
    with pytest.raises(ConfigurationError, match="is of another cluster: its members are a, b, c, not a, b"):
        status(cluster, cluster.file("ab"))
    changed = cluster.file()
    changed.write_text(changed.read_text().replace(cluster.key("b").public.hex(), "77" * 32))
    with pytest.raises(ConfigurationError, match="the key of b is another one"):
        status(cluster, changed)
    changed.write_text(changed.read_text().replace('"main"', '"other"'))
    with pytest.raises(ConfigurationError, match="its name is main, not other"):
        status(cluster, changed)
