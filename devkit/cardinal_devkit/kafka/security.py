"""Security of an embedded broker: certificates, passwords, permissions.

Rules:

1. Only the client listener is secured. Brokers and administrators use a plain-text listener on 127.0.0.1 without
   restrictions.
2. Passwords are never on a command line, in a log or in ``repr``. Kafka stores SCRAM users itself; those of PLAIN are
   in the broker's ``server.properties``, which only its owner can read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLAIN: Final = "PLAIN"
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Security:
    """Security of the client listener.

    Attributes:
        certificate: a PEM file with the broker's private key (PKCS#8, not encrypted), its certificate, and its CA's;
            enables TLS.
        authority: a PEM file with the certificate of the CA that issued the clients' and the broker's certificates.
        client_certificates: true if clients must send a certificate; its common name is their user.
        mechanisms: any of ``PLAIN``, ``SCRAM-SHA-256`` and ``SCRAM-SHA-512``; with one, clients must log in.
        users: password by user; not in ``repr``.
        acls: true if operations without an ACL are denied.

    Raises:
        ConfigurationError: the values contradict each other.

    """

    certificate: Path | None = None
    authority: Path | None = None
    client_certificates: bool = False
    mechanisms: tuple[str, ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    acls: bool = False

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.authority is None):
            raise ConfigurationError(
                "TLS needs both the broker's certificate and its authority's: set both", setting="certificate"
            )
        if self.client_certificates and self.certificate is None:
            raise ConfigurationError(
                "client certificates need TLS: set certificate and authority", setting="client_certificates"
            )
        if unknown := set(self.mechanisms) - {PLAIN, *SCRAM}:
            raise ConfigurationError(
                f"there is no mechanism {unknown.pop()}: choose from {', '.join((PLAIN, *SCRAM))}", setting="mechanisms"
            )
        if bool(self.users) != bool(self.mechanisms):
            raise ConfigurationError("users and mechanisms belong together: set both", setting="users")
        if self.acls and not (self.client_certificates or self.mechanisms):
            raise ConfigurationError(
                "ACLs need authenticated clients: set mechanisms or client_certificates", setting="acls"
            )

    @property
    def protocol(self) -> str:
        """Kafka's name for the listener's protocol."""
        return f"{'SASL_' if self.mechanisms else ''}{'SSL' if self.certificate else 'PLAINTEXT'}"

    def properties(self) -> dict[str, str]:
        """The broker's properties."""
        values: dict[str, str] = {}
        if self.certificate is not None:
            values |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.certificate.absolute()),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.absolute()) if self.authority else "",
                "ssl.client.auth": "required" if self.client_certificates else "none",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            }
        if self.mechanisms:
            values["sasl.enabled.mechanisms"] = ",".join(self.mechanisms)
        for mechanism in self.mechanisms:
            values[f"listener.name.client.{mechanism.lower()}.sasl.jaas.config"] = self._login_module(mechanism)
        if self.acls:
            values |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # Clients of a plain-text listener are ANONYMOUS; those of the client listener have names.
                "super.users": "User:ANONYMOUS",
            }
        return values

    def client_config(self, user: str | None = None) -> dict[str, str]:
        """Settings of a confluent-kafka client without the address; for ``user``, the first one if None.

        With client certificates the caller adds ``ssl.certificate.location`` and ``ssl.key.location``.
        """
        values = {"security.protocol": self.protocol}
        if self.authority is not None:
            values["ssl.ca.location"] = str(self.authority.absolute())
        if self.mechanisms:
            name = user or next(iter(self.users))
            values |= {
                "sasl.mechanism": self.mechanisms[0],
                "sasl.username": name,
                "sasl.password": self.users[name],
            }
        return values if values != {"security.protocol": "PLAINTEXT"} else {}

    def _login_module(self, mechanism: str) -> str:
        if mechanism != PLAIN:
            return "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        users = " ".join(f"user_{name}={_quoted(password)}" for name, password in self.users.items())
        return f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"


PLAIN_TEXT: Final = Security()
"""No security at all."""


def _quoted(text: str) -> str:
    """A value of a JAAS configuration."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
