"""Status of a gRPC call, and its trailers."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping


class Code(IntEnum):
    """Status codes of gRPC, by its names and numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A call ended with a status that is not OK.

    Attributes:
        code: the status.
        details: a sentence.

    """

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details


def trailers(code: Code, details: str = "") -> list[tuple[str, str]]:
    """The trailers of a status; details are percent-encoded."""
    message = [("grpc-message", quote(details, safe=" !#$&'()*+,/:;=?@"))] if details else []
    return [("grpc-status", str(int(code))), *message]


def error_of(headers: Mapping[str, str]) -> RpcError | None:
    """The error that trailers name; None for OK. A status without a number is UNKNOWN, as gRPC has it."""
    status = headers.get("grpc-status", "")
    number = int(status) if status.isascii() and status.isdigit() else int(Code.UNKNOWN)
    if number == Code.OK:
        return None
    code = Code(number) if number in set(Code) else Code.UNKNOWN
    return RpcError(code, unquote(headers.get("grpc-message", "")))
