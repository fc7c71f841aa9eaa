"""Producer and Consumer on brokers that want certificates, logins and permissions; what they say where they lack one.

One broker for each kind of listener, each behind a proxy that counts who connects.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cardinal.apps import Application
from cardinal.consumer import Consumer
from cardinal.embedded import EmbeddedKafka, Security, free_port
from cardinal.errors import RefusedError
from cardinal.producer import Producer
from cardinal.protocols.streams.payload import Payload
from cardinal.testing.proxy import TcpProxy
from cardinal.transports import list_topics
from certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from certificates import Leaf

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DEADLINE = 60.0
SOON = 5.0
"""Seconds in which a refusal is told."""

ADMIN = "alice"
GUEST = "bob"
PASSWORDS = {ADMIN: 'al1ce-s3cret "quoted\\', GUEST: "b0b-s3cret"}
WRONG = "wr0ng-s3cret"
SECRETS = (*PASSWORDS.values(), WRONG)
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@dataclass(frozen=True)
class Papers:
    """The certificates of all brokers and clients."""

    ca: Path
    foreign_ca: Path
    broker: Leaf
    client: Leaf
    foreigner: Leaf


@dataclass(frozen=True)
class Guarded:
    """A broker, the proxy that its clients come by, and URLs that lead to it."""

    broker: EmbeddedKafka
    proxy: TcpProxy
    papers: Papers

    def url(self, user: str | None = None, password: str | None = None, **options: str) -> str:
        """As ``user`` with this password, where None with the right one; ``None`` for no login."""
        login = ""
        if user is not None:
            login = f"{quote(user)}:{quote(PASSWORDS[user] if password is None else password, safe='')}@"
            options.setdefault("sasl__mechanism", MECHANISMS[0])
        if self.broker.security.certificate is not None:
            options = {"tls": "1", "ssl__ca__location": str(self.papers.ca), **options}
        named = "&".join(f"{name.replace('__', '.')}={value}" for name, value in options.items() if value)
        return f"kafka://{login}{self.broker.bootstrap}?{named}"

    def permit(self, user: str, *grants: tuple[ResourceType, str, AclOperation]) -> None:
        admin = AdminClient(self.broker.admin_config())
        bindings = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for kind, name, operation in grants
        ]
        for done in admin.create_acls(bindings).values():
            done.result(30)


EVERYTHING = (
    (ResourceType.TOPIC, "*", AclOperation.ALL),
    (ResourceType.GROUP, "*", AclOperation.ALL),
    (ResourceType.BROKER, "kafka-cluster", AclOperation.ALL),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def papers(folder: Path) -> Papers:
    ca, foreign = Authority(folder, "ca"), Authority(folder, "foreign")
    return Papers(
        ca.certificate,
        foreign.certificate,
        ca.sign("broker", hosts=["127.0.0.1"]),
        ca.sign(ADMIN),
        foreign.sign("mallory"),
    )


@pytest.fixture(scope="module")
def guarded(folder: Path, papers: Papers) -> Iterator[Callable[[str], Guarded]]:
    """Brokers by the kind of their listener, started when they are first asked for."""
    kinds = {
        "tls": Security(papers.broker.store, papers.ca),
        "mtls": Security(papers.broker.store, papers.ca, client_certificates=True, acls=True),
        "login": Security(papers.broker.store, papers.ca, mechanisms=MECHANISMS, users=PASSWORDS, acls=True),
    }
    running: dict[str, Guarded] = {}
    with ExitStack() as stack:

        def get(kind: str) -> Guarded:
            if kind not in running:
                port = free_port()
                proxy = stack.enter_context(TcpProxy(f"127.0.0.1:{port}"))
                broker = EmbeddedKafka(
                    folder / kind, port=port, advertised=proxy.address, security=kinds[kind], heap_mb=256
                )
                running[kind] = Guarded(stack.enter_context(broker), proxy, papers)
                if broker.security.acls:
                    running[kind].permit(ADMIN, *EVERYTHING)
            return running[kind]

        yield get


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


def _refused(at: Guarded, url: str, app: Application) -> str:
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
        assert took < SOON, f"told after {took:.1f} s"
        # librdkafka's own attempts, at most one in 50 ms and growing apart, and one look of ours
        assert at.proxy.stats.accepted - knocks <= 8
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


def test_tls_with_a_private_authority(guarded: Callable[[str], Guarded], app: Application) -> None:
    _round_trip(guarded("tls").url(), app)


def test_tls_with_a_client_s_certificate(guarded: Callable[[str], Guarded], app: Application) -> None:
    at = guarded("mtls")
    client = at.papers.client
    url = at.url(ssl__certificate__location=str(client.certificate), ssl__key__location=str(client.key))
    _round_trip(url, app)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_over_tls(guarded: Callable[[str], Guarded], app: Application, mechanism: str) -> None:
    _round_trip(guarded("login").url(ADMIN, sasl__mechanism=mechanism), app)


def test_a_password_from_before_a_restart_still_counts(guarded: Callable[[str], Guarded], app: Application) -> None:
    at = guarded("login")
    at.broker.kill()
    at.broker.start()
    _round_trip(at.url(ADMIN), app)


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", [ADMIN, "nobody"])
def test_a_wrong_password_or_user(
    guarded: Callable[[str], Guarded], app: Application, mechanism: str, user: str
) -> None:
    at = guarded("login")
    said = _refused(at, at.url(user, WRONG, sasl__mechanism=mechanism), app)
    assert "refused the login" in said
    assert "check user, password and mechanism" in said


def test_no_login_where_one_is_wanted(guarded: Callable[[str], Guarded], app: Application) -> None:
    at = guarded("login")
    said = _refused(at, at.url(), app)
    assert "wants a login: give user, password and sasl.mechanism" in said


def test_an_unknown_authority(guarded: Callable[[str], Guarded], app: Application) -> None:
    at = guarded("tls")
    for ca in (str(at.papers.foreign_ca), ""):
        said = _refused(at, at.url(ssl__ca__location=ca), app)
        assert "not by an authority that we trust" in said
        assert "set ssl.ca.location" in said


def test_a_certificate_for_another_host(guarded: Callable[[str], Guarded], app: Application) -> None:
    at = guarded("tls")
    said = _refused(at, at.url().replace("127.0.0.1", "localhost"), app)
    assert "its certificate is not one for localhost" in said


def test_no_certificate_where_one_is_wanted_and_one_that_is_not_taken(
    guarded: Callable[[str], Guarded], app: Application
) -> None:
    at = guarded("mtls")
    said = _refused(at, at.url(), app)
    assert "wants a certificate of ours: set ssl.certificate.location" in said
    stranger = at.papers.foreigner
    url = at.url(ssl__certificate__location=str(stranger.certificate), ssl__key__location=str(stranger.key))
    said = _refused(at, url, app)
    assert "does not take our certificate" in said


def test_plain_text_to_a_tls_port_and_tls_to_a_plain_text_port(
    guarded: Callable[[str], Guarded], cardinal_broker: EmbeddedKafka, app: Application
) -> None:
    at = guarded("tls")
    said = _refused(at, at.url(tls="", ssl__ca__location=""), app)
    assert "speaks TLS only: add ?tls=1" in said
    at = guarded("login")
    said = _refused(at, at.url(ADMIN, tls="", ssl__ca__location=""), app)
    assert "speaks TLS only: add ?tls=1" in said
    with TcpProxy(cardinal_broker.bootstrap) as proxy:
        said = _refused(Guarded(cardinal_broker, proxy, at.papers), f"kafka://{proxy.address}?tls=1", app)
    assert "does not speak TLS: leave tls=1 out" in said


# --- what is not permitted -----------------------------------------------------------------------------------


def _sentence(attempt: Callable[[], object]) -> str:
    begun = time.monotonic()
    with pytest.raises(RefusedError, match="grant the ACL") as caught:
        attempt()
    assert time.monotonic() - begun < SOON
    return str(caught.value)


def _read(url: str, app: Application) -> list[int]:
    with Consumer(url, app, topics_timeout=0, idle_timeout=DEADLINE) as consumer:
        return [block.number for block in next(iter(consumer)).added]


def test_each_missing_permission_is_named(guarded: Callable[[str], Guarded], app: Application) -> None:
    at = guarded("login")
    url = at.url(GUEST)
    said = _sentence(lambda: Producer(url, app, producer_id="two"))
    assert f"while creating the topic {app.default_topic}" in said
    _round_trip(at.url(ADMIN), app)
    said = _sentence(lambda: _read(url, app))
    assert f"while looking for the topic {app.default_topic}" in said
    topics = app.all_topics
    at.permit(GUEST, *((ResourceType.TOPIC, topic, AclOperation.DESCRIBE) for topic in topics))
    said = _sentence(lambda: _read(url, app))
    assert "while reading" in said
    at.permit(GUEST, (ResourceType.GROUP, "cardinal", AclOperation.READ))
    said = _sentence(lambda: _read(url, app))
    assert [topic for topic in topics if f"while reading {topic}" in said]
    at.permit(GUEST, *((ResourceType.TOPIC, topic, AclOperation.READ) for topic in topics))
    assert _read(url, app)[0] == 0

    def write() -> None:
        with Producer(url, app, producer_id="two") as producer:
            producer.add(_payload(5)).result(DEADLINE)

    assert "while taking messages" in _sentence(write)
    at.permit(GUEST, *((ResourceType.TOPIC, topic, AclOperation.WRITE) for topic in topics))
    write()


# --- what is never told --------------------------------------------------------------------------------------


TALK = """
import json, logging, sys, traceback
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal.testing.generator import ChainGenerator
from cardinal.transports import open_source, parse_url

