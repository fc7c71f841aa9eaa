"""Client of Hiero block nodes: their messages, and a gRPC stream, without a line of Cardinal.

The messages are built of their names, numbers and types (v0.25 and later), or of the reference's own files: with
``CARDINAL_INTEROP_PROTO`` naming the folders in which those and their imports are found, as a path of folders.
"""

from __future__ import annotations

import gzip
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

PROTO_VARIABLE: Final = "CARDINAL_INTEROP_PROTO"
PUBLISH_FILE: Final = "block-node/api/block_stream_publish_service.proto"
DEADLINE: Final = 60.0

_API, _STREAM, _SERVICES = "org.hiero.block.api.", "com.hedera.hapi.block.stream.", "proto."
_NUMBER: Final = {"block_number": (1, "uint64")}
_FACTS: Final[dict[str, dict[str, tuple[int, str]]]] = {
    f"{_API}PublishStreamRequest": {
        "block_items": (1, f"{_API}BlockItemSet"),
        "end_stream": (2, f"{_API}PublishStreamRequest.EndStream"),
        "end_of_block": (3, f"{_API}BlockEnd"),
    },
    f"{_API}PublishStreamRequest.EndStream": {
        "end_code": (1, "int32"),
        "earliest_block_number": (2, "uint64"),
        "latest_block_number": (3, "uint64"),
    },
    f"{_API}BlockItemSet": {"block_items": (1, f"*{_STREAM}BlockItem")},
    f"{_API}BlockEnd": _NUMBER,
    f"{_API}PublishStreamResponse": {
        "acknowledgement": (1, f"{_API}PublishStreamResponse.BlockAcknowledgement"),
        "end_stream": (2, f"{_API}PublishStreamResponse.EndOfStream"),
        "skip_block": (3, f"{_API}PublishStreamResponse.SkipBlock"),
        "resend_block": (4, f"{_API}PublishStreamResponse.ResendBlock"),
        "node_behind_publisher": (5, f"{_API}PublishStreamResponse.BehindPublisher"),
    },
    f"{_API}PublishStreamResponse.BlockAcknowledgement": _NUMBER,
    f"{_API}PublishStreamResponse.EndOfStream": {
        "status": (1, "int32"),
        "block_number": (2, "uint64"),
        "proximate_block_number": (3, "uint64"),
    },
    f"{_API}PublishStreamResponse.SkipBlock": _NUMBER,
    f"{_API}PublishStreamResponse.ResendBlock": _NUMBER,
    f"{_API}PublishStreamResponse.BehindPublisher": _NUMBER,
    f"{_STREAM}BlockItem": {
        "block_header": (1, f"{_STREAM}output.BlockHeader"),
        "event_header": (2, f"{_STREAM}input.EventHeader"),
        "round_header": (3, f"{_STREAM}input.RoundHeader"),
        "signed_transaction": (4, "bytes"),
        "transaction_result": (5, f"{_STREAM}output.TransactionResult"),
        "state_changes": (7, f"{_STREAM}output.StateChanges"),
        "block_proof": (9, f"{_STREAM}BlockProof"),
        "block_footer": (12, f"{_STREAM}output.BlockFooter"),
        "redacted_item": (19, f"{_STREAM}RedactedItem"),
    },
    f"{_STREAM}output.BlockHeader": {
        "hapi_proto_version": (1, f"{_SERVICES}SemanticVersion"),
        "software_version": (2, f"{_SERVICES}SemanticVersion"),
        "number": (3, "uint64"),
        "block_timestamp": (4, f"{_SERVICES}Timestamp"),
        "hash_algorithm": (5, "int32"),
    },
    f"{_STREAM}input.RoundHeader": {"round_number": (1, "uint64")},
    f"{_STREAM}input.EventHeader": {"event_core": (1, "com.hedera.hapi.platform.event.EventCore")},
    "com.hedera.hapi.platform.event.EventCore": {
        "creator_node_id": (1, "int64"),
        "birth_round": (2, "int64"),
        "time_created": (3, f"{_SERVICES}Timestamp"),
    },
    f"{_STREAM}output.TransactionResult": {
        "status": (1, "int32"),
        "consensus_timestamp": (2, f"{_SERVICES}Timestamp"),
        "transaction_fee_charged": (5, "uint64"),
    },
    f"{_STREAM}output.StateChanges": {"consensus_timestamp": (1, f"{_SERVICES}Timestamp")},
    f"{_STREAM}output.BlockFooter": {
        "previous_block_root_hash": (1, "bytes"),
        "root_hash_of_all_block_hashes_tree": (2, "bytes"),
        "start_of_block_state_root_hash": (3, "bytes"),
    },
    f"{_STREAM}BlockProof": {"block": (1, "uint64")},
    f"{_STREAM}RedactedItem": {"item_hash": (1, "bytes"), "signed_transaction_hash": (2, "bytes")},
    f"{_SERVICES}SemanticVersion": {"major": (1, "int32"), "minor": (2, "int32"), "patch": (3, "int32")},
    f"{_SERVICES}Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
}
_ONEOFS: Final = {"PublishStreamRequest": "request", "PublishStreamResponse": "response", "BlockItem": "item"}
_METHOD: Final = "/org.hiero.block.api.BlockStreamPublishService/publishBlockStream"


class Messages(NamedTuple):
    """Classes of messages, and the path of the method that takes them."""

    request: type[Any]
    response: type[Any]
    item: type[Any]
    items: type[Any]
    method: str


