from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Body(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, items: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("header", "proof", "content")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    header: Header
    proof: Proof
    content: Content
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., content: _Optional[_Union[Content, _Mapping]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("number", "hash", "parent", "weight", "chain_id")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    number: int
    hash: bytes
    parent: bytes
    weight: bytes
    chain_id: int
    def __init__(self, number: _Optional[int] = ..., hash: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., weight: _Optional[bytes] = ..., chain_id: _Optional[int] = ...) -> None: ...

class Content(_message.Message):
    __slots__ = ("path", "value", "delete", "sub_batch")
    PATH_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    SUB_BATCH_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    value: bytes
    delete: bool
    sub_batch: bytes
    def __init__(self, path: _Optional[bytes] = ..., value: _Optional[bytes] = ..., delete: _Optional[bool] = ..., sub_batch: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("number", "digest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    digest: bytes
    def __init__(self, number: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...
