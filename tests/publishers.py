"""Publishers of tests: a gRPC client of an ingest node, as anybody would write it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from cardinal.apps.body.body_pb2 import Header, Item, Proof
from cardinal.protocols.publish import (
    METHOD,
    SERVICE,
    BlockEnd,
    BlockItemSet,
    Request,
    Response,
    decode_response,
    encode,
)

DEADLINE = 60.0


class Publisher:
    """A client of the stream, as any gRPC client makes it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()

    async def send(self, *requests: Request) -> None:
        for request in requests:
            await self._call.write(encode(request))

    async def send_bytes(self, data: bytes) -> None:
        await self._call.write(data)

    async def next(self) -> Response | None:
        """The next response; None at the end."""
        data = await asyncio.wait_for(self._call.read(), DEADLINE)
        return None if data is grpc.aio.EOF else decode_response(data)

    async def block(self, number: int, *items: bytes) -> None:
        await self.send(BlockItemSet((header(number), *items, proof(number))), BlockEnd(number))


def header(number: int) -> bytes:
    item: bytes = Item(header=Header(number=number)).SerializeToString()
    return item


def proof(number: int) -> bytes:
    item: bytes = Item(proof=Proof(number=number)).SerializeToString()
    return item


@asynccontextmanager
async def publisher(port: int) -> AsyncIterator[Publisher]:
    """A publisher connected to this port."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Publisher(channel)
