"""Messages of a gRPC stream: a flag, four bytes of length, and the message.

The reader holds what has come and was not taken, in one buffer, whatever the sizes of the pieces.
"""

from __future__ import annotations

import struct
from typing import Final

from cardinal_ingest.rpc.status import Code, RpcError

PREFIX: Final = struct.Struct(">BI")


class MessageReader:
    """Cuts a stream of bytes into messages.

    Arguments:
        limit: bytes of the largest message.

    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Bytes came."""
        self._buffer += data

    def take(self) -> bytes | None:
        """The next message; None until it is complete.

        Raises:
            RpcError: it is compressed, or larger than the limit; known as soon as its length is.

        """
        if len(self._buffer) < PREFIX.size:
            return None
        compressed, length = PREFIX.unpack_from(self._buffer)
        if compressed:
            raise RpcError(Code.UNIMPLEMENTED, "messages must not be compressed: send grpc-encoding identity")
        if length > self._limit:
            details = f"a message of {length} bytes is larger than the limit of {self._limit}: send smaller ones"
            raise RpcError(Code.RESOURCE_EXHAUSTED, details)
        end = PREFIX.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            message = bytes(view[PREFIX.size : end])
        del self._buffer[:end]
        return message

    def clear(self) -> None:
        """Forget what is held."""
        self._buffer = bytearray()
