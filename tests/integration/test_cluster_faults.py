"""Faults and kills of a cluster's members, links, disks and broker: acknowledged blocks are on the topics once."""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster_stage import MEMBERS, Cluster, Pushing, pause, pushed, report, until
from killing import PUBLISHERS, killed

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.broker


def test_three_members_put_what_they_acknowledge_on_the_topics(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path) as (_, pushing, _):
        assert pushing.last >= 19


@pytest.mark.slow
def test_leader_and_promoter_are_killed_at_once(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path) as (cluster, pushing, _):
        promoter = cluster.promoter()
        leader = cluster.leader_besides(promoter)
        cluster.kill(leader, promoter)
        cluster.start(leader, promoter)
        pushing.more(20)


@pytest.mark.slow
def test_pauses_after_the_death_of_leader_and_promoter(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path) as (cluster, pushing, watch):
        pushing.more(40)  # roles have settled
        promoter = cluster.promoter()
        leader = cluster.leader_besides(promoter, pushing.node)
        cluster.kill(leader)
        killed = time.monotonic()
        until(lambda: time.monotonic() > killed + 8, "", cluster)
        report(f"leader {leader} killed: {pause(watch.claims, killed):.2f} s without a claim, goal 2.2 s")
        cluster.start(leader)
        cluster.wait_for(leader)
        promoter = cluster.promoter()
        cluster.kill(promoter)
        killed = time.monotonic()
        until(lambda: time.monotonic() > killed + 12, "", cluster)
        silent = pause(watch.markers, killed)  # 2 s longer where it was the next leader, too
        report(f"promoter {promoter} killed: {silent:.2f} s without a marker, goal 5 s")
        cluster.start(promoter)
        pushing.more(20)


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["one way", "both ways"])
def test_links_between_two_members_are_cut(ways: str, cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path, proxied=True) as (cluster, pushing, watch):
        cluster.cut("a", "b", back=ways == "both ways")
        if ways == "both ways":
            cluster.cut("b", "a")
        cut = time.monotonic()
        took = until(lambda: cluster.number("a", "peers_connected") == 1, "the cut is not noticed", cluster)
        pushing.more(100)
        report(f"cut {ways}: noticed after {took:.1f} s; {pause(watch.claims, cut):.1f} s without a claim")
        cluster.heal()
        took = until(lambda: cluster.number("a", "peers_connected") == 2, "the link does not come back", cluster)
        report(f"connected {took:.1f} s after healing")
        pushing.more(20)


@pytest.mark.slow
def test_a_member_is_cut_off_from_both_others(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path, proxied=True) as (cluster, pushing, _):
        alone = pushing.where()
        cluster.isolate(alone)
        left = until(lambda: pushing.node not in {"", alone}, "publishers stay at a member without a majority", cluster)
        pushing.more(20)
        refuses = "publishers are sent to other nodes: 1 of 3"
        later = until(lambda: refuses in cluster.log(alone), "a member without a majority accepts publishers", cluster)
        report(f"cut off: the publisher left after {left:.1f} s, the member refused {later:.1f} s later")
        cluster.heal()
        took = until(
            lambda: cluster.log(alone).count("publishers are served\n") >= 2, "it serves no publishers", cluster
        )
        report(f"publishers are served {took:.1f} s after healing")
        there = Pushing(cluster.publishers_of(alone), cluster)
        there.more(pushing.last)
        assert there.node == alone


@pytest.mark.slow
def test_the_data_folder_of_a_member_is_wiped(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path) as (cluster, pushing, _):
        pushing.more(10)
        cluster.kill("a")
        shutil.rmtree(cluster.data("a"))
        pushing.more(10)
        cluster.start("a")
        cluster.wait_for("a")
        cluster.kill("b")  # a majority needs the one that was wiped
        pushing.more(20)
        cluster.start("b")


