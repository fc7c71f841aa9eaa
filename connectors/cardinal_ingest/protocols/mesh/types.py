"""Mesh, the protocol: frames, states of a link, reasons for which one ends.

Each pair of members has two links, one per direction: its *dialer* opens it and alone sends messages on it.

| state of the connection | who speaks | frame | then |
|---|---|---|---|
| open | dialer | Hello | the acceptor verifies the claimed identity |
| Hello received | acceptor | Welcome, or Refused | the dialer verifies the acceptor: the session exists |
| Welcome received | dialer | Begin | the acceptor verifies possession of the key, on this connection |
| begun | dialer | Message, Heartbeat | numbered from 1; any other number ends the link |
| begun | acceptor | Ack | everything up to this number is committed |

| link | state | next state |
|---|---|---|
| outgoing | DISCONNECTED | CONNECTING: `retry_at` is reached |
| outgoing | CONNECTING | CONNECTED: Welcome verified; DISCONNECTED: refused, time-out, bad input, connection lost |
| outgoing | CONNECTED | SUSPECTED: something unacknowledged and no Ack for `suspect_after` |
| outgoing | SUSPECTED | CONNECTED: Ack; DISCONNECTED: no Ack for `ack_timeout` |
| incoming | CONNECTING | CONNECTED: Begin verified; DISCONNECTED: refused, time-out, bad input, connection lost |
| incoming | CONNECTED | SUSPECTED: no verified frame for `suspect_after` |
| incoming | SUSPECTED | CONNECTED: verified frame; DISCONNECTED: no verified frame for `drop_after` |
| both | CONNECTED, SUSPECTED | DISCONNECTED: bad input, queue full, replaced, connection lost, closed |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import Final, TypeAlias

VERSIONS: Final = (1,)
"""Versions of the protocol that this package speaks."""

HASH_SIZE: Final = 32
KEY_SIZE: Final = 32
NONCE_SIZE: Final = 16
SIGNATURE_SIZE: Final = 64


class LinkState(Enum):
    """State of one link."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPECTED = "suspected"


class Refusal(IntEnum):
    """Reasons of a refused handshake, as on the wire; the first that applies counts."""

    VERSION = 1
    CLUSTER = 2
    UNKNOWN_NODE = 3
    SELF = 4
    WRONG_RECIPIENT = 5
    SIGNATURE = 6
    MALFORMED = 7
    BUSY = 8


class Reason(StrEnum):
    """Reasons for which a link ends."""

    # bad input: a rule that the peer broke
    DECODER_FAILURE = "DecoderFailure"
    EXCEEDED_SIZE_LIMIT = "ExceededSizeLimit"
    INCOMPLETE = "Incomplete"
    UNEXPECTED_FRAME = "UnexpectedFrame"
    WRONG_NODE = "WrongNode"
    WRONG_VERSION = "WrongVersion"
    BAD_SIGNATURE = "BadSignature"
    BAD_SEQUENCE = "BadSequence"
    BAD_ACKNOWLEDGEMENT = "BadAcknowledgement"

    # time and bounds
    DIAL_TIMEOUT = "DialTimeout"
    HANDSHAKE_TIMEOUT = "HandshakeTimeout"
    ACK_TIMEOUT = "AckTimeout"
    SILENT = "Silent"
    QUEUE_FULL = "QueueFull"

    # events
    REFUSED = "Refused"
    REPLACED = "Replaced"
    CONNECTION_LOST = "ConnectionLost"
    CLOSED = "Closed"


# --- frames ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Opens the handshake: the dialer names its cluster, itself, and the node that it dialed."""

    cluster: bytes
    sender: str
    recipient: str
    versions: tuple[int, ...]
    nonce: bytes
    signature: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to a verified Hello, with the highest common version."""

    sender: str
    recipient: str
    version: int
    nonce: bytes
    signature: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Begin:
    """Proves that the dialer has its key, on this connection. Numbered frames follow."""

    signature: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Refuses the handshake. It is not signed: a hint for the log."""

    reason: Refusal
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the host; ``kind`` and ``payload`` mean nothing here."""

    seq: int
    kind: int
    payload: bytes = field(repr=False)
    signature: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sign of life of a dialer that has written nothing else for a while."""

    seq: int
    signature: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Ack:
    """The steps of all frames up to the number ``received`` are committed."""

    received: int
    signature: bytes = field(default=b"", repr=False)


Signed: TypeAlias = Hello | Welcome | Begin | Message | Heartbeat | Ack
Frame: TypeAlias = Signed | Refused


# --- effects -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a connection to the peer, and report it with this number."""

    connection: int


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes to the connection."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection, after what was sent on it."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The link is in another state; where it is DISCONNECTED, ``reason`` and ``detail`` explain it.

    ``peer`` is empty for a connection whose Hello was not verified.
    """

    peer: str
    state: LinkState
    reason: Reason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotWanted:
    """A session begins, and the peer forgot this node's facts: deliver a snapshot of the committed ones (MD4)."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A session of the peer begins: forget its facts, and its messages that are not processed yet (MD5)."""

    peer: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the peer. Report the commit of its step with its number; ignore and count an unknown kind."""

    peer: str
    seq: int
    kind: int
    payload: bytes = field(repr=False)


Effect: TypeAlias = Dial | Send | Close | Changed | SnapshotWanted | Begun | Received
