"""Events of an ingest node that concern its operator, as sentences, and as counts."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from cardinal.protocols.publish import (
    Acknowledgement,
    BehindPublisher,
    BranchRefused,
    CatchUp,
    CatchUpStuck,
    Effect,
    EndOfStream,
    NodeError,
    ResendBlock,
    Response,
    SkipBlock,
    SourceError,
    Status,
)
from cardinal.server.log_fields import LoggedHash

_KINDS: Final = {
    Acknowledgement: "acknowledgement",
    SkipBlock: "skip",
    ResendBlock: "resend",
    BehindPublisher: "behind",
}


def kind_of(response: Response) -> str:
    """The name of a response in metrics; that of the end of a stream is its status."""
    return Status(response.status).name.lower() if isinstance(response, EndOfStream) else _KINDS[type(response)]


class Event(NamedTuple):
    """An event for the operator: its name in metrics and log, the sentence, its values, and the level."""

    kind: str
    sentence: str
    fields: dict[str, object]
    level: int = logging.WARNING


def event_of(effect: Effect) -> Event:
    """The event of an effect that concerns an operator."""
    match effect:
        case CatchUp(first, last):
            missing = f"block {first} is" if first == last else f"blocks {first} to {last} are"
            sentence = f"{missing} missing here, and publishers have newer ones"
            # It heals by itself; where it does not, CatchUpStuck follows.
            return Event("catch_up", sentence, {"block": first, "last": last}, logging.INFO)
        case CatchUpStuck(target):
            sentence = f"publishers have come no closer: blocks up to {target} are still missing here"
            return Event("catch_up_stuck", sentence, {"block": target})
        case BranchRefused(block, _):
            sentence = f"a publisher's branch was refused: it forks off deeper than at block {block.number}"
            return Event("branch_refused", sentence, {"block": block.number, "hash": LoggedHash(block.hash)})
        case SourceError():
            return Event("source_error", "there is no publisher", {})
        case NodeError():
            return Event("node_error", "a block could not be stored: all publishers were disconnected", {})
        case _:
            return Event("other", str(effect), {})
