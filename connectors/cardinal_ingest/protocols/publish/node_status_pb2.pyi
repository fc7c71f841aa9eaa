from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ServerStatusResponse(_message.Message):
    __slots__ = ("first_available_block", "last_available_block", "only_latest_state", "next_expected_block")
    FIRST_AVAILABLE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LAST_AVAILABLE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ONLY_LATEST_STATE_FIELD_NUMBER: _ClassVar[int]
    NEXT_EXPECTED_BLOCK_FIELD_NUMBER: _ClassVar[int]
    first_available_block: int
    last_available_block: int
    only_latest_state: bool
    next_expected_block: int
    def __init__(self, first_available_block: _Optional[int] = ..., last_available_block: _Optional[int] = ..., only_latest_state: _Optional[bool] = ..., next_expected_block: _Optional[int] = ...) -> None: ...
