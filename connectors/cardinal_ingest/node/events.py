"""Events of an ingest node that concern its operator, as sentences, and as counts."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from cardinal.server.log_fields import LoggedHash
from cardinal_ingest.protocols.publish import (
    Acknowledgement,
    BehindPublisher,
    BranchRefused,
    CatchUp,
    CatchUpStuck,
    Effect,
    EndCode,
    EndOfStream,
    EndStream,
    NodeError,
    ResendBlock,
    Response,
    SkipBlock,
    SourceError,
    Status,
)

_KINDS: Final = {
    Acknowledgement: "acknowledgement",
    SkipBlock: "skip",
    ResendBlock: "resend",
    BehindPublisher: "behind",
}
_ORDERLY: Final = {Status.SUCCESS, Status.DUPLICATE_BLOCK}


def kind_of(response: Response) -> str:
    """The name of a response in metrics; that of the end of a stream is its status."""
    return Status(response.status).name.lower() if isinstance(response, EndOfStream) else _KINDS[type(response)]


def end_name(end: EndStream) -> str:
    """The name of the code with which a publisher ends its stream."""
    return EndCode(end.end_code).name.lower() if end.end_code in set(EndCode) else f"code {end.end_code}"


def end_of(end: EndOfStream) -> tuple[int, str]:
    """Log level and reason of a stream that the node ends."""
    at = f" at block {end.proximate_block_number}" if end.proximate_block_number else ""
    level = logging.INFO if end.status in _ORDERLY else logging.WARNING
    return level, f"the node ended its stream{at} ({kind_of(end)})"


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
