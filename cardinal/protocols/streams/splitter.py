"""A payload to its messages (specification, Producers): everything else first, the Batch last.

Rules:

1. ``schema`` maps regular expressions to topics. Each expression is anchored as a whole at the start of a path;
   the text that it matched is the prefix that is counted, so one expression can count under many prefixes.
2. A path that no expression matches travels inside the Batch.
3. Everything is checked before the first message is built; a refusal names the path.
4. Messages come sorted by path within their kind, so that equal payloads split into equal lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from cardinal.errors import ConfigurationError, EncodeError, SplitError

from .codec import encode
from .messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Message,
    Reorg,
    ReorgComplete,
    SubBatchHeader,
    SubBatchMsg,
    Update,
)
from .payload import Payload, SubBatch
from .types import HASH_SIZE, NO_ID, BlockRef, Routed


class _Router:
    """The compiled schema: path to (topic, counted prefix)."""

    def __init__(self, schema: tuple[tuple[str, str], ...]) -> None:
        try:
            self._expressions = [(re.compile(f"(?:{source})"), topic) for source, topic in schema]
        except re.error as error:
            raise ConfigurationError(
                f"the topic schema holds an expression that does not compile: {error.pattern!r} ({error.msg})",
                setting="topics",
            ) from None
        if len(schema) > 1 and any(not source for source, _ in schema):
            raise ConfigurationError("an empty expression beside others matches every path", setting="topics")
        # One expression finds what no expression matches in a single step; most paths match exactly one.
        self._any = re.compile("|".join(f"(?:{source})" for source, _ in schema)) if schema else None

    def route(self, path: str) -> tuple[str, str] | None:
        """The topic and counted prefix of a path, None where it travels in the Batch."""
        if self._any is None or self._any.match(path) is None:
            return None
        matches = [(topic, match) for expression, topic in self._expressions if (match := expression.match(path))]
        found = [(topic, match.group()) for topic, match in matches if match.group()]  # no text, no prefix
        if len(found) > 1:
            names = ", ".join(sorted(topic for topic, _ in found))
            raise SplitError(f"{path!r} matches {len(found)} expressions of the topic schema ({names})", path=path)
        return found[0] if found else None


@lru_cache(maxsize=64)
def _router(schema: tuple[tuple[str, str], ...]) -> _Router:
    return _Router(schema)


def split(payload: Payload, schema: Mapping[str, str], default_topic: str) -> list[Routed]:
    """The messages of a payload, the Batch last and on the default topic.

    Arguments:
        payload: the block; a sub batch that is None is announced without content.
        schema: regular expression to topic.
        default_topic: where the Batch goes.

    Raises:
        SplitError: the payload contradicts itself or the schema; ``path`` names where.
        ConfigurationError: an expression of the schema does not compile.

    """
    router = _router(tuple(schema.items()))
    entries: dict[str, Update] = {}
    messages: list[tuple[str, Message]] = []
    counts: dict[str, int] = {}
    _check_identity(payload)
    for path in sorted(payload.updates):
        value = payload.updates[path]
        routed = router.route(path)
        if routed is None:
            entries[path] = Update(value=value)
        else:
            counts[routed[1]] = counts.get(routed[1], 0) + 1
            messages.append((routed[0], BatchMsg(payload.hash, path, value)))
    for path in sorted(payload.deletes):
        routed = router.route(path)
        if routed is None:
            if path in entries:
                raise SplitError(f"{path!r} is both updated and deleted, and travels inside the Batch", path=path)
            entries[path] = Update(delete=True)
        else:
            counts[routed[1]] = counts.get(routed[1], 0) + 1
            messages.append((routed[0], BatchDeleteMsg(payload.hash, path)))
    _enter_counts(entries, counts)
    _enter_sub_batches(entries, payload.sub_batches)
    batch = Batch(payload.hash, payload.number, payload.weight, payload.parent, entries)
    out = _encode_all(messages)
    for batch_id in sorted(payload.sub_batches):
        sub_batch = payload.sub_batches[batch_id]
        if sub_batch is not None:
            out += split_sub_batch(payload.hash, batch_id, sub_batch, schema, default_topic)
    out += _encode_all([(default_topic, batch)])
    return out


def split_sub_batch(
    block_hash: bytes, batch_id: bytes, sub_batch: SubBatch, schema: Mapping[str, str], default_topic: str
) -> list[Routed]:
    """The messages of one sub batch: header, deletes at index 0 if there are any, then one message per update.

    Its topic is the one that its path's expression names, else the default topic.
    """
    routed = _router(tuple(schema.items())).route(sub_batch.path)
    topic = routed[0] if routed else default_topic
    parts: list[tuple[tuple[str, ...], Mapping[str, bytes]]] = []
    if sub_batch.deletes:
        parts.append((tuple(sorted(sub_batch.deletes)), {}))
    parts += [((), {path: sub_batch.updates[path]}) for path in sorted(sub_batch.updates)]
    messages: list[tuple[str, Message]] = [(topic, SubBatchHeader(block_hash, batch_id, len(parts)))]
    messages += [
        (topic, SubBatchMsg(block_hash, batch_id, index, deletes, updates))
        for index, (deletes, updates) in enumerate(parts)
    ]
    return _encode_all(messages)


def reorg_topic(default_topic: str, ancestor_hash: bytes) -> str:
    """The topic of the reorg channel above this ancestor (32 bytes); it has one partition."""
    return f"{default_topic}-re-{ancestor_hash.hex()}"


def split_reorg(
    ancestor: BlockRef, payloads: Iterable[Payload], schema: Mapping[str, str], default_topic: str
) -> tuple[Routed, list[Routed]]:
    """The messages of a reorg that is deeper than the threshold (specification, Reorg Handling).

    Arguments:
        ancestor: the last common block.
        payloads: the blocks above it on the new chain, oldest first.
        schema: as for :func:`split`; everything goes to the channel's one topic all the same.
        default_topic: where the reorg is announced.

    Returns:
        The announcement for the default topic, to be acknowledged first; and the channel's messages in order.

    Raises:
        SplitError: see :func:`split`.

    """
    channel = reorg_topic(default_topic, ancestor.hash)
    there = dict.fromkeys(schema, channel)
    announced, *opened = _encode_all(
        [(default_topic, Reorg(ancestor.hash, ancestor.number)), (channel, Reorg(ancestor.hash, ancestor.number))]
    )
    content = [message for payload in payloads for message in split(payload, there, channel)]
    return announced, [*opened, *content, *_encode_all([(channel, ReorgComplete(ancestor.hash, ancestor.number))])]


def _check_identity(payload: Payload) -> None:
    for name, value in (("hash", payload.hash), ("parent", payload.parent)):
        if len(value) != HASH_SIZE:
            raise SplitError(f"the payload's {name} must be {HASH_SIZE} bytes, not {len(value)}", path=value)
    if payload.hash == payload.parent:
        raise SplitError(f"block {payload.number} names itself as its own parent", path=payload.hash)


def _enter_counts(entries: dict[str, Update], counts: Mapping[str, int]) -> None:
    for prefix, count in counts.items():
        if prefix in entries:
            raise SplitError(f"{prefix!r} is both a counted prefix and an entry of its own", path=prefix)
        entries[prefix] = Update(count=count)


def _enter_sub_batches(entries: dict[str, Update], sub_batches: Mapping[bytes, SubBatch | None]) -> None:
    for batch_id, sub_batch in sub_batches.items():
        if batch_id == NO_ID or len(batch_id) != HASH_SIZE:
            raise SplitError("a sub batch's id must be 32 bytes, not all of them zero", path=batch_id)
        path = batch_id.hex() if sub_batch is None else sub_batch.path
        if path in entries:
            raise SplitError(f"the sub batch path {path!r} is also an entry of its own", path=path)
        entries[path] = Update(sub_batch=batch_id)


def _encode_all(messages: Iterable[tuple[str, Message]]) -> list[Routed]:
    out = []
    for topic, message in messages:
        try:
            out.append(Routed(topic, *encode(message)))
        except EncodeError as error:
            path = getattr(message, "path", None)
            where = "" if path is None else f" in {path!r}"
            raise SplitError(f"{error}{where}", path=path) from error
    return out
