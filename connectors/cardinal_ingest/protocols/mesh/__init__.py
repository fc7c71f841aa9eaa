"""Mesh: signed links between ingest nodes, one per direction, with a snapshot at the head of every session.

Contents: `types` is the protocol, `codec` its bytes. `members` are a cluster and one node's identity in it. `outgoing`
is the dialer's side of a link, `incoming` the acceptor's, `link` what they share; `acceptor` has all incoming ones.
M1 to M11 and MD1 to MD11 are the rules of ``connectors/cardinal_ingest/docs/mesh.md``.

Rules:

1. A host drives links with bytes, times and reports, and carries out the effects that come back, in their order. Keys,
   nonces, random numbers and the time are arguments.
2. Nothing is sent, and no step is reported as committed, before its commit (MD7).
3. A forged, replayed, foreign or truncated frame ends its link and changes nothing else.
4. Within a session messages arrive in order, once. Across sessions the snapshot makes a peer's view equal to the
   committed facts of this node, whatever was lost on the way (MD4, MD5).
"""

from .acceptor import Acceptor, Effects
from .codec import HANDSHAKE_LIMIT, OVERHEAD, Decoder, decode, encode, signed_bytes
from .incoming import IncomingLink
from .link import Link
from .members import Cluster, Identity, Member, Sign, Verify
from .outgoing import OutgoingLink
from .settings import MeshSettings, retry_delay
from .types import (
    VERSIONS,
    Ack,
    Begin,
    Begun,
    Changed,
    Close,
    Dial,
    Effect,
    Frame,
    Heartbeat,
    Hello,
    LinkState,
    Message,
    Reason,
    Received,
    Refusal,
    Refused,
    Send,
    Signed,
    SnapshotWanted,
    Welcome,
)

__all__ = [
    "HANDSHAKE_LIMIT",
    "OVERHEAD",
    "VERSIONS",
    "Acceptor",
    "Ack",
    "Begin",
    "Begun",
    "Changed",
    "Close",
    "Cluster",
    "Decoder",
    "Dial",
    "Effect",
    "Effects",
    "Frame",
    "Heartbeat",
    "Hello",
    "Identity",
    "IncomingLink",
    "Link",
    "LinkState",
    "Member",
    "MeshSettings",
    "Message",
    "OutgoingLink",
    "Reason",
    "Received",
    "Refusal",
    "Refused",
    "Send",
    "Sign",
    "Signed",
    "SnapshotWanted",
    "Verify",
    "Welcome",
    "decode",
    "encode",
    "retry_delay",
    "signed_bytes",
]
