"""Splitter of a payload into its messages (``schemas/SPEC.md``, section 3): the Batch comes last.

1. ``schema`` maps regular expressions to topics, anchored at the start of a path; the text that one matched is the
   prefix that is counted (:mod:`.topic_schema`). A path that no expression matches travels inside the Batch.
2. Everything is checked before the first message is returned; a refusal names the path.
3. Messages come sorted by path within their kind, so that equal payloads split into equal lists.
4. A sub batch that is announced without content (None) stands in the Batch under its id in hex until
   :func:`name_sub_batch` sets its content's path: redundant producers, of which one had the content at once, must write
   equal Batches. A Batch waits for its sub batches (:mod:`.sealing`), so there is always time for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import repeat
from typing import Final, NoReturn

from cardinal.errors import EncodeError, SplitError
from cardinal.protocols.streams.payload import Payload, SubBatch
from cardinal.protocols.streams.types import HASH_SIZE, NO_ID, BlockRef, Routed, path_bytes
from cardinal.protocols.streams.wire.avro import Entry
from cardinal.protocols.streams.wire.codec import decode, encode, encode_batch
from cardinal.protocols.streams.wire.keys import block_key
from cardinal.protocols.streams.wire.messages import (
    BATCH_DELETE_MSG,
    BATCH_MSG,
    Batch,
    Message,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    Update,
)

from .topic_schema import Route, Router, Unsure

_routed = partial(tuple.__new__, Routed)
"""A message of three values in one step of the interpreter; ``Routed(...)`` takes half of a split's time."""

_entry = partial(tuple.__new__, Entry)
"""An entry of the Batch in the same way."""

_ALL_BYTES: Final = {bytes}


@lru_cache(maxsize=64)
def _router(schema: tuple[tuple[str, str], ...]) -> Router:
    return Router(schema)


def split(payload: Payload, schema: Mapping[str, str], default_topic: str) -> list[Routed]:
    """The messages of a payload, the Batch last and on the default topic.

    ``schema``: regular expression to topic. A sub batch that is None is announced without content (rule 4).

    Raises:
        SplitError: the payload contradicts itself or the schema; ``path`` names the entry.
        ConfigurationError: an expression of the schema does not compile.

    """
    _check_identity(payload)
    work = _Split(_router(tuple(schema.items())), payload.hash)
    work.take_updates(payload.updates)
    work.take_deletes(payload.deletes)
    work.enter_counts()
    work.enter_sub_batches(payload.sub_batches)
    out = work.messages
    for batch_id in sorted(payload.sub_batches):
        sub_batch = payload.sub_batches[batch_id]
        if sub_batch is not None:
            out += split_sub_batch(payload.hash, batch_id, sub_batch, schema, default_topic)
    out.append(work.batch(payload, default_topic))
    return out


