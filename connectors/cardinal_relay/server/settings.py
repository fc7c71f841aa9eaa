"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT: Final = 8765


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of a server.

    Attributes:
        host, port: address to listen on; port 0 picks a free one.
        tokens: accepted tokens; none: no authentication.
        token_file: a file of accepted tokens, one a line, that replaces ``tokens``.
        certificate, key: PEM files for ``wss``; ``key`` may be in the certificate's file.
        compression: ``snappy`` or ``none``; records are compressed once for all clients.
        buffer_bytes: bytes of recent records in the ring.
        clients_max: maximum number of clients.
        catch_up_max: maximum number of catch-up reads.
        slow_timeout: seconds after which a client is closed that accepts nothing of a message.
        ping_interval: seconds between two pings; a client that is silent for three intervals is closed.

    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tokens: tuple[str, ...] = field(default=(), repr=False)
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    compression: str = "snappy"
    buffer_bytes: int = 64 << 20
    clients_max: int = 256
    catch_up_max: int = 4
    slow_timeout: float = 60.0
    ping_interval: float = 20.0
