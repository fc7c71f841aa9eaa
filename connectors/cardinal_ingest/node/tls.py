"""TLS of an ingest node: its certificate, and the authority of its publishers' and peers' certificates."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


class PeerContexts(NamedTuple):
    """TLS of the two sides of a link between nodes; None: not encrypted."""

    server: ssl.SSLContext | None
    client: ssl.SSLContext | None


def server_context(certificate: Path | None, key: Path | None, ca: Path | None) -> ssl.SSLContext | None:
    """Context of a server; None where there is no certificate.

    Arguments:
        certificate: chain of the server (PEM).
        key: its private key, without a password (PEM); None: it is in the certificate's file.
        ca: authorities of which publishers must have a certificate (PEM); None: they need none.

    Raises:
        ConfigurationError: a file cannot be used.

    """
    if certificate is None:
        for name, file in (("key-file", key), ("ca-file", ca)):
            if file is not None:
                raise ConfigurationError(f"--{name} is of no use without --cert-file: set both", setting=name)
        return None
    context = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, ca)
    if ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def peer_contexts(certificate: Path | None, key: Path | None, ca: Path | None) -> PeerContexts:
    """Contexts of the links between nodes, by the files of :func:`server_context`.

    Both sides present the certificate. A server demands one of the authorities, where there are any; a client trusts
    these, else the system's, and checks the name of the host that it dials.
    """
    if certificate is None:
        return PeerContexts(None, None)
    client = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, ca)
    if ca is None:
        client.load_default_certs()
    return PeerContexts(server_context(certificate, key, ca), client)


def _context(protocol: int, certificate: Path, key: Path | None, ca: Path | None) -> ssl.SSLContext:
    """A context with these files."""
    context = ssl.SSLContext(protocol)
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise _unusable(f"certificate {certificate} and its key", "cert-file", error) from None
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except OSError as error:
        raise _unusable(f"authorities {ca}", "ca-file", error) from None
    return context


def _unusable(files: str, setting: str, error: Exception) -> ConfigurationError:
    """The error of a file; OpenSSL's own words name places in its code."""
    pem = isinstance(error, ssl.SSLError | ValueError)
    reason = "they are not PEM, do not belong together, or have a password" if pem else getattr(error, "strerror", "")
    return ConfigurationError(f"{files} cannot be used: {reason}", setting=setting)
