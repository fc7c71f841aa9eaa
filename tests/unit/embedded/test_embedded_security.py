"""Security settings of a broker for Kafka and for clients, without secrets in their texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError
from cardinal_devkit.kafka import Security
from cardinal_devkit.kafka.properties import Membership, properties
from cardinal_devkit.kafka.state import BrokerState

PEM = Path("/pem/broker.pem")
CA = Path("/pem/ca.pem")
USERS = {"alice": 's3cr3t "quoted\\', "bob": "other-s3cr3t"}
SETTINGS = BrokerState("id", 1, 2, 3)


def lines(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(
    ("security", "protocol"),
    [
        (Security(), "PLAINTEXT"),
        (Security(PEM, CA), "SSL"),
        (Security(PEM, CA, mechanisms=("PLAIN",), users=USERS), "SASL_SSL"),
        (Security(mechanisms=("SCRAM-SHA-512",), users=USERS), "SASL_PLAINTEXT"),
    ],
)
def test_only_the_clients_listener_is_secured(security: Security, protocol: str) -> None:
    written = lines(properties(SETTINGS, {}, security=security))
    expected = f"CLIENT:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
    assert written["listener.security.protocol.map"] == expected
    assert written["inter.broker.listener.name"] == "INTERNAL"
    assert security.client_config().get("security.protocol", "PLAINTEXT") == protocol


def test_passwords_of_scram_are_in_no_file_and_those_of_plain_are_escaped() -> None:
    scram = properties(SETTINGS, {}, security=Security(mechanisms=("SCRAM-SHA-256", "SCRAM-SHA-512"), users=USERS))
    assert not [password for password in USERS.values() if password in scram]
    plain = lines(properties(SETTINGS, {}, security=Security(mechanisms=("PLAIN",), users=USERS)))
    module = plain["listener.name.client.plain.sasl.jaas.config"]
    # once for the login module's own syntax, once more for Java's properties
    assert 'user_alice="s3cr3t \\\\"quoted\\\\\\\\"' in module
    assert module.endswith('user_bob="other-s3cr3t";')


def test_a_user_logs_in_as_the_first_one_or_as_whom_it_names() -> None:
    security = Security(PEM, CA, mechanisms=("SCRAM-SHA-512", "PLAIN"), users=USERS)
    assert security.client_config() == {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(CA),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": USERS["alice"],
    }
    assert security.client_config("bob")["sasl.password"] == USERS["bob"]
    assert not [password for password in USERS.values() if password in repr(security)]


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        ({"certificate": PEM}, "certificate"),
        ({"authority": CA}, "certificate"),
        ({"client_certificates": True}, "client_certificates"),
        ({"mechanisms": ("GSSAPI",), "users": USERS}, "mechanisms"),
        ({"mechanisms": ("PLAIN",)}, "users"),
        ({"users": USERS}, "users"),
        ({"certificate": PEM, "authority": CA, "acls": True}, "acls"),
    ],
)
def test_what_does_not_fit_is_named(wrong: dict[str, object], setting: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Security(**wrong)  # type: ignore[arg-type] # wrong on purpose
    assert caught.value.setting == setting


def test_nodes_of_a_cluster_know_each_other_and_lose_one() -> None:
    written = lines(properties(SETTINGS, {}, membership=Membership(2, (11, 12, 13))))
    assert written["node.id"] == "2"
    assert written["controller.quorum.voters"] == "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
    assert (written["default.replication.factor"], written["min.insync.replicas"]) == ("3", "2")
    alone = lines(properties(SETTINGS, {}))
    assert alone["controller.quorum.voters"] == "1@127.0.0.1:2"
    assert (alone["default.replication.factor"], alone["min.insync.replicas"]) == ("1", "1")


def test_clients_may_be_sent_to_another_address() -> None:
    written = lines(properties(SETTINGS, {}, advertised="127.0.0.1:9"))
    assert written["advertised.listeners"] == "CLIENT://127.0.0.1:9,INTERNAL://127.0.0.1:3"
    assert written["listeners"].startswith("CLIENT://127.0.0.1:1,")