def of_facts() -> Messages:
    """The messages as their names, numbers and types define them."""
    file = FileDescriptorProto(name="facts.proto", syntax="proto3", package="facts")
    for full_name, fields in _FACTS.items():
        message = file.message_type.add(name=_name(full_name))
        oneof = _ONEOFS.get(message.name)
        if oneof is not None:
            message.oneof_decl.add(name=oneof)
        for name, (number, kind) in fields.items():
            field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            if kind.startswith("*"):
                field.label = FieldDescriptorProto.LABEL_REPEATED
            if oneof is not None:
                field.oneof_index = 0
            if "." in kind:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".facts.{_name(kind)}"
            else:
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    return _messages(FileDescriptorSet(file=[file]), lambda full_name: f"facts.{_name(full_name)}", _METHOD)


def of_files(folders: list[Path], work: Path) -> Messages:
    """The messages as the reference's files define them."""
    out = work / "publish.descriptors"
    options = [*(f"-I{folder}" for folder in folders), "--include_imports", f"--descriptor_set_out={out}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, PUBLISH_FILE], check=True)
    descriptors = FileDescriptorSet.FromString(out.read_bytes())
    file = next(file for file in descriptors.file if file.name == PUBLISH_FILE)
    service = file.service[0]
    return _messages(descriptors, str, f"/{file.package}.{service.name}/{service.method[0].name}")


def folders() -> list[Path]:
    """The folders of the reference's files; none where none are named."""
    return [Path(folder) for folder in os.environ.get(PROTO_VARIABLE, "").split(os.pathsep) if folder]


def written_blocks(messages: Messages) -> list[list[Any]]:
    """Blocks that the reference wrote, from ``0.blk.gz`` on beside its files: their items."""
    files = [file for folder in folders() for file in folder.glob("*.blk.gz")]
    ordered = sorted(files, key=lambda file: int(file.name.partition(".")[0]))
    return [list(messages.items.FromString(gzip.decompress(file.read_bytes())).block_items) for file in ordered]


def block(messages: Messages, number: int) -> list[Any]:
    """The items of a block, with every kind that a consensus node writes into each of its blocks."""
    facts = of_facts().item
    time = {"seconds": 1_790_000_000 + 2 * number, "nanos": 5_000 + number}
    version = {"minor": 76, "patch": 1}
    made = [
        facts(
            block_header={
                "hapi_proto_version": version,
                "software_version": version,
                "number": number,
                "block_timestamp": time,
            }
        ),
        facts(round_header={"round_number": 7 * number + 1}),
        facts(event_header={"event_core": {"creator_node_id": 3, "birth_round": number + 1, "time_created": time}}),
        facts(signed_transaction=b"\x0a\x28" + bytes(range(40))),
        facts(transaction_result={"status": 22, "consensus_timestamp": time, "transaction_fee_charged": 84_000}),
        facts(state_changes={"consensus_timestamp": time}),
        facts(redacted_item={"item_hash": b"r" * 48}),
        facts(block_footer={"previous_block_root_hash": b"p" * 48, "start_of_block_state_root_hash": b"s" * 48}),
        facts(block_proof={"block": number}),
    ]
    return [messages.item.FromString(item.SerializeToString()) for item in made]


class Publisher:
    """A publisher's stream."""

    def __init__(self, channel: grpc.Channel, messages: Messages) -> None:
        self._messages = messages
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        open_stream = channel.stream_stream(
            messages.method,
            request_serializer=messages.request.SerializeToString,
            response_deserializer=messages.response.FromString,
        )
        self._responses = open_stream(iter(self._requests.get, None), timeout=DEADLINE)

    def items(self, *items: Message) -> None:
        """Send a set of items."""
        self._send(block_items=self._messages.items(block_items=items))

    def end(self, number: int) -> None:
        """Send the end of a block."""
        self._send(end_of_block={"block_number": number})

    def leave(self, code: int, earliest: int = 0, latest: int = 0) -> None:
        """End the stream."""
        self._send(end_stream={"end_code": code, "earliest_block_number": earliest, "latest_block_number": latest})
        self._requests.put(None)

    def block(self, number: int, items: list[Any], each: int = 4) -> None:
        """Send a block in sets of a few items."""
        for at in range(0, len(items), each):
            self.items(*items[at : at + each])
        self.end(number)

    def next(self) -> tuple[str | int, ...]:
        """The next response: its kind, and its numbers in the order of their fields; empty at the end."""
        for response in self._responses:
            kind = response.WhichOneof("response")
            value = getattr(response, kind)
            return (kind, *(getattr(value, field.name) for field in value.DESCRIPTOR.fields))
        return ()

    def acknowledged(self, number: int) -> None:
        """Read until this block is acknowledged; nothing but rising acknowledgements comes before."""
        last = -1
        while last < number:
            kind, acknowledged = self.next()
            assert kind == "acknowledgement"
            assert isinstance(acknowledged, int)
            assert last < acknowledged <= number
            last = acknowledged

    def _send(self, **request: Any) -> None:  # noqa: ANN401 - as the classes take them
        self._requests.put(self._messages.request(**request))

    def cancel(self) -> None:
        """Break the stream, as a publisher that dies does."""
        self._responses.cancel()
        self._requests.put(None)


@contextmanager
def publisher(port: int, messages: Messages) -> Iterator[Publisher]:
    """A publisher that is connected to this port."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        connected = Publisher(channel, messages)
        try:
            yield connected
        finally:
            connected.cancel()


def _messages(descriptors: FileDescriptorSet, name: Callable[[str], str], method: str) -> Messages:
    pool = DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)

    def found(full_name: str) -> type[Any]:
        cls: type[Any] = GetMessageClass(pool.FindMessageTypeByName(name(full_name)))
        return cls

    request, response = found(f"{_API}PublishStreamRequest"), found(f"{_API}PublishStreamResponse")
    return Messages(request, response, found(f"{_STREAM}BlockItem"), found(f"{_API}BlockItemSet"), method)


def _name(full_name: str) -> str:
    return full_name.rpartition(".")[2]
