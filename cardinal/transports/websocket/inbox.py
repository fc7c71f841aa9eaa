"""What a client has received and not given yet: bounded, in order within each partition, without gap or double.

Rules:

1. Frames are kept as bytes until they are asked for. What may come is bounded by the credit given; a server that sends
   more is refused.
2. A partition's chunks must join on to each other. What was given already is passed over; a gap is refused.
3. What is there of a paused partition is held, so that it need not be sent again; where too much is held, the largest
   is let go, and read again from its position. It is copied: a part of a frame keeps all of the frame in memory.

It belongs to one thread at a time. No I/O: :class:`.source.WebsocketSource` and :class:`.link.Link` do that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from cardinal.errors import RemoteProtocolError

from .chunks import ReceivedChunk, decode_chunks, decode_records
from .frames import GO_ON, Records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.protocols.streams.types import Partition, Record


class _Piece:
    """A chunk from which records are taken; they are made when the first of them is asked for."""

    __slots__ = ("_alone", "_at", "_chunk", "_floor", "_records", "where")

    def __init__(self, chunk: ReceivedChunk, floor: int) -> None:
        self.where = chunk.where
        self._chunk = chunk
        self._alone = False
        self._floor = floor
        self._records: list[Record] | None = None
        self._at = 0

    @property
    def size(self) -> int:
        return len(self._chunk.body)

    def hold(self) -> None:
        """Keep nothing in memory but what is counted: neither the frame that it came in, nor records."""
        if self._records is not None:
            self._floor = self._records[self._at].offset
            self._records, self._at = None, 0
        if not self._alone:
            self._chunk = replace(self._chunk, body=memoryview(bytes(self._chunk.body)))
            self._alone = True

    def take(self, limit: int) -> tuple[list[Record], int, bool]:
        """Records, the position after them, and whether these were the last."""
        if self._records is None:
            records = decode_records(self._chunk)
            self._records = [one for one in records if one.offset >= self._floor] if self._floor else records
        taken = self._records[self._at : self._at + limit]
        self._at += len(taken)
        last = self._at == len(self._records)
        return taken, self._chunk.next if last else taken[-1].offset + 1, last


class Inbox:
    """See the module.

    Arguments:
        window: bytes that may be on their way or unread.

    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._credit = 0
        self._owed = 0
        self._frames: deque[Records] = deque()
        self._pieces: deque[_Piece] = deque()
        self._held: dict[Partition, deque[_Piece]] = {}
        self._moved: set[Partition] = set()
        self._since: dict[Partition, int] = {}
        self._received: dict[Partition, int] = {}
        self._paused: frozenset[Partition] = frozenset()
        self.positions: dict[Partition, int] = {}

    # --- what is read ----------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[Partition, int], epoch: int) -> None:
        """From here on these partitions are read, by the READ of this id; of what is there nothing is given."""
        self._pieces.clear()
        self._held.clear()
        self._moved.clear()
        self._paused = frozenset()
        self.positions = dict(positions)
        self._received = dict(positions)
        self._since = dict.fromkeys(positions, epoch)

    def pause(self, partitions: frozenset[Partition]) -> bool:
        """Give nothing of exactly these; whether that differs from before."""
        partitions &= self.positions.keys()
        if partitions == self._paused:
            return False
        released = [piece for where in self._held.keys() - partitions for piece in self._held.pop(where)]
        kept = deque(released)
        self._paused = partitions
        for piece in self._pieces:
            self._keep(piece, kept)
        self._pieces = kept
        self._let_go()
        return True

    def wanted(self, epoch: int) -> dict[Partition, int]:
        """What the READ of this id asks for."""
        found: dict[Partition, int] = {}
        for where, position in self.positions.items():
            if where in self._paused:
                continue
            if where in self._moved:
                self._moved.discard(where)
                self._since[where] = epoch
                self._received[where] = position
                found[where] = position
            else:
                found[where] = GO_ON
        return found

    def start_again(self) -> int:
        """A new connection: nothing of the old one counts. The credit to give."""
        self._frames.clear()
        self.read_again()
        self._owed = 0
        self._credit = self._window
        return self._window

    def read_again(self) -> None:
        """The server stands somewhere else: let go what is there, and name all positions in the next READ."""
        self._pieces.clear()
        self._held.clear()
        self._moved = set(self.positions)

    # --- what comes and goes -----------------------------------------------------------------------------------

    def add(self, frame: Records, size: int) -> None:
        """A frame of so many bytes. RemoteProtocolError: it comes without credit."""
        if self._credit <= 0:
            raise RemoteProtocolError(f"the server sent {size} bytes beyond what it was given leave for")
        self._credit -= size
        self._frames.append(frame)

    def take(self, limit: int) -> list[Record]:
        """At most ``limit`` records. RemoteProtocolError: a chunk that is none, or does not join on."""
        records: list[Record] = []
        while len(records) < limit and (self._pieces or self._unpack()):
            if self._pieces:
                piece = self._pieces[0]
                taken, self.positions[piece.where], last = piece.take(limit - len(records))
                records += taken
                if last:
                    self._pieces.popleft()
        return records

    def credit(self) -> int:
        """Bytes to give back now: 0 until it is worth a frame."""
        if self._owed * 4 < self._window and (self._owed == 0 or self._credit > self._window // 4):
            return 0
        owed, self._owed = self._owed, 0
        self._credit += owed
        return owed

    # --- inside ------------------------------------------------------------------------------------------------

    def _unpack(self) -> bool:
        """Sort the next frame's chunks; False where there is none."""
        if not self._frames:
            return False
        frame = self._frames.popleft()
        for chunk in decode_chunks(frame.chunks):
            where = chunk.where
            if where in self._moved or frame.id < self._since.get(where, frame.id + 1):
                continue
            reached = self._received[where]
            if chunk.begin > reached:
                raise RemoteProtocolError(
                    f"the server left out the records from {reached} to {chunk.begin} of {where[0]}:{where[1]}"
                )
            if chunk.next > reached:
                self._received[where] = chunk.next
                self._keep(_Piece(chunk, reached if chunk.begin < reached else 0), self._pieces)
        self._owed += len(frame.chunks) + _HEAD_BYTES
        self._let_go()
        return True

    def _keep(self, piece: _Piece, ready: deque[_Piece]) -> None:
        if piece.where in self._paused:
            piece.hold()
            self._held.setdefault(piece.where, deque()).append(piece)
        else:
            ready.append(piece)

    def _let_go(self) -> None:
        """Hold no more than a window."""
        sizes = {where: sum(piece.size for piece in pieces) for where, pieces in self._held.items()}
        while sum(sizes.values()) > self._window:
            largest = max(sizes, key=sizes.__getitem__)
            del sizes[largest], self._held[largest]
            self._moved.add(largest)


_HEAD_BYTES = 5
