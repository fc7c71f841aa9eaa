"""The typed tables: what an application makes of a block's content, with the key columns in front.

Rules:

1. The application alone knows its columns; this file adds the keys and finds each row's block by its hash.
2. An application without typed tables has ``payload``, ``events`` and ``canonical`` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.errors import ConfigurationError

from .tables import INTEGERS, PAYLOAD, PAYLOAD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from cardinal.protocols.streams.payload import Payload
    from cardinal_spark.rows import AppSpec


def typed_schemas(app: AppSpec, integers: str) -> dict[str, pa.Schema]:
    """The application's typed tables, key columns first. Empty for an application without any.

    Raises ConfigurationError where ``integers`` is no way to keep 256-bit values.
    """
    if integers not in INTEGERS:
        raise ConfigurationError(f"integers must be one of {', '.join(INTEGERS)}, not {integers!r}", setting="integers")
    del app
    return {}


def append_schemas(app: AppSpec, integers: str) -> dict[str, pa.Schema]:
    """The tables that tasks append to, in the order in which they are committed: typed tables, then payload."""
    return {**typed_schemas(app, integers), PAYLOAD: PAYLOAD_SCHEMA}


def frames(app: AppSpec, payloads: Sequence[Payload], keys: pa.Table, integers: str) -> dict[str, pa.Table]:
    """The typed rows of some blocks with distinct hashes; row i of ``keys`` is block i's."""
    del app, payloads, keys, integers
    return {}
