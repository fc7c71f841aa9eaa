"""Scenarios of the arbiter in the vectors' format, and the labels that they use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from cardinal_ingest.protocols.publish import (
    Acknowledged,
    Acknowledgement,
    Arbiter,
    ArbiterSettings,
    BehindPublisher,
    BlockEnd,
    BlockId,
    BlockItemSet,
    BranchRefused,
    CatchUp,
    CatchUpStuck,
    Complete,
    Discard,
    Effect,
    EndCode,
    EndOfStream,
    EndStream,
    Failure,
    Items,
    NodeError,
    Request,
    ResendBlock,
    Response,
    Send,
    SkipBlock,
    SourceError,
    Start,
    Status,
)

FAILURES = {"bad": Failure.BAD, "undecided": Failure.UNDECIDED, "persistence": Failure.PERSISTENCE}


def label(name: str) -> bytes:
    """The 32 bytes that a label stands for."""
    return name.encode().ljust(32, b"\0")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def bytes_field(tag: int, value: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(value)) + value


def number_field(tag: int, value: int) -> bytes:
    return varint(tag << 3) + varint(value) if value else b""


def header_item(number: int, block_hash: bytes = b"", parent: bytes = b"") -> bytes:
    inside = number_field(3, number)
    inside += bytes_field(1001, block_hash) if block_hash else b""
    return bytes_field(1, inside + (bytes_field(1002, parent) if parent else b""))


def proof_item(number: int) -> bytes:
    return bytes_field(9, number_field(1, number))


def other_item(tag: int = 5, size: int = 3) -> bytes:
    return bytes_field(tag, bytes(size))


def item(given: Mapping[str, Any]) -> bytes:
    match given:
        case {"header": number}:
            return header_item(
                number,
                *(label(given[name]) if given.get(name) is not None else b"" for name in ("hash", "parent")),
            )
        case {"proof": number}:
            return proof_item(number)
        case {"other": tag, "bytes": size}:
            return other_item(tag, size)
        case _:
            return bytes.fromhex(given["malformed"])


def request(send: Mapping[str, Any]) -> Request | None:
    match send:
        case {"block_items": items}:
            return BlockItemSet(tuple(map(item, items)))
        case {"end_of_block": number}:
            return BlockEnd(number)
        case {"end_stream": end}:
            return EndStream(EndCode[end["code"]], end["earliest"], end["latest"])
        case _:
            return None


def block_of(given: Mapping[str, Any], number: int) -> BlockId:
    return BlockId(number, label(given["hash"]) if "hash" in given else b"")


def named(block: BlockId, **more: object) -> dict[str, object]:
    """A block in the vectors' format."""
    return {"block": block.number} | ({"hash": block.hash.rstrip(b"\0").decode()} if block.hash else {}) | more


def sent(response: Response) -> dict[str, object]:
    match response:
        case Acknowledgement(number):
            return {"acknowledgement": number}
        case SkipBlock(number):
            return {"skip_block": number}
        case ResendBlock(number):
            return {"resend_block": number}
        case BehindPublisher(number):
            return {"node_behind_publisher": number}
        case EndOfStream(status, number, proximate):
            end = {"status": Status(status).name, "block_number": number, "proximate_block_number": proximate}
            return {"end_stream": end}


def told(effect: Effect) -> tuple[str, dict[str, object]] | None:  # noqa: C901, PLR0911 - one for each kind
    """An effect in the vectors' format: its recipient, and what it receives."""
    match effect:
        case Send(connection, response):
            return str(connection), sent(response)
        case Start(block, attempt, connection):
            return "node", {"start": named(block, attempt=attempt) | {"from": connection}}
        case Complete(block, attempt, connection):
            return "node", {"complete": named(block, attempt=attempt) | {"from": connection}}
        case Discard(block, attempt):
            return "node", {"discard": named(block, attempt=attempt)}
        case CatchUp(first, last):
            return "node", {"catch_up": {"first": first, "last": last}}
        case CatchUpStuck(target):
            return "node", {"catch_up_stuck": {"target": target}}
        case BranchRefused(block, connection):
            return "node", {"branch_refused": named(block) | {"from": connection}}
        case SourceError():
            return "subscribers", {"end": "source_error"}
        case NodeError():
            return "subscribers", {"end": "node_error"}
        case Items() | Acknowledged():
            return None


def arbiter_of(config: Mapping[str, Any], stored: list[tuple[int, str, str]], now: float) -> Arbiter:
    values = {name: value for name, value in config.items() if name != "stored_blocks"}
    known = {BlockId(number, label(block)): label(parent) for number, block, parent in stored}
    return Arbiter(ArbiterSettings(**values), known, now)


class Scenario:
    """One scenario of `publish-arbiter.json` under way."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.case = case
        self.config = case["config"]
        self.now = 0.0
        self.arbiter = arbiter_of(self.config, self.config.get("stored_blocks", []), self.now)
        self.attempts: dict[BlockId, int] = {}

    def play(self) -> Iterator[list[Effect]]:
        for step in self.case["steps"]:
            effects = self.step(step)
            for effect in effects:
                if isinstance(effect, Start):
                    self.attempts[effect.block] = effect.attempt
            yield effects

    def step(self, step: Mapping[str, Any]) -> list[Effect]:  # noqa: PLR0911 - one for each input
        arbiter, now = self.arbiter, self.now
        match step:
            case {"connect": name}:
                return arbiter.connect(name, name.split("#")[0], now)
            case {"disconnect": name}:
                return arbiter.disconnect(name, now)
            case {"from": name, "send": send}:
                return arbiter.receive(name, request(send), now)
            case {"verified": number}:
                return arbiter.verified(*self.copy(step, number), now)
            case {"persisted": number}:
                return arbiter.persisted(*self.copy(step, number), now)
            case {"failed": number, "why": why}:
                return arbiter.failed(*self.copy(step, number), FAILURES[why], now)
            case {"stored": number}:
                parent = label(step["parent"]) if "parent" in step else b""
                return arbiter.stored(block_of(step, number), parent, now)
            case {"tick": seconds}:
                self.now += seconds
                return arbiter.tick(self.now)
            case {"restart": stored}:
                self.arbiter = arbiter_of(self.config, stored, now)
                return []
            case _:
                assert step == {"shutdown": True}
                return arbiter.shutdown(now)

    def copy(self, step: Mapping[str, Any], number: int) -> tuple[BlockId, int]:
        """The copy that a verdict names: the current one where it names none."""
        block = block_of(step, number)
        return block, step.get("attempt", self.attempts.get(block, 0))


def by_recipient(outputs: list[tuple[str, dict[str, object]]]) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = defaultdict(list)
    for to, what in outputs:
        found[to].append(what)
    return dict(found)
