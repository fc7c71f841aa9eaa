"""Producer and Consumer on brokers that want certificates, logins and permissions; what they say if they lack one."""

from __future__ import annotations

import gc
import threading
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AclOperation,
    AdminClient,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from cardinal.apps import Application
from cardinal.consumer import Consumer
from cardinal.errors import RefusedError
from cardinal.producer import Producer
from cardinal.protocols.streams.payload import Payload
from cardinal.transports import list_topics
from cardinal_devkit.testing.proxy import TcpProxy
from secured_brokers import ADMIN, EVERYTHING, GUEST, MECHANISMS, SECRETS, WRONG, SecuredBroker
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cardinal_devkit.kafka import EmbeddedKafka
    from certificates import Leaf

pytestmark = pytest.mark.broker

DEADLINE = 60.0
KNOCKS = 8
"""How often a client connects until then: librdkafka ever farther apart, beginning with 50 ms, and one look of ours."""


@pytest.fixture
def app() -> Application:
    stem = uuid.uuid4().hex[:12]
    return Application(
        name="blocks",
        chain="blocks:1",
        default_topic=f"{stem}-block",
        topics={"a/": f"{stem}-a"},
        prefixes=("a/",),
        reorg_threshold=16,
    )


def _payload(number: int) -> Payload:
    def named(height: int) -> bytes:
        return (height + 1).to_bytes(32, "big")

    return Payload(number, named(number), named(number - 1), number, {"a/1": b"one", "a/2": b"two"})


def _round_trip(url: str, app: Application) -> None:
    """Five blocks published and read."""
    with Producer(url, app, producer_id="one") as producer:
        for future in [producer.add(_payload(number)) for number in range(5)]:
            future.result(DEADLINE)
    numbers: list[int] = []
    with Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        for update in consumer:
            numbers += [block.number for block in update.added]
            if numbers[-1] == 4:
                break
    assert numbers == list(range(5))


def _refused(at: SecuredBroker, url: str, app: Application) -> str:
    """Everything that opens a connection is refused soon, in one sentence, without hammering at the door."""
    said = []
    for attempt in (
        lambda: Producer(url, app, producer_id="one"),
        lambda: Consumer(url, app, topics_timeout=0),
        lambda: list_topics(url),
    ):
        knocks, begun = at.proxy.stats.accepted, time.monotonic()
        with pytest.raises(RefusedError) as caught:
            attempt()
        took = time.monotonic() - begun
        assert took < DEADLINE, f"reported after {took:.1f} s"
        assert at.proxy.stats.accepted - knocks <= KNOCKS
        sentence = str(caught.value)
        assert "\n" not in sentence
        assert at.proxy.address.split(":")[1] in sentence, "which broker"
        assert not [secret for secret in SECRETS if secret in repr(caught.value)]
        said.append(sentence)
        del caught
        gc.collect()  # a client that is refused goes with its owner
    assert len(set(said)) == 1, "whoever asks gets the same answer"
    return said[0]


# --- what works ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tls", "mtls"])
def test_tls_with_a_private_authority_and_a_client_s_certificate(
    secured_broker: Callable[[str], SecuredBroker], app: Application, kind: str
) -> None:
    at = secured_broker(kind)
    _round_trip(at.url(**(_certificate(at.certificates.client) if kind == "mtls" else {})), app)


def _certificate(leaf: Leaf) -> dict[str, str]:
    return {"ssl__certificate__location": str(leaf.certificate), "ssl__key__location": str(leaf.key)}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_over_tls(secured_broker: Callable[[str], SecuredBroker], app: Application, mechanism: str) -> None:
    _round_trip(secured_broker("login").url(ADMIN, sasl__mechanism=mechanism), app)


@pytest.mark.slow
def test_a_password_from_before_a_restart_still_counts(
    secured_broker: Callable[[str], SecuredBroker], app: Application
) -> None:
    at = secured_broker("login")
    at.broker.kill()
    at.broker.start()
    _round_trip(at.url(ADMIN), app)


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [ADMIN, "nobody"])
def test_a_wrong_password_or_user(
    secured_broker: Callable[[str], SecuredBroker], app: Application, mechanism: str, user: str
) -> None:
    at = secured_broker("login")
    said = _refused(at, at.url(user, WRONG, sasl__mechanism=mechanism), app)
    assert "refused the login" in said
    assert "check user, password and mechanism" in said


