"""A driver of the streams tests that also reads again what a follower asks for, and says when a stream rests."""

from __future__ import annotations

from collections.abc import Sequence

from cardinal.protocols.streams import ChainUpdate, Incomplete
from cardinal.protocols.streams.events import Event
from cardinal.protocols.streams.wire.keys import HASH_END
from channels import Stream


class Rereading(Stream):
    """See the module. What is read again is a block's own records, as far as the reading has come."""

    def rest(self, steps: int = 3) -> None:
        """Nothing comes for a while."""
        for _ in range(steps):
            self._sort(self.follower.progress(self.at, self.ends(), at_rest=True))

    def reread(self) -> list[bytes]:
        """The blocks that were reported to be read again."""
        return [
            event.explanation.block
            for event in self.events
            if isinstance(event, Incomplete) and event.explanation.state == "dropped"
        ]

    def _sort(self, out: Sequence[ChainUpdate | Event]) -> None:
        super()._sort(out)
        for event in out:
            if isinstance(event, Incomplete) and event.explanation.state == "dropped":
                self._read_again(event.explanation.block)

    def _read_again(self, block_hash: bytes) -> None:
        for place, begin in (self.follower.reread(block_hash) or {}).items():
            records = self.partitions[place][begin : self.at[place]]
            self._sort(self.follower.receive([one for one in records if one.key[1:HASH_END] == block_hash]))
