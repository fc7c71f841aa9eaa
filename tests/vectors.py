"""Helpers of the conformance tests: the cases of `schemas/vectors`, or of the folder that `CARDINAL_VECTORS` names.

In the vectors bytes are hex, numbers that may be large are text, `removed` lists the oldest block first.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cardinal.protocols.streams import (
    BlockRef,
    ChainUpdate,
    Completed,
    Event,
    Follower,
    FollowerSettings,
    Incomplete,
    MissingPayload,
    Orderer,
    Payload,
    Reassembler,
    Record,
)
from cardinal.protocols.streams.following import follower
from cardinal.protocols.streams.types import path_bytes
from streams import parents_of

FOLDER = Path(__file__).parents[1] / "schemas/vectors"
"""The project's cases."""
VECTORS = Path(os.environ.get("CARDINAL_VECTORS") or FOLDER)
"""The cases to test with; files that a folder does not have hold no case."""
OURS = VECTORS == FOLDER
NEVER = 1_000_000
"""A deadline that no case reaches: the vectors know no deadline."""

GZIP = b"\x1f\x8b"

Case = dict[str, Any]
Partition = tuple[str, int]
raw = bytes.fromhex


def load(name: str, part: str = "cases") -> list[Case]:
    """The cases of one file to test with.

    What Cardinal answers otherwise on purpose, and what it reports, stands in the project's own case of the same name.
    """
    if OURS:
        return ours(name, part)
    known = {case["name"]: case for case in ours(name, part)}
    found = cases_of((VECTORS / name).read_bytes(), part) if (VECTORS / name).is_file() else []
    for case in found:
        annotated = known.get(case["name"], {})
        case.update({key: annotated[key] for key in ("cardinal", "reports") if key in annotated and key not in case})
    return found


def ours(name: str, part: str = "cases") -> list[Case]:
    """The project's cases of one file."""
    return cases_of((FOLDER / name).read_bytes(), part)


def cases_of(data: bytes, part: str = "cases") -> list[Case]:
    """The cases of a file's bytes."""
    loaded: dict[str, Any] = json.loads(gzip.decompress(data) if data.startswith(GZIP) else data)
    cases: list[Case] = loaded[part]
    return cases


def records(case: Case) -> list[Record]:
    """The messages of a case as a transport would deliver them."""
    return [
        Record(
            message["topic"],
            message["partition"],
            message["offset"],
            raw(message["key"]),
            raw(message["value"]),
            headers=tuple((name, value.encode()) for name, value in message.get("headers", ())),
        )
        for message in case["messages"]
    ]


def start(case: Case) -> BlockRef | None:
    """The last block already delivered; a hash of zeros stands for none."""
    config = case["config"]
    last = raw(config["last_hash"])
    return BlockRef(int(config["last_number"]), last) if any(last) else None


def tracked(case: Case) -> tuple[str, ...] | None:
    """The expressions over a Batch's entries; none given means everything."""
    found = case["config"]["tracked_prefixes"]
    return None if found is None else tuple(found)


def weight(case: Case) -> int | None:
    """The weight of that block, where it is known."""
    found = case["config"]["last_weight"]
    return None if found is None else int(found)


def whitelist(case: Case) -> dict[int, bytes]:
    return {int(number): raw(block) for number, block in case["config"]["whitelist"].items()}


def identity(case: Case) -> str:
    name: str = case["name"]
    return name


def settings(case: Case) -> FollowerSettings:
    """What a follower needs to know of a case."""
    config = case["config"]
    return FollowerSettings(
        "vectors",
        case["name"],
        tracked=tracked(case),
        prefixes=tuple(config.get("prefixes", ())),
        reorg_threshold=config["reorg_threshold"],
        whitelist=whitelist(case),
        start=start(case),
        start_weight=weight(case),
        volatile=tuple(config.get("volatile", ())),
        policy=config.get("policy", "first"),
        producers=tuple(config.get("producers", ())),
        default_topic=config.get("default_topic"),
    )


# --- values in the vectors' format ---------------------------------------------------------------------------


def batch_of(block: Payload) -> dict[str, Any]:
    return {
        "hash": block.hash.hex(),
        "number": str(block.number),
        "parent": block.parent.hex(),
        "weight": str(block.weight),
        "values": sorted(
            ({"path": path_bytes(path).hex(), "value": value.hex()} for path, value in block.updates.items()),
            key=lambda entry: entry["path"],
        ),
        "deletes": sorted(path_bytes(path).hex() for path in block.deletes),
    }


