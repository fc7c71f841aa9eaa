"""A look of our own at a server that librdkafka does not get on with.

Librdkafka says the same of a certificate for another host and of one by an unknown CA, and nothing but a lost
connection where one side speaks TLS and the other does not, or where a login is wanted and none was given. One
handshake by the standard library, and one question of Kafka's protocol, tell these apart.

Rules:

1. It is done once for a client, after librdkafka has failed, within ``_SECONDS``, and nothing secret is sent: no
   login is tried.
2. What it finds is the reason of a failure, in words; what it does not understand it leaves to librdkafka.
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

# Requests of Kafka's protocol: size, which one, version, correlation id, no client id; a body.
_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_METADATA: Final = struct.pack(">ihhihib", 15, 3, 4, 2, -1, 0, 0)
_SIZE: Final = struct.Struct(">i")
_LARGEST: Final = 1 << 20

_CERTIFICATE: Final = "it wants a certificate of ours: set ssl.certificate.location and ssl.key.location"
_OTHER_CERTIFICATE: Final = "it does not take our certificate: have one made by an authority that it trusts"
# A listener with a login says which versions it speaks, and hangs up on every other question before the login.
_LOGIN: Final = "it wants a login: give user, password and sasl.mechanism"


def reason(properties: Mapping[str, str]) -> str | None:
    """Why this client cannot talk to its first broker, and what to do; None where that is not to be seen.

    Arguments:
        properties: librdkafka's, of a client that failed.

    """
    host, _, port = properties["bootstrap.servers"].split(",")[0].strip().rpartition(":")
    address = (host.strip("[]") or port, int(port) if host and port.isdecimal() else _PORT)
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    try:
        if protocol.endswith("SSL"):
            return _tls(address, properties, login="SASL" in protocol)
        if _speaks_tls(address):
            return "it speaks TLS only: add ?tls=1"
        if "SASL" not in protocol:
            with socket.create_connection(address, _SECONDS) as plain:
                return _LOGIN if _ask(plain, _VERSIONS) and not _ask(plain, _METADATA) else None
    except (OSError, ValueError):
        pass  # nobody is there, or something else than we know is wrong
    return None


def _tls(address: tuple[str, int], properties: Mapping[str, str], *, login: bool) -> str | None:
    context = _context(properties)
    try:
        with _handshake(address, context) as connection:
            try:
                answered = _ask(connection, _VERSIONS)
            except ssl.SSLError:  # what a server thinks of our certificate, or of none, comes after the handshake
                return _OTHER_CERTIFICATE if "ssl.certificate.location" in properties else _CERTIFICATE
            return _LOGIN if answered and not login and not _ask(connection, _METADATA) else None
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _WRONG_HOST:
            return f"its certificate is not one for {address[0]}: use the name that it is for, or have it made anew"
        return f"its certificate is not by an authority that we trust ({error.verify_message}): set ssl.ca.location"
    except (ssl.SSLError, ConnectionError):
        with socket.create_connection(address, _SECONDS) as plain:
            return "it does not speak TLS: leave tls=1 out" if _ask(plain, _VERSIONS) else None


def _speaks_tls(address: tuple[str, int]) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _handshake(address, context).close()
    except (ssl.SSLError, ConnectionError):
        return False
    return True


def _context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """What librdkafka checks, for the standard library."""
    place = Path(properties.get("ssl.ca.location", ""))
    file, folder = str(place) if place.is_file() else None, str(place) if place.name and place.is_dir() else None
    context = ssl.create_default_context(cafile=file, capath=folder, cadata=properties.get("ssl.ca.pem"))
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() in ("false", "0"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := properties.get("ssl.certificate.location"):
        with suppress(OSError):  # a key with a password, say: librdkafka has asked for it, we do not
            context.load_cert_chain(certificate, properties.get("ssl.key.location"), password="")
    return context


def _handshake(address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(address, _SECONDS)
    try:
        return context.wrap_socket(plain, server_hostname=address[0])
    except BaseException:
        plain.close()
        raise


def _ask(connection: socket.socket, question: bytes) -> bool:
    """Whether an answer of Kafka's protocol comes; False where the other side hangs up. TimeoutError: neither."""
    try:
        connection.sendall(question)
        if len(size := _exactly(connection, _SIZE.size)) < _SIZE.size:
            return False
        expected: int = _SIZE.unpack(size)[0]
        return 0 < expected <= _LARGEST and len(_exactly(connection, expected)) == expected
    except ConnectionError:
        return False


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data
