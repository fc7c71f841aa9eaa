"""A private certificate authority for tests: made at once, thrown away after."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_VALID = dt.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate of an authority: three PEM files.

    ``key`` and ``certificate`` are what a client is given; ``store`` holds both and the authority's, as Kafka reads it.
    """

    key: Path
    certificate: Path
    store: Path


class Authority:
    """A CA that signs.

    Arguments:
        folder: where its files go.
        name: its common name, and its files'.
        plain: without the identifiers of keys, as old tools and scripts make certificates.

    """

    def __init__(self, folder: Path, name: str, *, plain: bool = False) -> None:
        self._folder = folder
        self._plain = plain
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = _certificate(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_CA_USAGE, critical=True)
        builder = self._identified(builder, self._key.public_key())
        self._pem = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        self.certificate = self._write(f"{name}.pem", self._pem)

    def sign(self, name: str, *, hosts: Sequence[str] = ()) -> Leaf:
        """A certificate for ``name``, a server's for these addresses and host names, and a client's."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(_name(name), self._name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = self._identified(builder, key.public_key())
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Leaf(
            self._write(f"{name}.key", private),
            self._write(f"{name}.crt", certificate),
            self._write(f"{name}.store", private + certificate + self._pem),
        )

    def _identified(self, builder: x509.CertificateBuilder, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        """Add the identifiers of both keys, as RFC 5280 requires and Python 3.13 checks; not for a plain authority."""
        if self._plain:
            return builder
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        subject = x509.SubjectKeyIdentifier.from_public_key(key)
        return builder.add_extension(subject, critical=False).add_extension(issuer, critical=False)

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


_CA_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    return builder.not_valid_before(now - _VALID).not_valid_after(now + _VALID)