@pytest.mark.slow
def test_a_member_is_restored_from_an_older_copy(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path) as (cluster, pushing, _):
        pushing.more(10)
        cluster.kill("a")
        shutil.copytree(cluster.data("a"), tmp_path / "copy")
        cluster.start("a")
        cluster.wait_for("a")
        pushing.more(200)  # more than the window
        cluster.kill("a")
        shutil.rmtree(cluster.data("a"))
        shutil.copytree(tmp_path / "copy", cluster.data("a"))
        cluster.start("a")
        cluster.wait_for("a")
        cluster.kill("b")  # a majority needs the one that was restored
        pushing.more(20)
        cluster.start("b")


@pytest.mark.slow
def test_two_processes_have_one_key(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path, to="bc") as (cluster, pushing, _):
        twin = cluster.start_twin("a")
        replaced = 'links_ended_total{reason="Replaced"}'
        until(lambda: cluster.number("b", replaced) >= 3, "the twin is not visible", cluster)
        pushing.more(40)
        cluster.kill(twin)
        before = cluster.number("b", replaced)
        cluster.wait_for("a")
        pushing.more(40)
        assert cluster.number("b", replaced) <= before + 1
        cluster.kill("b")
        pushing.more(20)
        cluster.start("b")


@pytest.mark.slow
def test_the_broker_is_unreachable(cardinal_killable_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_killable_broker, tmp_path) as (cluster, pushing, watch):
        until(lambda: bool(watch.claims and watch.markers), "nothing is agreed and promoted", cluster)
        cardinal_killable_broker.kill()
        gone = time.monotonic()
        while time.monotonic() < gone + 15:
            pushing.more(5, "acknowledgements wait for the broker")
        cardinal_killable_broker.start()
        back = time.monotonic()
        until(lambda: watch.markers[-1] > back, "promotion does not resume", cluster)
        report(
            f"after {back - gone:.0f} s without a broker: a claim {watch.claims[-1] - back:.1f} s, "
            f"a marker {watch.markers[-1] - back:.1f} s after it is back"
        )
        pushing.more(20)


@pytest.mark.slow
def test_all_members_are_killed_at_once(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path) as (cluster, pushing, _):
        pushing.more(10)
        cluster.kill(*MEMBERS)
        cluster.start(*MEMBERS)
        pushing.more(30)


@pytest.mark.slow
def test_a_member_whose_disk_fails_ends(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path) as (cluster, pushing, _):
        failing = pushing.where()
        member = cluster.process(failing)
        resource.prlimit(member.pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        took = until(lambda: member.poll() is not None, "a member that cannot commit runs on", cluster)
        report(f"ended {took:.1f} s after its disk failed")
        pushing.more(20)
        cluster.start(failing)
        cluster.wait_for(failing)
        other = next(name for name in MEMBERS if name != failing)
        cluster.kill(other)  # a majority needs the one whose disk failed
        pushing.more(20)
        cluster.start(other)


@pytest.mark.slow
def test_members_are_stopped_in_turn(cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    with pushed(cardinal_broker, tmp_path) as (cluster, pushing, _):
        for member in MEMBERS:
            process = cluster.process(member)
            process.terminate()
            took = until(lambda process=process: process.poll() is not None, "a member does not stop", cluster)
            report(f"{member} stopped in {took:.1f} s with exit status {process.returncode}")
            pushing.more(20)
            cluster.start(member)
            cluster.wait_for(member)


# --- kills at random moments ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("app", ["blob", "items"])
def test_members_and_publishers_are_killed(app: str, cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    killed(app, cardinal_broker, tmp_path, [*MEMBERS, PUBLISHERS[0]], 1, Cluster)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_members_publishers_and_broker_are_killed_at_30_points(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    killed("blob", cardinal_killable_broker, tmp_path, [*MEMBERS, *PUBLISHERS, "broker"] * 5, 2, Cluster)


@pytest.mark.soak
@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("seed", range(10, 20))
def test_members_publishers_and_broker_are_killed_at_1080_points(
    seed: int, cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    killed("blob", cardinal_killable_broker, tmp_path, [*MEMBERS, *MEMBERS, *PUBLISHERS, "broker"] * 12, seed, Cluster)