logging.basicConfig(level=logging.DEBUG)
app = ChainGenerator(1).application
for url in json.load(sys.stdin):
    print(parse_url(url), repr(parse_url(url)))
    for attempt in (Producer, open_source, Consumer):
        try:
            opened = attempt(url, app, producer_id="one") if attempt is Producer else attempt(url, app)
            print(opened, vars(opened))
            opened.close()
        except Exception as error:
            traceback.print_exc()
            print(repr(error), vars(error), repr(error.__cause__), repr(error.__context__))
"""


def test_nothing_that_was_written_holds_a_password(guarded: Callable[[str], Guarded], folder: Path) -> None:
    """Logs of the brokers and of a talkative client, errors with all that hangs on them, what our values print."""
    urls: list[str] = []
    at = guarded("login")
    told = repr((at, at.broker.security, vars(at.broker)))
    for mechanism in MECHANISMS:
        options = {"sasl__mechanism": mechanism, "log": "1", "debug": "security,broker,conf"}
        urls += [at.url(ADMIN, password, **options) for password in (None, WRONG)]
    done = subprocess.run(
        [sys.executable, "-c", TALK],
        input=json.dumps(urls),
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    assert done.stdout.count("RefusedError") >= 9
    assert "SASL" in done.stderr, "librdkafka was talkative"
    written = {"values": told, "stdout": done.stdout, "stderr": done.stderr}
    for path in folder.rglob("*"):
        # the one file that has to hold PLAIN's users is its owner's alone
        if path.is_file() and path.name == "server.properties":
            assert path.stat().st_mode & 0o077 == 0
        elif path.is_file() and path.suffix in (".log", ".json", ".1", ".pid", ".list"):
            written[str(path)] = path.read_text(errors="replace")
    assert sum(name.endswith("server.log") for name in written) >= 1
    found = [(name, secret) for name, text in written.items() for secret in SECRETS if secret in text]
    assert found == []
