"""Errors of ingest nodes and of their protocols."""

from __future__ import annotations

from cardinal.errors import CardinalError, ConfigurationError, RemoteProtocolError


class TopicSettingError(ConfigurationError):
    """A topic of an ingest cluster has a setting on which it cannot rely.

    ``topic`` and ``setting`` name it; ``found`` is its value, ``needed`` the one that it must have.
    """

    def __init__(self, message: str, *, topic: str, setting: str, found: str, needed: str) -> None:
        super().__init__(message, setting=setting)
        self.topic = topic
        self.found = found
        self.needed = needed


class ViolationError(RemoteProtocolError):
    """A peer broke a rule of its protocol: its link ends, and no other.

    ``violation`` is the rule's name in the protocol, ``reason`` describes the offending input.
    """

    def __init__(self, violation: str, reason: str) -> None:
        super().__init__(f"close the link: the peer broke the protocol ({violation}): {reason}")
        self.violation = violation
        self.reason = reason


class StateDivergedError(RemoteProtocolError):
    """A majority of the cluster signed a batch over another state: this node is wrong. ``num`` is the batch's number.

    ``expected`` is the digest of the majority's state, ``found`` that of this node's.
    """

    def __init__(self, message: str, *, num: int, expected: bytes, found: bytes) -> None:
        super().__init__(message)
        self.num = num
        self.expected = expected
        self.found = found


class ClaimLogDivergedError(RemoteProtocolError):
    """The claim log is not the one that this node has read: recreated, truncated or reordered at ``offset``."""

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class ForeignMarkerError(RemoteProtocolError):
    """Another cluster promotes blocks to the same topics. ``cluster`` is its identity."""

    def __init__(self, message: str, *, cluster: bytes) -> None:
        super().__init__(message)
        self.cluster = cluster


class StoreError(CardinalError):
    """The store of an ingest node cannot be read or written: the disk is full, or another process changed it."""

    retriable = True
    peer = "disk"


class VerifierError(CardinalError):
    """A worker process of an ingest node ended; the block that it verified has no verdict."""

    retriable = True
