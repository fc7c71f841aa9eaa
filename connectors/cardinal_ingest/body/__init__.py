"""Body of a block: its payload as items, as publishers push them and nodes keep them.

Rules:

1. The items are a header (number, hash, parent, weight, chain id), the content, and a proof. Content: deletes, then
   updates, by path; then of each sub batch, by id, its declaration, deletes and updates.
2. Equal payloads give equal bytes, and only these bytes are read: nodes agree on digests of bodies.
3. The proof's digest is SHA-256 of everything before the proof.
4. A body is one byte string: every item framed as a length-delimited field 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from cardinal.errors import ApplicationError, MissingExtraError
from cardinal.protocols.streams.payload import Payload, SubBatch
from cardinal.protocols.streams.types import HASH_SIZE, path_bytes, path_text

try:
    from google.protobuf.message import DecodeError

    from . import body_pb2 as wire
except ModuleNotFoundError as error:
    raise MissingExtraError("a block's body", "ingest") from error

__all__ = ["Published", "digest", "frame", "items_of", "payload_of", "unframe", "weight_of"]

_MOST_WEIGHT_BYTES: Final = 64


class Published(NamedTuple):
    """A payload, and the chain of which it is a block."""

    payload: Payload
    chain_id: int


def items_of(payload: Payload, *, chain_id: int) -> tuple[bytes, ...]:
    """The items of a payload.

    Raises:
        ApplicationError: a sub batch of it has no content yet.

    """
    weight = payload.weight.to_bytes((payload.weight.bit_length() + 7) // 8, "big")
    header = wire.Header(
        number=payload.number, hash=payload.hash, parent=payload.parent, weight=weight, chain_id=chain_id
    )
    items = [wire.Item(header=header).SerializeToString(), *_content(payload.updates, payload.deletes)]
    for batch_id, sub_batch in sorted(payload.sub_batches.items()):
        if sub_batch is None:
            raise ApplicationError(
                f"block {payload.number} announces the sub batch {batch_id.hex()} without its content: publish it whole"
            )
        declaration = wire.Content(path=path_bytes(sub_batch.path), sub_batch=batch_id)
        items.append(wire.Item(content=declaration).SerializeToString())
        items += _content(sub_batch.updates, sub_batch.deletes, batch_id)
    proof = wire.Proof(number=payload.number, digest=digest(items))
    return (*items, wire.Item(proof=proof).SerializeToString())


def payload_of(items: Sequence[bytes]) -> Published:
    """The payload of items.

    Raises:
        ApplicationError: they are not what :func:`items_of` makes of a payload.

    """
    try:
        parsed = [wire.Item.FromString(item) for item in items]
    except DecodeError:
        raise ApplicationError("an item of the block does not decode") from None
    if len(parsed) < 2 or not parsed[0].HasField("header"):  # noqa: PLR2004 - a header and a proof
        raise ApplicationError("a block begins with its header, and ends with its proof")
    header = parsed[0].header
    if len(header.hash) != HASH_SIZE or len(header.parent) != HASH_SIZE or len(header.weight) > _MOST_WEIGHT_BYTES:
        raise ApplicationError(f"the header of block {header.number} has no hash of 32 bytes, or no such parent")
    whole = _Parts("", {}, set())
    parts: dict[bytes, _Parts] = {}
    for item in parsed[1:-1]:
        _take(item.content, whole, parts)
    payload = Payload(
        header.number,
        header.hash,
        header.parent,
        int.from_bytes(header.weight, "big"),
        whole.updates,
        frozenset(whole.deletes),
        {batch_id: SubBatch(part.path, part.updates, frozenset(part.deletes)) for batch_id, part in parts.items()},
    )
    if items_of(payload, chain_id=header.chain_id) != tuple(items):
        raise ApplicationError(
            f"the items of block {header.number} are not in the one order and form that its payload has, or its proof "
            "is of another content"
        )
    return Published(payload, header.chain_id)


def weight_of(header: bytes) -> int:
    """The weight that a verified block's first item names."""
    return int.from_bytes(wire.Item.FromString(header).header.weight, "big")


def frame(items: Sequence[bytes]) -> bytes:
    """The body that consists of these items."""
    body: bytes = wire.Body(items=items).SerializeToString()
    return body


def unframe(body: bytes) -> tuple[bytes, ...]:
    """The items of a body; ApplicationError for bytes that :func:`frame` does not make."""
    try:
        items = tuple(wire.Body.FromString(body).items)
    except DecodeError:
        items = ()
    if not items or frame(items) != body:
        raise ApplicationError("the bytes are no body of a block")
    return items


def digest(items: Sequence[bytes]) -> bytes:
    """SHA-256 of items, framed."""
    return hashlib.sha256(frame(items)).digest()


class _Parts(NamedTuple):
    path: str
    updates: dict[str, bytes]
    deletes: set[str]


def _content(updates: Mapping[str, bytes], deletes: Collection[str], sub_batch: bytes = b"") -> list[bytes]:
    """Deletes, then updates, by path."""
    content = [wire.Content(path=path, delete=True, sub_batch=sub_batch) for path in sorted(map(path_bytes, deletes))]
    content += [
        wire.Content(path=path, value=value, sub_batch=sub_batch)
        for path, value in sorted((path_bytes(path), value) for path, value in updates.items())
    ]
    return [wire.Item(content=one).SerializeToString() for one in content]


def _take(content: wire.Content, whole: _Parts, parts: dict[bytes, _Parts]) -> None:
    """Add one item. Comparing the re-encoded payload later reveals items at the wrong position."""
    path = path_text(content.path)
    into = parts.get(content.sub_batch, whole)
    if content.HasField("value"):
        into.updates[path] = content.value
    elif content.delete:
        into.deletes.add(path)
    else:
        parts[content.sub_batch] = _Parts(path, {}, set())
