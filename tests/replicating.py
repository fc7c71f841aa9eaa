"""Values of replication for tests: blocks, a state, records with cheap signatures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from cardinal_ingest.protocols.replication import (
    NO_HASH,
    Block,
    Broadcast,
    Claim,
    Header,
    Membership,
    Message,
    Replica,
    ReplicationSettings,
    Rules,
    Saved,
    State,
    Step,
    Stored,
    claim_bytes,
    encode,
    saved_bytes,
    seal_header,
)
from model.cluster_node import first_record, membership, signature, signer, verify

RULES = Rules(start=100, window=4, max_blocks=3)
MEMBERS = membership(3)
FIRST = first_record(MEMBERS, RULES)
EMPTY = State.empty(RULES, MEMBERS.cluster, MEMBERS.stream)


def name(text: str) -> bytes:
    """The hash that a label like `101a` stands for."""
    return text.encode().ljust(32, b".")


def block(text: str, parent: str, weight: int | None = None, size: int = 10, content: str = "") -> Block:
    number = int(text[:-1])
    heavy = max(number - 99, 0) if weight is None else weight
    return Block(number, name(text), name(parent), heavy, name(content or text)[::-1], size)


def chain(*names: str) -> list[Block]:
    """Blocks, each the child of the one before; the first name is the root."""
    return [block(one, parent) for parent, one in pairwise(names)]


def batch(over: State, blocks: list[Block], **changes: object) -> Header:
    """The next batch over a state, with changed fields."""
    fields: dict[str, Any] = {
        "cluster": MEMBERS.cluster, "stream": MEMBERS.stream, "num": over.num + 1, "prev": over.hash,
        "state": over.digest, "parent": blocks[0].parent if blocks else NO_HASH,
        "heaviness": blocks[-1].weight if blocks else 0, "items": [one.item for one in blocks],
    } | changes  # fmt: skip
    return seal_header(**fields)


def saved(header: Header, member: str) -> bytes:
    return signature(MEMBERS.members[member], saved_bytes(header.cluster, header.stream, header.num, header.hash))


def signed(claim: Claim, members: Membership = MEMBERS) -> Claim:
    key = members.members.get(claim.claimer, b"?")
    return replace(claim, signature=signature(key, claim_bytes(claim.header.cluster, claim)))


def claim_of(header: Header, claimer: str = "a", signers: str = "ab", skips: int = 0) -> Claim:
    return signed(Claim(header, claimer, skips, tuple((one, saved(header, one)) for one in signers), b""))


def claimed(header: Header, claimer: str = "a", signers: str = "ab", skips: int = 0) -> bytes:
    return encode(claim_of(header, claimer, signers, skips))


def replica(node: str = "a", *, rows: Iterable[Stored] = (), opened: bool = True, **settings: float) -> Replica:
    """A replica that has read the log's first record."""
    it = Replica(node, MEMBERS, signer(MEMBERS.members[node]), verify, ReplicationSettings(**settings), rows=rows)
    if opened:
        it.read(0, FIRST, 0.0)
    return it


def saved_by(member: str, header: Header) -> Saved:
    return Saved(MEMBERS.stream, header.num, header.hash, saved(header, member))


def broadcast(step: Step) -> list[Message]:
    return [action.message for action in step.actions if isinstance(action, Broadcast)]
