"""Brokers that require certificates, logins and permissions, each behind a proxy that counts connections."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # their stub re-exports without __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from cardinal_devkit.kafka import EmbeddedKafka, Security, free_port
from cardinal_devkit.testing.proxy import TcpProxy
from certificates import Authority
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from certificates import Leaf

DEADLINE = 60.0
ADMIN = "alice"
GUEST = "bob"
PASSWORDS = {ADMIN: 'al1ce-s3cr3t "quoted\\', GUEST: "b0b-s3cr3t"}
WRONG = "wr0ng-s3cr3t"
SECRETS = (*PASSWORDS.values(), WRONG)
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@dataclass(frozen=True)
class Certificates:
    """The certificates of all brokers and clients."""

    ca: Path
    foreign_ca: Path
    broker: Leaf
    client: Leaf
    foreigner: Leaf


@dataclass(frozen=True)
class SecuredBroker:
    """A broker, the proxy in front of it, and its URLs."""

    broker: EmbeddedKafka
    proxy: TcpProxy
    certificates: Certificates

    def url(self, user: str | None = None, password: str | None = None, **options: str) -> str:
        """As ``user`` with this password, where None with the right one; ``None`` for no login.

        Whatever waits for the connect timeout misses the deadline: a refusal is an answer.
        """
        login = ""
        if user is not None:
            login = f"{quote(user)}:{quote(PASSWORDS[user] if password is None else password, safe='')}@"
            options.setdefault("sasl__mechanism", MECHANISMS[0])
        if self.broker.security.certificate is not None:
            options = {"tls": "1", "ssl__ca__location": str(self.certificates.ca), **options}
        options = {"cardinal__connect__timeout__ms": f"{2 * DEADLINE:.0f}000", **options}
        named = "&".join(f"{name.replace('__', '.')}={value}" for name, value in options.items() if value)
        return f"kafka://{login}{self.broker.bootstrap}?{named}"

    def permit(self, user: str, *grants: tuple[ResourceType, str, AclOperation]) -> None:
        admin = AdminClient(self.broker.admin_config())
        bindings = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for kind, name, operation in grants
        ]
        for done in admin.create_acls(bindings).values():
            done.result(DEADLINE)
        self._until(lambda found: set(bindings) <= found)

    def revoke(self, user: str, *grants: tuple[ResourceType, str, AclOperation]) -> None:
        admin = AdminClient(self.broker.admin_config())
        filters = [
            AclBindingFilter(
                kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
            )
            for kind, name, operation in grants
        ]
        gone = {binding for done in admin.delete_acls(filters).values() for binding in done.result(DEADLINE)}
        assert len(gone) == len(grants)
        self._until(gone.isdisjoint)

    def _until(self, holds: Callable[[set[AclBinding]], bool]) -> None:
        """The controller has what was changed; it counts when the broker that clients ask has it, too."""
        admin = AdminClient(self.broker.admin_config())
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        until(lambda: holds(set(admin.describe_acls(everything).result(DEADLINE))))


EVERYTHING = (
    (ResourceType.TOPIC, "*", AclOperation.ALL),
    (ResourceType.GROUP, "*", AclOperation.ALL),
    (ResourceType.BROKER, "kafka-cluster", AclOperation.ALL),
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="session")
def certificates(folder: Path) -> Certificates:
    ca, foreign = Authority(folder, "ca"), Authority(folder, "foreign")
    return Certificates(
        ca.certificate,
        foreign.certificate,
        ca.sign("broker", hosts=["127.0.0.1"]),
        ca.sign(ADMIN),
        foreign.sign("mallory"),
    )


@pytest.fixture(scope="session")
def secured_broker(folder: Path, certificates: Certificates) -> Iterator[Callable[[str], SecuredBroker]]:
    """Brokers by the kind of their listener, started on first use."""
    kinds = {
        "tls": Security(certificates.broker.store, certificates.ca),
        "mtls": Security(certificates.broker.store, certificates.ca, client_certificates=True, acls=True),
        "login": Security(
            certificates.broker.store, certificates.ca, mechanisms=MECHANISMS, users=PASSWORDS, acls=True
        ),
    }
    running: dict[str, SecuredBroker] = {}
    with ExitStack() as stack:

        def get(kind: str) -> SecuredBroker:
            if kind not in running:
                port = free_port()
                proxy = stack.enter_context(TcpProxy(f"127.0.0.1:{port}"))
                broker = EmbeddedKafka(
                    folder / kind, port=port, advertised=proxy.address, security=kinds[kind], heap_mb=256
                )
                running[kind] = SecuredBroker(stack.enter_context(broker), proxy, certificates)
                if broker.security.acls:
                    running[kind].permit(ADMIN, *EVERYTHING)
            return running[kind]

        yield get
