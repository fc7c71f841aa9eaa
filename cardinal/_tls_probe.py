"""Probe of a server whose connection ended before an answer: it speaks TLS where we did not, or the reverse.

Clients report either as a lost connection, which is waited for. No wait heals it, so that the user is asked to correct
the URL. Nothing but a greeting is sent: no credentials, and no certificate is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final

HTTP: Final = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
GRPC: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""The preface of HTTP/2 and empty settings."""

_SECONDS: Final = 2.0
_ALERT: Final = b"\x15\x03"
"""Begins a TLS server's answer to anything but TLS."""


async def speaks_other(host: str, port: int, *, tls: bool, greeting: bytes = HTTP) -> bool:
    """True if a server surely speaks TLS where ``tls`` is false, or answers without TLS where it is true.

    Arguments:
        host: name or address of the server.
        port: its port.
        tls: the URL requires TLS.
        greeting: what a server without TLS answers.

    """
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        async with asyncio.timeout(_SECONDS):
            return await (_answers(host, port, greeting) if tls else _shakes_hands(host, port))
    return False


async def _answers(host: str, port: int, greeting: bytes) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(greeting)
        answer = await reader.read(len(_ALERT))
    finally:
        await _close(writer)
    return len(answer) == len(_ALERT) and answer != _ALERT


async def _shakes_hands(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it requires a certificate of ours, or another version
    await _close(writer)
    return True


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
