from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishStreamRequest(_message.Message):
    __slots__ = ("block_items", "end_stream", "end_of_block")
    BLOCK_ITEMS_FIELD_NUMBER: _ClassVar[int]
    END_STREAM_FIELD_NUMBER: _ClassVar[int]
    END_OF_BLOCK_FIELD_NUMBER: _ClassVar[int]
    block_items: BlockItemSet
    end_stream: EndStream
    end_of_block: BlockEnd
    def __init__(self, block_items: _Optional[_Union[BlockItemSet, _Mapping]] = ..., end_stream: _Optional[_Union[EndStream, _Mapping]] = ..., end_of_block: _Optional[_Union[BlockEnd, _Mapping]] = ...) -> None: ...

class BlockItemSet(_message.Message):
    __slots__ = ("block_items",)
    BLOCK_ITEMS_FIELD_NUMBER: _ClassVar[int]
    block_items: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, block_items: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BlockEnd(_message.Message):
    __slots__ = ("block_number",)
    BLOCK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    block_number: int
    def __init__(self, block_number: _Optional[int] = ...) -> None: ...

class EndStream(_message.Message):
    __slots__ = ("end_code", "earliest_block_number", "latest_block_number")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[EndStream.Code]
        RESET: _ClassVar[EndStream.Code]
        TIMEOUT: _ClassVar[EndStream.Code]
        ERROR: _ClassVar[EndStream.Code]
        TOO_FAR_BEHIND: _ClassVar[EndStream.Code]
    UNKNOWN: EndStream.Code
    RESET: EndStream.Code
    TIMEOUT: EndStream.Code
    ERROR: EndStream.Code
    TOO_FAR_BEHIND: EndStream.Code
    END_CODE_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_BLOCK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LATEST_BLOCK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    end_code: EndStream.Code
    earliest_block_number: int
    latest_block_number: int
    def __init__(self, end_code: _Optional[_Union[EndStream.Code, str]] = ..., earliest_block_number: _Optional[int] = ..., latest_block_number: _Optional[int] = ...) -> None: ...

class PublishStreamResponse(_message.Message):
    __slots__ = ("acknowledgement", "end_stream", "skip_block", "resend_block", "node_behind_publisher")
    ACKNOWLEDGEMENT_FIELD_NUMBER: _ClassVar[int]
    END_STREAM_FIELD_NUMBER: _ClassVar[int]
    SKIP_BLOCK_FIELD_NUMBER: _ClassVar[int]
    RESEND_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NODE_BEHIND_PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    acknowledgement: BlockNumber
    end_stream: EndOfStream
    skip_block: BlockNumber
    resend_block: BlockNumber
    node_behind_publisher: BlockNumber
    def __init__(self, acknowledgement: _Optional[_Union[BlockNumber, _Mapping]] = ..., end_stream: _Optional[_Union[EndOfStream, _Mapping]] = ..., skip_block: _Optional[_Union[BlockNumber, _Mapping]] = ..., resend_block: _Optional[_Union[BlockNumber, _Mapping]] = ..., node_behind_publisher: _Optional[_Union[BlockNumber, _Mapping]] = ...) -> None: ...

class BlockNumber(_message.Message):
    __slots__ = ("block_number",)
    BLOCK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    block_number: int
    def __init__(self, block_number: _Optional[int] = ...) -> None: ...

class EndOfStream(_message.Message):
    __slots__ = ("status", "block_number", "proximate_block_number")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[EndOfStream.Code]
        SUCCESS: _ClassVar[EndOfStream.Code]
        INVALID_REQUEST: _ClassVar[EndOfStream.Code]
        ERROR: _ClassVar[EndOfStream.Code]
        TIMEOUT: _ClassVar[EndOfStream.Code]
        DUPLICATE_BLOCK: _ClassVar[EndOfStream.Code]
        BAD_BLOCK_PROOF: _ClassVar[EndOfStream.Code]
        PERSISTENCE_FAILED: _ClassVar[EndOfStream.Code]
    UNKNOWN: EndOfStream.Code
    SUCCESS: EndOfStream.Code
    INVALID_REQUEST: EndOfStream.Code
    ERROR: EndOfStream.Code
    TIMEOUT: EndOfStream.Code
    DUPLICATE_BLOCK: EndOfStream.Code
    BAD_BLOCK_PROOF: EndOfStream.Code
    PERSISTENCE_FAILED: EndOfStream.Code
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROXIMATE_BLOCK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    status: EndOfStream.Code
    block_number: int
    proximate_block_number: int
    def __init__(self, status: _Optional[_Union[EndOfStream.Code, str]] = ..., block_number: _Optional[int] = ..., proximate_block_number: _Optional[int] = ...) -> None: ...