class _Split:
    """The counted messages and the Batch's entries of one payload."""

    def __init__(self, router: Router, block_hash: bytes) -> None:
        self.entries: dict[str, Entry] = {}
        self.messages: list[Routed] = []
        self._router = router
        self._hash = block_hash
        self._begin = block_key(BATCH_MSG, block_hash)
        self._counts: dict[str, int] = {}

    def take_updates(self, updates: Mapping[str, bytes]) -> None:
        """Add values: counted, or inside the Batch."""
        for directory, paths in self._router.runs(sorted(updates)):
            route = self._router.directory(directory)
            if route is Unsure.NEEDS_PATH:
                for path in paths:
                    self._take_one(self._router.route(path), path, updates[path])
            elif route is None or len(paths) == 1:
                for path in paths:
                    self._take_one(route, path, updates[path])
            else:
                self._take(route, paths, list(map(updates.__getitem__, paths)))

    def _take(self, route: Route, paths: list[str], values: list[bytes]) -> None:
        """Add counted values that share a route."""
        if set(map(type, values)) != _ALL_BYTES:
            for path, value in zip(paths, values, strict=True):
                if not isinstance(value, bytes):
                    _no_value(path, value)
        topic, prefix = route
        self._counts[prefix] = self._counts.get(prefix, 0) + len(paths)
        begin = self._begin
        try:
            keys = [begin + path.encode() for path in paths]
        except UnicodeEncodeError:
            keys = [begin + _path_bytes(path) for path in paths]
        self.messages += map(_routed, zip(repeat(topic), keys, values, strict=False))

    def _take_one(self, route: Route | None, path: str, value: bytes) -> None:
        if not isinstance(value, bytes):
            _no_value(path, value)
        if route is None:
            self.entries[path] = Entry(_path_bytes(path), value, 0, False, NO_ID)  # noqa: FBT003 - a field
            return
        topic, prefix = route
        self._counts[prefix] = self._counts.get(prefix, 0) + 1
        self.messages.append(_routed((topic, self._begin + _path_bytes(path), value)))

    def take_deletes(self, deletes: Iterable[str]) -> None:
        """Add deletes: counted, or inside the Batch."""
        for path in sorted(deletes):
            route = self._router.route(path)
            if route is not None:
                self._counts[route.prefix] = self._counts.get(route.prefix, 0) + 1
                key = block_key(BATCH_DELETE_MSG, self._hash, _path_bytes(path))
                self.messages.append(Routed(route.topic, key, b""))
            elif path in self.entries:
                raise SplitError(f"{path!r} is both updated and deleted, and travels inside the Batch", path=path)
            else:
                self.entries[path] = Entry(_path_bytes(path), b"", 0, True, NO_ID)  # noqa: FBT003 - a field

    def enter_counts(self) -> None:
        """Add entries with the number of messages under each prefix."""
        for prefix, count in self._counts.items():
            if prefix in self.entries:
                raise SplitError(f"{prefix!r} is both a counted prefix and an entry of its own", path=prefix)
            self.entries[prefix] = _entry((_path_bytes(prefix), b"", count, False, NO_ID))

    def enter_sub_batches(self, sub_batches: Mapping[bytes, SubBatch | None]) -> None:
        """Add entries with the ids of sub batches."""
        for batch_id, sub_batch in sub_batches.items():
            _check_batch_id(batch_id)
            path = batch_id.hex() if sub_batch is None else sub_batch.path
            if path in self.entries:
                raise SplitError(f"the sub batch path {path!r} is also an entry of its own", path=path)
            self.entries[path] = Entry(_path_bytes(path), b"", 0, False, batch_id)  # noqa: FBT003 - a field

    def batch(self, payload: Payload, topic: str) -> Routed:
        """The Batch, once everything is entered."""
        entries = list(self.entries.values())
        try:
            written = encode_batch(payload.hash, payload.number, payload.weight, payload.parent, entries)
        except EncodeError as error:
            raise _refused(error) from error
        return Routed(topic, *written)


def split_sub_batch(
    block_hash: bytes, batch_id: bytes, sub_batch: SubBatch, schema: Mapping[str, str], default_topic: str
) -> list[Routed]:
    """The messages of one sub batch: header, deletes at index 0 if there are any, then one message per update.

    Its topic is the one that its path's expression names, else the default topic. SplitError for an invalid id, or a
    path that several expressions match or that cannot be encoded.
    """
    _check_batch_id(batch_id)
    route = _router(tuple(schema.items())).route(sub_batch.path)
    topic = route.topic if route else default_topic
    parts: list[tuple[tuple[str, ...], Mapping[str, bytes]]] = []
    if sub_batch.deletes:
        parts.append((tuple(sorted(sub_batch.deletes)), {}))
    parts += [((), {path: sub_batch.updates[path]}) for path in sorted(sub_batch.updates)]
    return [
        _encoded(topic, SubBatchHeader(block_hash, batch_id, len(parts))),
        *(
            _encoded(topic, SubBatchMsg(block_hash, batch_id, index, deletes, updates))
            for index, (deletes, updates) in enumerate(parts)
        ),
    ]


