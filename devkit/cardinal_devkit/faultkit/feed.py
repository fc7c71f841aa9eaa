"""Feed of a consumer without its transport: published blocks in, chain updates out, resumed from a cursor.

The updates are those of the streams core, so grouping, transient forks and resumption are those of
:class:`cardinal.Consumer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.events import BlockHeader, ChainUpdate
from cardinal.protocols.streams.following.follower import Follower, FollowerSettings
from cardinal.protocols.streams.payload import MissingPayload, Payload
from cardinal.protocols.streams.publishing.splitter import split
from cardinal.protocols.streams.types import SEALED_HEADER, Finality, Partition, Record, Routed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cardinal.apps import Application

_SEALED = ((SEALED_HEADER, b"1"),)


class Feed:
    """Consumer of topics that have one partition each.

    Arguments:
        application: the application of the payloads.
        missing: hashes of blocks that are delivered as :class:`MissingPayload`.

    """

    def __init__(self, application: Application, missing: Iterable[bytes] = ()) -> None:
        self._application = application
        self._missing = frozenset(missing)
        self._records: dict[Partition, list[Record]] = {(topic, 0): [] for topic in application.all_topics}
        for topic, _ in self._records:
            self._append(Routed(topic, b"", b""))  # the heartbeat of a new topic
        self._follower: Follower | None = None
        self._at: dict[Partition, int] = {}

    def publish(self, payload: Payload) -> None:
        """Publish a block."""
        *content, batch = split(payload, self._application.topics, self._application.default_topic)
        for message in content:
            self._append(message)
        self._append(batch, sealed=True)

    def open(self, cursor: str | None) -> None:
        """Start after this cursor, or with the first block.

        Raises:
            CursorError: the text is no cursor, or of another stream.

        """
        self._follower = Follower(self._settings(), None if cursor is None else Cursor.parse(cursor))
        self._at = self._follower.begin_at({tp: (0, end) for tp, end in self._ends().items()})

    @property
    def head(self) -> bytes | None:
        """The hash of the newest block that was delivered."""
        head = None if self._follower is None else self._follower.cursor().head
        return None if head is None else head.hash

    def updates(self) -> Iterator[ChainUpdate]:
        """Read all published records; yields the updates."""
        if self._follower is None:
            self.open(None)
        ends: dict[Partition, int] | None = None
        unread = True
        while self._follower is not None and (unread or ends is not None):
            records = [record for tp, log in self._records.items() for record in log[self._at[tp] :]]
            self._at = self._ends()
            step = self._follower.step(records, self._at, ends)
            for update in step.updates:
                yield self._with_missing(update)
            ends = self._ends() if step.requests.watermarks and ends is None else None
            unread = step.requests.rewind is not None
            self._at |= step.requests.rewind or {}

    def _with_missing(self, update: ChainUpdate) -> ChainUpdate:
        if not self._missing:
            return update
        removed, added = (
            tuple(MissingPayload(block.number, block.hash) if block.hash in self._missing else block for block in side)
            for side in (update.removed, update.added)
        )
        return ChainUpdate(update.seq, removed, added, update.finality, lambda: update.cursor)

    def _append(self, message: Routed, *, sealed: bool = False) -> None:
        log = self._records[message.topic, 0]
        headers = _SEALED if sealed else ()
        log.append(Record(message.topic, 0, len(log), message.key, message.value, 0, headers))

    def _ends(self) -> dict[Partition, int]:
        return {tp: len(log) for tp, log in self._records.items()}

    def _settings(self) -> FollowerSettings:
        app = self._application

        def finality(block: BlockHeader) -> Finality | None:
            return app.finality(block) if isinstance(block, Payload) else None

        return FollowerSettings(
            app=app.name,
            chain=app.chain,
            tracked=app.prefixes or None,
            inline=True,
            prefixes=app.prefixes,
            reorg_threshold=app.reorg_threshold,
            finality_of=finality,
        )
