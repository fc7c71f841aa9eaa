"""Whether two copies of one message say the same.

Bytes that are equal say the same. Maps have no order on the wire and producers of different make write them
differently, so Batches and SubBatchMsgs are compared decoded. Values at volatile paths (such as the finality marks that
every producer's node sees at another moment) are left out.
"""

from __future__ import annotations

from collections.abc import Callable

from cardinal.protocols.streams.types import Record
from cardinal.protocols.streams.wire import avro
from cardinal.protocols.streams.wire.codec import sub_batch_index
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import BATCH_MSG, SUB_BATCH_HEADER, SUB_BATCH_MSG

from .block import Content, OpenBlock, sub_batch_id


class Copies:
    """How copies are compared.

    Arguments:
        volatile: whether values at this path may differ.
        decoded: whether SubBatchMsgs can be decoded; digests cannot.

    """

    def __init__(self, volatile: Callable[[bytes], bool], *, decoded: bool) -> None:
        self._volatile = volatile
        self._decoded = decoded

    def same(self, kept: Record, seen: Record, held: Content) -> bool:
        """Whether two messages with one key, not Batches, say the same.

        Arguments:
            kept: the copy that is held.
            seen: the other one.
            held: the content of ``kept`` where it is a SubBatchMsg; it is not decoded again.

        Raises:
            DecodeError: ``seen`` says nothing.

        """
        if kept.key[0] >= BATCH_MSG:
            return kept.value == seen.value or self._volatile(kept.key[HASH_END:])
        if kept.key[0] == SUB_BATCH_HEADER:
            return avro.read_int(kept.value) == avro.read_int(seen.value)
        if not self._decoded:
            return kept.value == seen.value
        deletes, updates = avro.read_content(seen.value)
        if len(deletes) != len(held[0]) or updates.keys() != held[1].keys():
            return False
        return sorted(deletes) == sorted(held[0]) and all(
            value == held[1][path] or self._volatile(path) for path, value in updates.items()
        )

    def same_batch(self, kept: avro.BatchFields, seen: avro.BatchFields) -> bool:
        """Whether two Batches describe the same block."""
        if kept[:3] != seen[:3] or kept.entries.keys() != seen.entries.keys():
            return False
        return all(
            entry == (other := kept.entries[path]) or (entry[2:] == other[2:] and self._volatile(path))
            for path, entry in seen.entries.items()
        )


def held_content(block: OpenBlock, key: bytes) -> Content:
    """The decoded content of a held SubBatchMsg; nothing for other messages."""
    if key[0] != SUB_BATCH_MSG:
        return [], {}
    return block.subs[sub_batch_id(key)].parts[sub_batch_index(key)]
