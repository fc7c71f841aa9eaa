"""Handshake probe: the reason why librdkafka cannot connect to a broker.

librdkafka does not distinguish a certificate for another host from one by an unknown CA, and reports only a lost
connection where TLS or a login is missing on one side. The probe runs once per client, after librdkafka has failed, and
sends no login.
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS: Final = 2.0
_PORT: Final = 9092
_WRONG_HOST: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""

# Requests of Kafka's protocol: size, API key, version, correlation id, no client id; a body.
_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_METADATA: Final = struct.pack(">ihhihib", 15, 3, 4, 2, -1, 0, 0)
_ID: Final = slice(8, 12)
_CERTIFICATE: Final = "it requires a client certificate: set ssl.certificate.location and ssl.key.location"


class _OtherProtocol(ValueError):  # noqa: N818 - an answer, not an error
    """The other side does not speak Kafka's protocol."""


def reason(properties: Mapping[str, str]) -> str | None:
    """The reason why a client with these librdkafka properties cannot connect to its first broker; None if unknown."""
    host, _, port = properties["bootstrap.servers"].split(",")[0].strip().rpartition(":")
    address = (host.strip("[]") or port, int(port) if host and port.isdecimal() else _PORT)
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    uses_tls, login = protocol.endswith("SSL"), "SASL" in protocol
    with suppress(OSError, ValueError):  # no answer, or another fault
        try:
            with socket.create_connection(address, _SECONDS) as plain:
                context = _context(properties, checks=uses_tls)
                with context.wrap_socket(plain, server_hostname=address[0]) as connection:
                    return _of_kafka(connection, login=login) if uses_tls else "it speaks TLS only: add ?tls=1"
        except (ssl.SSLError, ConnectionError) as error:
            if why := _of_tls(error, address[0], properties):
                return why
        with socket.create_connection(address, _SECONDS) as plain:
            if not uses_tls:
                return _of_kafka(plain, login=login)
            return "it does not speak TLS: leave tls=1 out" if _answers(plain, _VERSIONS) else None
    return None


def _of_tls(error: OSError, host: str, properties: Mapping[str, str]) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_HOST:
            return f"its certificate is not for {host}: use the name that it is for, or issue another one"
        return f"its certificate is by a CA that is not trusted ({error.verify_message}): set ssl.ca.location"
    if "ALERT" not in (getattr(error, "reason", None) or ""):
        return None
    # A server refuses a certificate, or its absence, after the handshake.
    sent = "ssl.certificate.location" in properties
    return "it refuses our certificate: use one by a CA that it trusts" if sent else _CERTIFICATE


def _context(properties: Mapping[str, str], *, checks: bool) -> ssl.SSLContext:
    """A TLS context with the checks of librdkafka, or none."""
    ca = Path(properties.get("ssl.ca.location", ""))
    file, folder = str(ca) if ca.is_file() else None, str(ca) if ca.name and ca.is_dir() else None
    context = ssl.create_default_context(cafile=file, capath=folder, cadata=properties.get("ssl.ca.pem"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python sets it from 3.13 on, librdkafka does not
    if not checks or properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if not checks or properties.get("enable.ssl.certificate.verification", "true").lower() in ("false", "0"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := properties.get("ssl.certificate.location"):
        with suppress(OSError):  # a key with a password, say
            context.load_cert_chain(certificate, properties.get("ssl.key.location"), password="")
    return context


def _of_kafka(connection: socket.socket, *, login: bool) -> str | None:
    """The reason of a listener that answers ApiVersions and closes the connection on any other request: no login."""
    try:
        refuses = _answers(connection, _VERSIONS) and not login and not _answers(connection, _METADATA)
    except _OtherProtocol:
        return "it is no Kafka broker: check host and port"
    return "it requires a login: set user, password and sasl.mechanism" if refuses else None


def _answers(connection: socket.socket, request: bytes) -> bool:
    """True for an answer, False if the other side closes the connection. TimeoutError: neither.

    Raises _OtherProtocol where the answer does not begin with a size and the id of the request.
    """
    try:
        connection.sendall(request)
        answer = connection.recv(1 << 20)
        if answer and answer[4:8] != request[_ID]:
            raise _OtherProtocol
        return len(answer) > 0
    except ssl.SSLError:
        raise
    except ConnectionError:
        return False
