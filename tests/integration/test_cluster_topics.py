"""Topics of an ingest cluster: created with the settings on which agreement rests, and refused with others."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cardinal.config.url import parse_url
from cardinal.embedded import EmbeddedCluster
from cardinal.errors import ConfigurationError, TopicError, TopicSettingError
from cardinal.server.ingest.cluster.claims import ClaimWriter
from cardinal.server.ingest.cluster.topics import ClusterTopics, claims_topic, promoted_topic
from cardinal.transports.kafka.admin import Cluster, TopicAdmin
from cardinal.transports.kafka.settings import kafka_settings

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.embedded import EmbeddedKafka
    from cardinal.transports.kafka.admin import TopicState

pytestmark = pytest.mark.broker

DEADLINE = 60.0
CLAIMS = {"retention.ms": "-1", "cleanup.policy": "delete"}
PROMOTED = {"cleanup.policy": "compact"}


def fresh() -> str:
    """The default topic of a stream that no other test has."""
    return f"{uuid.uuid4().hex[:12]}-block"


def state_of(url: str, topic: str) -> TopicState | None:
    settings = kafka_settings(parse_url(url))
    return TopicAdmin(settings, Cluster(settings)).state(topic)


def create(broker: EmbeddedKafka, topic: str, config: dict[str, str], partitions: int = 1) -> None:
    admin = AdminClient({**broker.client_config(), "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(DEADLINE)


def test_the_names_are_those_of_the_default_topic() -> None:
    assert claims_topic("eth-block", 3) == "eth-block-claims-3"
    assert promoted_topic("eth-block") == "eth-block-promoted"


def test_topics_are_created_once_and_a_single_broker_is_a_warning(
    cardinal_broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    stem, url = fresh(), f"kafka://{cardinal_broker.bootstrap}"
    topics = ClusterTopics(url, stem)
    with caplog.at_level(logging.WARNING, "cardinal.ingest"):
        claims = topics.create_claims(0)
        promoted = topics.ensure_promoted()
    assert [text.count("created with 1 of 3 replicas") for text in caplog.messages] == [1, 1]
    found, marked = state_of(url, claims), state_of(url, promoted.name)
    assert found is not None
    assert marked is not None
    assert (found.partitions, found.replicas, marked.partitions) == (1, 1, 1)
    expected = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "1"}
    assert expected.items() <= found.config.items()
    assert marked.config["cleanup.policy"] == "compact"
    assert {one.config["unclean.leader.election.enable"] for one in (found, marked)} == {"false"}
    caplog.clear()
    assert topics.create_claims(0) == topics.check_claims(0) == claims
    assert topics.ensure_promoted() == promoted
    assert not caplog.messages


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy"),
        ({"retention.ms": "604800000"}, "retention.ms"),
        ({"retention.bytes": "1073741824"}, "retention.bytes"),
        ({"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable"),
    ],
)
def test_claims_that_could_be_lost_are_refused_by_name(
    cardinal_broker: EmbeddedKafka, config: dict[str, str], setting: str
) -> None:
    stem = fresh()
    topic = claims_topic(stem, 0)
    create(cardinal_broker, topic, {**CLAIMS, **config})
    topics = ClusterTopics(f"kafka://{cardinal_broker.bootstrap}", stem)
    for check in (topics.create_claims, topics.check_claims):
        with pytest.raises(TopicSettingError) as caught:
            check(0)
        error = caught.value
        found = config[setting]
        assert (error.topic, error.setting, error.found) == (topic, setting, found)
        assert f"the topic {topic} has {setting}={found}, and an ingest cluster needs {error.needed}" in str(error)


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"cleanup.policy": "delete"}, "cleanup.policy"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy"),
        ({"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable"),
    ],
)
def test_markers_that_could_be_lost_are_refused_by_name(
    cardinal_broker: EmbeddedKafka, config: dict[str, str], setting: str
) -> None:
    stem = fresh()
    create(cardinal_broker, promoted_topic(stem), {**PROMOTED, **config})
    with pytest.raises(TopicSettingError) as caught:
        ClusterTopics(f"kafka://{cardinal_broker.bootstrap}", stem).ensure_promoted()
    assert (caught.value.topic, caught.value.setting) == (promoted_topic(stem), setting)


def test_a_second_partition_and_missing_replicas_are_refused_by_name(cardinal_broker: EmbeddedKafka) -> None:
    stem, url = fresh(), f"kafka://{cardinal_broker.bootstrap}"
    create(cardinal_broker, claims_topic(stem, 0), CLAIMS, partitions=2)
    create(cardinal_broker, claims_topic(stem, 1), CLAIMS)
    with pytest.raises(TopicSettingError, match="has partitions=2, and an ingest cluster needs 1: "):
        ClusterTopics(url, stem).check_claims(0)
    assert ClusterTopics(url, stem).check_claims(1) == claims_topic(stem, 1)
    with pytest.raises(TopicSettingError, match=r"has replication\.factor=1, and an ingest cluster needs 3 at least"):
        ClusterTopics(f"{url}?replication=3", stem).check_claims(1)


def test_a_missing_claim_log_is_not_created_where_one_is_expected(cardinal_broker: EmbeddedKafka) -> None:
    stem, url = fresh(), f"kafka://{cardinal_broker.bootstrap}"
    with pytest.raises(TopicError, match="cluster init") as caught:
        ClusterTopics(url, stem).check_claims(7)
    assert caught.value.topic == claims_topic(stem, 7)
    assert state_of(url, claims_topic(stem, 7)) is None


def test_another_transport_cannot_agree() -> None:
    with pytest.raises(ConfigurationError, match="memory:// is another transport"):
        ClusterTopics("memory://here", "eth-block")


@pytest.mark.slow
def test_three_brokers_hold_three_replicas_and_the_loss_of_one_is_borne(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stem = fresh()
    with EmbeddedCluster(tmp_path) as brokers:
        url = f"kafka://{brokers.bootstrap}"
        topics = ClusterTopics(url, stem)
        with caplog.at_level(logging.WARNING, "cardinal.ingest"):
            states = [state_of(url, topics.create_claims(0)), state_of(url, topics.ensure_promoted().name)]
        assert not caplog.messages
        assert [(one.replicas, one.config["min.insync.replicas"]) for one in states if one] == [(3, "2")] * 2
        create(brokers.node(1), claims_topic(stem, 1), CLAIMS)
        with pytest.raises(TopicSettingError, match=r"replication\.factor=1"):
            topics.check_claims(1)
        writer = ClaimWriter(url, claims_topic(stem, 0))
        assert writer.append(b"eth", b"0").result(DEADLINE) == 0
        brokers.node(3).kill()
        assert writer.append(b"eth", b"1").result(DEADLINE) in (1, None)
        writer.close()
