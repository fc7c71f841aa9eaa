"""Report of a failed run: delivered updates, kills, and the difference of the states."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cardinal.texts import Count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .chain import Chain
    from .script import Script

_DELIVER: Final = "deliver    "
_DIFFERENCES: Final = 24
"""Printed lines of the states."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a handler.

    Attributes:
        seed: of the chain.
        script: the shortest script found that fails.
        reason: one sentence.
        story: the report, and the command that repeats the run.

    """

    seed: int
    script: str
    reason: str
    story: str


def tell(events: Iterable[dict[str, Any]]) -> list[str]:
    """The reports of the handler's processes, as lines."""
    lines: list[str] = []
    for event in events:
        if "opened" in event:
            head = event["opened"]
            lines.append("open       from the beginning" if head is None else f"open       from the cursor of {head}")
        elif "added" in event:
            update = " ".join([*(f"-{name}" for name in event["removed"]), *(f"+{name}" for name in event["added"])])
            if lines and lines[-1].startswith(_DELIVER):
                lines[-1] += f", {update}"
            else:
                lines.append(f"{_DELIVER}{update}")
        elif "killed" in event:
            lines.append(f"           killed {_moment(event['killed'])}")
        elif "raised" in event:
            lines.append(f"           raised {event['raised']}")
    return lines


def _moment(where: dict[str, Any]) -> str:
    if "file" in where:
        return f"before {where['file']}:{where['line']}: {where['text']}"
    if "before" in where:
        return "before the handler was called"
    return "after the handler returned" if "after" in where else "while it waited"


def differences(expected: str, found: str, chain: Chain) -> list[str]:
    """The lines of two states that differ, with the names of blocks instead of their hashes."""
    before, after = (_named(text, chain).splitlines() for text in (expected, found))
    lines = [line for line in difflib.ndiff(before, after) if line[0] in "-+"]
    more = len(lines) - _DIFFERENCES
    return lines[:_DIFFERENCES] + ([f"  … and {Count(more, 'more line')}"] if more > 0 else [])


def _named(text: str, chain: Chain) -> str:
    for name, payload in chain.payloads.items():
        text = text.replace(repr(payload.hash), f"<{name}>").replace(payload.hash.hex(), f"<{name}>")
    return text


def compose(reason: str, events: Sequence[dict[str, Any]], details: Iterable[str], command: str) -> str:
    """The complete report."""
    lines = [reason, "", *(f"  {line}" for line in tell(events)), *(f"  {line}" for line in details), ""]
    return "\n".join([*lines, f"repeat: {command}"])


def command(handler: str, chain: Chain, script: Script) -> str:
    """The command that repeats a run."""
    app = "" if chain.app == "generated" else f" --app {chain.app}"
    return f"cardinal faults --handler {handler}{app} --seed {chain.seed} --blocks {chain.blocks} --script '{script}'"