@pytest.mark.parametrize(
    ("kind", "url", "says"),
    [
        ("login", lambda at: at.url(), "requires a login: set user, password and sasl.mechanism"),
        ("login", lambda at: at.url(ADMIN).replace("127.0.0.1", "localhost"), "certificate is not for localhost"),
        pytest.param(
            "tls",
            lambda at: at.url(ssl__ca__location=str(at.certificates.foreign_ca)),
            "by a CA that is not trusted",
            marks=pytest.mark.slow,
        ),
        pytest.param("tls", lambda at: at.url(ssl__ca__location=""), "set ssl.ca.location", marks=pytest.mark.slow),
        pytest.param(
            "mtls",
            lambda at: at.url(),
            "requires a client certificate: set ssl.certificate.location",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "mtls",
            lambda at: at.url(**_certificate(at.certificates.foreigner)),
            "refuses our certificate",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "tls",
            lambda at: at.url(tls="", ssl__ca__location=""),
            "speaks TLS only: add ?tls=1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "login",
            lambda at: at.url(ADMIN, tls="", ssl__ca__location=""),
            "speaks TLS only: add ?tls=1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_a_broker_does_not_accept_is_named_with_its_remedy(
    secured_broker: Callable[[str], SecuredBroker],
    app: Application,
    kind: str,
    url: Callable[[SecuredBroker], str],
    says: str,
) -> None:
    at = secured_broker(kind)
    assert says in _refused(at, url(at), app)


@pytest.mark.slow
def test_tls_to_a_plain_text_port(
    secured_broker: Callable[[str], SecuredBroker], cardinal_broker: EmbeddedKafka, app: Application
) -> None:
    certificates = secured_broker("tls").certificates
    with TcpProxy(cardinal_broker.bootstrap) as proxy:
        url = f"kafka://{proxy.address}?tls=1&cardinal.connect.timeout.ms=120000"
        said = _refused(SecuredBroker(cardinal_broker, proxy, certificates), url, app)
    assert "does not speak TLS: leave tls=1 out" in said


# --- what is not permitted -----------------------------------------------------------------------------------


def _sentence(at: SecuredBroker, attempt: Callable[[], object]) -> str:
    """What is said of a missing permission: soon, in one sentence, without hammering at the door."""
    knocks, begun = at.proxy.stats.accepted, time.monotonic()
    with pytest.raises(RefusedError, match="grant the ACL") as caught:
        attempt()
    assert time.monotonic() - begun < DEADLINE
    assert at.proxy.stats.accepted - knocks <= KNOCKS
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def _read(url: str, app: Application) -> list[int]:
    with Consumer(url, app, topics_timeout=0, idle_timeout=DEADLINE) as consumer:
        return [block.number for block in next(iter(consumer)).added]


def test_each_missing_permission_is_named(secured_broker: Callable[[str], SecuredBroker], app: Application) -> None:
    at = secured_broker("login")
    url = at.url(GUEST)
    said = _sentence(at, lambda: Producer(url, app, producer_id="two"))
    assert f"while creating the topic {app.default_topic}" in said
    _round_trip(at.url(ADMIN), app)
    said = _sentence(at, lambda: _read(url, app))
    assert f"while looking for the topic {app.default_topic}" in said
    topics = app.all_topics
    at.permit(GUEST, *((ResourceType.TOPIC, topic, AclOperation.DESCRIBE) for topic in topics))
    said = _sentence(at, lambda: _read(url, app))
    assert "while reading" in said
    at.permit(GUEST, (ResourceType.GROUP, "cardinal", AclOperation.READ))
    said = _sentence(at, lambda: _read(url, app))
    assert [topic for topic in topics if f"while reading {topic}" in said]
    at.permit(GUEST, *((ResourceType.TOPIC, topic, AclOperation.READ) for topic in topics))
    assert _read(url, app)[0] == 0

    def write() -> None:
        with Producer(url, app, producer_id="two") as producer:
            producer.add(_payload(5)).result(DEADLINE)

    assert "while taking messages" in _sentence(at, write)
    at.permit(GUEST, *((ResourceType.TOPIC, topic, AclOperation.WRITE) for topic in topics))
    write()


def test_a_producer_that_could_not_be_opened_leaves_nothing_behind(
    secured_broker: Callable[[str], SecuredBroker], app: Application
) -> None:
    """Topics that were made beforehand and are empty, and no permission to write: the first message is refused."""
    at = secured_broker("login")
    with Producer(at.url(ADMIN), app, producer_id="one"):
        pass
    empty = app.model_copy(update={"topics": {**app.topics, "b/": f"{app.default_topic}-b"}})
    admin = AdminClient(at.broker.admin_config())
    for made in admin.create_topics([NewTopic(f"{app.default_topic}-b", 1, 1)]).values():
        made.result(DEADLINE)
    at.permit(GUEST, *((ResourceType.TOPIC, topic, AclOperation.DESCRIBE) for topic in empty.all_topics))
    before = set(threading.enumerate())
    said = _sentence(at, lambda: Producer(at.url(GUEST), empty, producer_id="two"))
    assert "while taking messages" in said
    until(lambda: not set(threading.enumerate()) - before)


@pytest.mark.slow
def test_a_permission_lost_while_reading_is_reported_by_every_poll_until_restored(
    secured_broker: Callable[[str], SecuredBroker], app: Application
) -> None:
    """The request is retried about once a second; what was published meanwhile comes when it is permitted."""
    at = secured_broker("login")
    reading = [(ResourceType.TOPIC, topic, AclOperation.READ) for topic in app.all_topics]
    knowing = [(ResourceType.TOPIC, topic, AclOperation.DESCRIBE) for topic in app.all_topics]
    at.permit(GUEST, *reading, *knowing, (ResourceType.GROUP, "cardinal", AclOperation.READ))
    with (
        Producer(at.url(ADMIN), app, producer_id="one") as producer,
        Consumer(at.url(GUEST), app, idle_timeout=DEADLINE) as consumer,
    ):
        producer.add(_payload(0)).result(DEADLINE)
        assert [block.number for block in next(iter(consumer)).added] == [0]
        at.revoke(GUEST, *reading)
        knocks, begun = at.proxy.stats.accepted, time.monotonic()
        while time.monotonic() - begun < 3.0:
            with pytest.raises(RefusedError, match=r"does not permit this while reading .*; grant the ACL"):
                next(iter(consumer))
        assert at.proxy.stats.accepted - knocks <= KNOCKS
        producer.add(_payload(1)).result(DEADLINE)
        at.permit(GUEST, *reading)
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                assert [block.number for block in next(iter(consumer)).added] == [1]
            except RefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                break


# --- a password that is changed while producers and consumers run --------------------------------------------


def _set_password(at: SecuredBroker, user: str, password: str) -> None:
    """Change a user's password, as an administrator does, and wait until the broker accepts it."""
    admin = AdminClient(at.broker.admin_config())
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    wanted = UserScramCredentialUpsertion(user, info, password.encode())
    for done in admin.alter_user_scram_credentials([wanted]).values():
        done.result(DEADLINE)
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            list_topics(at.url(sasl__username=user, sasl__password=password, sasl__mechanism="SCRAM-SHA-256"))
        except RefusedError:  # the controller has it; the broker has not yet
            assert time.monotonic() < deadline
        else:
            return


@pytest.mark.slow
def test_a_changed_password_is_a_refusal_until_a_restart_reads_its_file(
    secured_broker: Callable[[str], SecuredBroker], app: Application, tmp_path: Path
) -> None:
    """A client keeps the password that it was opened with: a refusal is one sentence, and a restart is the remedy."""
    at, file = secured_broker("login"), tmp_path / "password"
    at.permit("carol", *EVERYTHING)
    file.write_text("first-s3cr3t\n")
    _set_password(at, "carol", "first-s3cr3t")
    url = at.url(sasl__username="carol", sasl__mechanism="SCRAM-SHA-256", password_file=str(file))
    with Producer(url, app, producer_id="one") as producer, Consumer(url, app, idle_timeout=DEADLINE) as consumer:
        updates = iter(consumer)
        producer.add(_payload(0)).result(DEADLINE)
        cursor = next(updates).cursor
        _set_password(at, "carol", "second-s3cr3t")
        at.proxy.reset()
        late = producer.add(_payload(1))
        for refused in (partial(late.result, DEADLINE), partial(next, updates)):
            with pytest.raises(RefusedError, match=r"refused the login.*check user, password and mechanism"):
                refused()
        assert "s3cr3t" not in repr(vars(producer)) + repr(vars(consumer))
    file.write_text("second-s3cr3t")
    with Producer(url, app, producer_id="one") as producer:
        producer.add(_payload(1)).result(DEADLINE)
    with Consumer(url, app, start=cursor, idle_timeout=DEADLINE) as consumer:
        assert [block.number for block in next(iter(consumer)).added] == [1]
