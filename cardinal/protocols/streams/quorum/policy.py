"""Which copies of a block's messages count: what a consumer may ask for.

``first`` takes the first copy of every message (:mod:`.reassembler`), ``quorum:k`` the blocks on which k producers of a
list agree (:mod:`.reassembler`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cardinal.errors import ConfigurationError

_DIGITS_MAX: Final = 4


def parse_policy(policy: str) -> int | None:
    """How many producers have to agree: None for ``first``, k for ``quorum:k``.

    Raises:
        ConfigurationError: it is neither.

    """
    if policy == "first":
        return None
    name, _, k = policy.partition(":")
    if name != "quorum" or not (k.isascii() and k.isdigit()) or len(k) > _DIGITS_MAX or int(k) < 1:
        raise ConfigurationError(
            f"the policy {policy!r} is not known: use 'first', or 'quorum:k' with k producers that have to agree",
            setting="policy",
        )
    return int(k)


def check_quorum(k: int, producers: Sequence[str]) -> None:
    """ConfigurationError where k of these producers cannot agree."""
    if not producers or not all(producers) or len(set(producers)) < len(producers):
        raise ConfigurationError(
            "a quorum needs the ids of the producers that count, each once and none of them empty", setting="producers"
        )
    if not 1 <= k <= len(producers):
        raise ConfigurationError(
            f"a quorum of {k} cannot be had of {len(producers)} producers: choose 1 to {len(producers)}",
            setting="policy",
        )
