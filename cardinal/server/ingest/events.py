"""Events of an ingest node that concern its operator, as sentences, and as counts."""

from __future__ import annotations

from typing import Final

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

_KINDS: Final = {
    Acknowledgement: "acknowledgement",
    SkipBlock: "skip",
    ResendBlock: "resend",
    BehindPublisher: "behind",
}


def kind_of(response: Response) -> str:
    """The name of a response in metrics; that of the end of a stream is its status."""
    return Status(response.status).name.lower() if isinstance(response, EndOfStream) else _KINDS[type(response)]


def event_of(effect: Effect) -> tuple[str, str]:
    """The name of an event in metrics, and its sentence."""
    match effect:
        case CatchUp(first, last):
            missing = f"block {first} is" if first == last else f"blocks {first} to {last} are"
            return "catch_up", f"{missing} missing here, and publishers have newer ones"
        case CatchUpStuck(target):
            return "catch_up_stuck", f"publishers have come no closer: blocks up to {target} are still missing here"
        case BranchRefused(block, _):
            return (
                "branch_refused",
                f"a publisher's branch was refused: it forks off deeper than at block {block.number}",
            )
        case SourceError():
            return "source_error", "there is no publisher"
        case NodeError():
            return "node_error", "a block could not be stored: all publishers were disconnected"
        case _:
            return "other", str(effect)
