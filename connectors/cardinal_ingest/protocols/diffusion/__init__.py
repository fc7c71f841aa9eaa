"""Object diffusion: an ingest node pulls block bodies that it lacks from its peers, bounded on both sides.

Contents: `types` is the protocol, `codec` its bytes. `server` answers one client out of the `pool`. `client` mirrors
one server, `fetcher` decides over all of them what is requested of which. O1 to O22 are the rules of
``connectors/cardinal_ingest/docs/diffusion.md``.
"""

from .client import Client, TooLarge, Verify
from .codec import Decoder, decode, encode
from .fetcher import Action, Close, Fetcher, Send
from .pool import PoolReader, PoolWriter, Status
from .server import Server
from .settings import DiffusionSettings
from .types import (
    Announcement,
    Message,
    MsgDone,
    MsgInit,
    MsgReplyObjectIds,
    MsgReplyObjects,
    MsgRequestObjectIds,
    MsgRequestObjects,
    ObjectId,
    State,
    Violation,
)

__all__ = [
    "Action",
    "Announcement",
    "Client",
    "Close",
    "Decoder",
    "DiffusionSettings",
    "Fetcher",
    "Message",
    "MsgDone",
    "MsgInit",
    "MsgReplyObjectIds",
    "MsgReplyObjects",
    "MsgRequestObjectIds",
    "MsgRequestObjects",
    "ObjectId",
    "PoolReader",
    "PoolWriter",
    "Send",
    "Server",
    "State",
    "Status",
    "TooLarge",
    "Verify",
    "Violation",
    "decode",
    "encode",
]
