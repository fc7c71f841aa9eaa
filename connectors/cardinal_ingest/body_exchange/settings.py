"""Settings of the links between ingest nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError
from cardinal_ingest.protocols.diffusion import DiffusionSettings

if TYPE_CHECKING:
    import ssl

RETAIN_BLOCKS: Final = 1_000
"""Blocks on the topics whose bodies are retained for peers: 300 MB of mainnet's, and 3 h 20 min of its time."""
READ_BYTES: Final = 1 << 18
"""Bytes of a link that are read, or written, at once; twice as many wait in a connection's buffer."""
PAUSE_SECONDS: Final = 0.01
"""Time between two reads of a link that carries no bodies: a peer that never stops talking costs a few percent."""
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Links of a node; times are seconds.

    Attributes:
        peers: ``(host, port)`` of the nodes from which bodies are fetched.
        listen: ``(host, port)`` at which bodies are served; None: they are not.
        retain: blocks below the newest one on the topics whose bodies are retained for peers.
        server_tls, client_tls: contexts of the two sides; None: not encrypted.
        clients: peers that are served at once. Each holds one body in memory.
        unlinked_blocks, unlinked_bytes: blocks from one peer that wait for an ancestor; one block may exceed the bytes.
        connect_seconds: for a connection and TLS, and for the first message of a client.
        reply_seconds: in which a client reads a reply, and again for each further 2,500,000 bytes (O19).
        backoff, backoff_most: first and longest wait before a peer is dialed again.
        diffusion: windows and limits of the protocol.

    """

    peers: tuple[tuple[str, int], ...] = ()
    listen: tuple[str, int] | None = None
    retain: int = RETAIN_BLOCKS
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None
    clients: int = 16
    unlinked_blocks: int = 128
    unlinked_bytes: int = 64 << 20
    connect_seconds: float = 10.0
    reply_seconds: float = 10.0
    backoff: float = 0.5
    backoff_most: float = 10.0
    diffusion: DiffusionSettings = field(default_factory=DiffusionSettings)


def address_of(text: str, setting: str) -> tuple[str, int]:
    """The host and port of ``HOST:PORT``.

    Raises:
        ConfigurationError: it is none.

    """
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or int(port) > _PORT_MAX:
        raise ConfigurationError(f"--{setting} takes HOST:PORT, not {text!r}", setting=setting)
    return host.strip("[]"), int(port)


def addresses_of(text: str, setting: str) -> tuple[tuple[str, int], ...]:
    """The hosts and ports of a list with commas, each once.

    Raises:
        ConfigurationError: one is no address.

    """
    return tuple(dict.fromkeys(address_of(one, setting) for one in text.split(",")))
