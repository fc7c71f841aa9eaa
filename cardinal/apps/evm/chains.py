"""Which Ethereum-like chains there are, and how any of them travels: paths, topics, fork choice.

Paths carry the chain id in hex, topics in decimal, as the reference's producer writes them (facts, EVM application
layer; the evm cases of the conformance vectors).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from cardinal.apps.base import REORG_THRESHOLD, Application
from cardinal.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Chain:
    """What a chain's blocks do not say about themselves.

    Attributes:
        chain_id: as in EIP-155.
        name: for people.
        final_total_difficulty: the total difficulty at which proof of work ended and stays for ever; None where
            Cardinal does not know it.

    """

    chain_id: int
    name: str
    final_total_difficulty: int | None = None


CHAINS = MappingProxyType(
    {
        chain.chain_id: chain
        for chain in (
            # The totals that were reached, not the thresholds of the fork rule: nodes answered with these as long as
            # they served the field, and the reference's producer falls back to the same two numbers.
            Chain(1, "mainnet", 58_750_003_716_598_352_816_469),
            Chain(11_155_111, "sepolia", 17_000_018_015_853_232),
            # Merged at genesis, whose difficulty is 1.
            Chain(17_000, "holesky", 1),
            Chain(560_048, "hoodi", 1),
        )
    }
)
"""The chains with presets; every other chain works with the node's own totals."""

MERGED_AT_GENESIS = 1
"""Total difficulty of a merged chain that has no preset and whose node does not say (the reference's fall-back)."""


def chain_of(chain_id: int) -> Chain:
    """The presets of a chain, or a nameless chain without any."""
    return CHAINS.get(chain_id) or Chain(chain_id, f"chain {chain_id}")


def application(*, chain_id: int = 1, topic: str | None = None, reorg_threshold: int = REORG_THRESHOLD) -> Application:
    """How an Ethereum-like chain travels.

    Arguments:
        chain_id: as in EIP-155, 1 or more.
        topic: the default topic and the beginning of the others; default ``cardinal-<chain id>``.
        reorg_threshold: in blocks.

    Raises:
        ConfigurationError: the chain id or topic cannot be used.

    """
    if chain_id < 1:
        raise ConfigurationError(f"a chain id is 1 or more, not {chain_id}", setting="chain_id")
    base = topic or f"cardinal-{chain_id}"
    root = f"c/{chain_id:x}"
    block = f"{root}/b/[0-9a-z]+"
    return Application(
        name="evm",
        chain=f"evm:{chain_id}",
        default_topic=base,
        topics={
            f"{root}/a/": f"{base}-state",
            f"{root}/s": f"{base}-state",
            f"{root}/c/": f"{base}-code",
            f"{block}/h": f"{base}-block",
            f"{block}/d": f"{base}-block",
            f"{block}/w": f"{base}-block",
            f"{block}/u/": f"{base}-block",
            f"{root}/n/": f"{base}-block",
            f"{block}/t/": f"{base}-tx",
            f"{block}/r/": f"{base}-receipt",
            f"{block}/l/": f"{base}-logs",
        },
        reorg_threshold=reorg_threshold,
        # What a node calls safe or finalized moves while a block is being published: two honest producers differ.
        volatile_paths=(f"^{root}/n/safe$", f"^{root}/n/finalized$"),
        finality_paths=(f"{root}/n/safe", f"{root}/n/finalized"),
    )