def update_of(update: ChainUpdate) -> dict[str, Any]:
    """An update; blocks whose content could not be had are listed once more under `missing`."""
    blocks = (*reversed(update.removed), *update.added)
    missing = [block.hash.hex() for block in blocks if isinstance(block, MissingPayload)]
    out = {
        "removed": [block.hash.hex() for block in reversed(update.removed)],
        "added": [block.hash.hex() for block in update.added],
    }
    return out | ({"missing": missing} if missing else {})


def report_of(event: Event) -> dict[str, Any]:
    """A report without its prose and its places."""
    out: dict[str, Any] = {"event": type(event).__name__}
    if isinstance(event, Incomplete):
        out["block"] = event.explanation.block.hex()
    for name in ("block", "ancestor", "tip", "key", "kept", "seen"):
        value = getattr(event, name, None)
        if isinstance(value, BlockRef):
            value = value.hash
        if isinstance(value, bytes):
            out[name] = value.hex()
    return out


def stripped(step: Mapping[str, Any]) -> dict[str, Any]:
    """What of a step is compared one to one: everything but resume positions."""
    return {
        kind: [
            {
                name: sorted(value, key=lambda entry: entry["path"]) if name == "values" else value
                for name, value in one.items()
                if name != "resumption"
            }
            for one in step[kind]
        ]
        for kind in ("batches", "updates")
        if step.get(kind)
    }


def fold(updates: Iterable[ChainUpdate], chain: Iterable[bytes] = (), seq: int = 0) -> list[bytes]:
    """The chain after these updates. Fails where one does not continue it exactly."""
    blocks = list(chain)
    for update in updates:
        assert update.first_seq == seq + 1
        for block in update.removed:
            # Below its start a stream may remove blocks that an earlier one delivered.
            assert not blocks or blocks.pop() == block.hash
        blocks += [block.hash for block in update.added]
        seq = update.seq
    return blocks


# --- consumers -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Step:
    """What one message brought about."""

    completed: list[Completed] = field(default_factory=list)
    updates: list[ChainUpdate] = field(default_factory=list)
    reports: list[Event] = field(default_factory=list)

    def outcome(self) -> dict[str, Any]:
        batches = [batch_of(event.payload) for event in self.completed if isinstance(event.payload, Payload)]
        found = {"batches": batches, "updates": [update_of(update) for update in self.updates]}
        return {kind: values for kind, values in found.items() if values}


class Parts:
    """Reassembler and Orderer put together by hand, as the vectors' configuration says."""

    def __init__(self, case: Case) -> None:
        config = case["config"]
        self.reassembler = Reassembler(
            tracked(case), config["reorg_threshold"], prefixes=config.get("prefixes", ()), deadline=NEVER
        )
        self.orderer = Orderer(start(case), weight(case), config["reorg_threshold"], whitelist(case))

    def feed(self, record: Record) -> Step:
        step = Step()
        for event in self.reassembler.receive([record]):
            if isinstance(event, Completed):
                step.completed.append(event)
                self._order(self.orderer.receive(event), step)
            else:
                step.reports.append(event)
        return step

    def caught_up(self) -> Step:
        """The last message was read: choose a start, where there is none."""
        step = Step()
        self._order(self.orderer.caught_up(), step)
        return step

    def _order(self, updates: list[ChainUpdate], step: Step) -> None:
        step.reports += self.orderer.take_reports()
        for update in updates:
            step.updates.append(update)
            if self.orderer.head is not None:
                step.reports += self.reassembler.head_moved(self.orderer.head.number)


class Reader:
    """A follower driven over a log as a transport drives it: one record, one step; older Batches on demand."""

    def __init__(self, follower: Follower, log: Sequence[Record]) -> None:
        self.follower = follower
        self.log = log
        self.positions: dict[Partition, int] = {}
        self.ends: dict[Partition, int] = {}
        for record in log:
            place = (record.topic, record.partition)
            self.ends[place] = max(self.ends.get(place, 0), record.offset + 1)

    def read(self, log: Iterable[Record]) -> Iterator[Step]:
        """One step for every record."""
        for record in log:
            step = Step()
            self.positions[record.topic, record.partition] = record.offset + 1
            requests = self._take(self.follower.step([record], self.positions, self.ends), step)
            now = {place: max(at, self.ends.get(place, 0)) for place, at in self.positions.items()}
            for _ in range(4):  # a transport's next steps bring new ones, and pass them
                if not (self.follower.caught_up and (requests.watermarks or step.reports)):
                    break
                requests = self._take(self.follower.step([], self.positions, now), step)
            if requests.history is not None:
                self._take(self.follower.recall(parents_of(self.log)), step)
            yield step

    def _take(self, out: follower.Step, step: Step) -> follower.Requests:
        for value in out.items:
            if isinstance(value, ChainUpdate):
                step.updates.append(value)
            else:
                step.reports.append(value)
        return out.requests
