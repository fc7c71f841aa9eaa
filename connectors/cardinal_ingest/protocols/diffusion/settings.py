"""Settings of object diffusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cardinal.errors import ConfigurationError
from cardinal_ingest.protocols.cbor import WORD_16, WORD_32

IDS_IN_A_REQUEST: Final = 130
"""Ids of full width that fit into a request's 5,760 bytes."""


@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """Settings of both sides; the windows of a client must not exceed those of its servers (O10).

    Attributes:
        max_unacked: ids announced and not acknowledged. Twice as many requests may be in flight (O14).
        ids_per_request: ids in one request.
        objects_per_request: objects in one request.
        reply_limit: bytes of a reply with several objects, CBOR included (O8).
        max_object_bytes: bytes of one object; a larger one is reported and not fetched.
        peer_bytes: bytes of objects in flight per peer; one larger object alone is allowed (O17).
        total_bytes: bytes in flight of all peers, without an object that is larger than ``peer_bytes``.
        poll_interval: seconds until ids are requested again of a peer that has no further ones, while an
            earlier one keeps the request from being a blocking one.

    """

    max_unacked: int = 50
    ids_per_request: int = 50
    objects_per_request: int = 10
    reply_limit: int = 2_500_000
    max_object_bytes: int = 131_072_000
    peer_bytes: int = 5_000_000
    total_bytes: int = 20_000_000
    poll_interval: float = 0.25

    def __post_init__(self) -> None:
        for name, most in (
            ("max_unacked", WORD_16),
            ("ids_per_request", WORD_16),
            ("objects_per_request", IDS_IN_A_REQUEST),
            ("max_object_bytes", WORD_32),
        ):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigurationError(f"set {name} between 1 and {most}", setting=name)
        if self.total_bytes < self.peer_bytes:
            raise ConfigurationError("set total_bytes to peer_bytes or more", setting="total_bytes")