def name_sub_batch(batch: Routed, batch_id: bytes, path: str) -> Routed:
    """The Batch with the path of a sub batch that was announced without content, once its content came.

    SplitError where the Batch announces no such sub batch, or has another entry at the path.
    """
    message = decode(batch.key, batch.value)
    entries = dict(message.updates) if isinstance(message, Batch) else {}
    announced = next((at for at, entry in entries.items() if entry.sub_batch == batch_id != NO_ID), None)
    if not isinstance(message, Batch) or announced is None:
        raise SplitError(f"the block announces no sub batch {batch_id.hex()}", path=batch_id)
    if announced == path:
        return batch
    if path in entries:
        raise SplitError(f"the sub batch path {path!r} is also an entry of its own", path=path)
    del entries[announced]
    entries[path] = Update(sub_batch=batch_id)
    return _encoded(batch.topic, replace(message, updates=entries))


def reorg_topic(default_topic: str, ancestor_hash: bytes) -> str:
    """The topic of the reorg channel above this ancestor (32 bytes); it has one partition."""
    return f"{default_topic}-re-{ancestor_hash.hex()}"


def split_reorg(
    ancestor: BlockRef, payloads: Iterable[Payload], schema: Mapping[str, str], default_topic: str
) -> tuple[Routed, list[Routed]]:
    """The messages of a reorg that is deeper than the threshold (``schemas/SPEC.md``, section 2.6).

    Returns the announcement for the default topic, which has to be acknowledged first, and the messages of the channel
    in order. ``payloads``: the blocks above the ancestor, oldest first. Raises as :func:`split`.
    """
    channel = reorg_topic(default_topic, ancestor.hash)
    there = dict.fromkeys(schema, channel)
    began, ended = Reorg(ancestor.hash, ancestor.number), ReorgComplete(ancestor.hash, ancestor.number)
    announced = _encoded(default_topic, began)
    content = [message for payload in payloads for message in split(payload, there, channel)]
    return announced, [_encoded(channel, began), *content, _encoded(channel, ended)]


def _check_identity(payload: Payload) -> None:
    if not isinstance(payload, Payload):
        raise SplitError(
            f"a Payload is published, not {type(payload).__name__}: the function payload() of its application makes one"
        )
    for name, value in (("hash", payload.hash), ("parent", payload.parent)):
        if not isinstance(value, bytes):
            raise SplitError(f"the payload's {name} must be {HASH_SIZE} bytes, not {value!r}")
        if len(value) != HASH_SIZE:
            raise SplitError(f"the payload's {name} must be {HASH_SIZE} bytes, not {len(value)}", path=value)
    if not (isinstance(payload.number, int) and isinstance(payload.weight, int)):
        raise SplitError(f"number and weight must be integers, not {payload.number!r} and {payload.weight!r}")
    if payload.hash == payload.parent:
        raise SplitError(f"block {payload.number} names itself as its own parent", path=payload.hash)


def _check_batch_id(batch_id: bytes) -> None:
    if batch_id == NO_ID or len(batch_id) != HASH_SIZE:
        raise SplitError("a sub batch's id must be 32 bytes, not all of them zero", path=batch_id)


def _no_value(path: str, value: object) -> NoReturn:
    raise SplitError(f"the value of {path!r} is of type {type(value).__name__}, not bytes", path=path)


def _path_bytes(path: str) -> bytes:
    try:
        return path_bytes(path)
    except UnicodeEncodeError:
        raise SplitError(f"{path!r} holds a character that cannot be encoded", path=path) from None


def _encoded(topic: str, message: Message) -> Routed:
    try:
        return Routed(topic, *encode(message))
    except EncodeError as error:
        raise _refused(error) from error


def _refused(error: EncodeError) -> SplitError:
    path = error.value if isinstance(error.value, str) else None
    where = "" if path is None else f" ({path!r})"
    return SplitError(f"{error}{where}", path=path)
