"""Advice for a block that failed a check: what can help, what ``unchecked`` would skip, and what is lost then."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cardinal_ethereum.chains import Chain

LOST: Final = MappingProxyType(
    {
        "transaction hashes": "the node's transaction hashes are compared with nothing",
        "transactions root": "transactions are held to their own hashes, which nothing ties to the header",
        "receipts": "a receipt may be of another transaction",
        "receipts root": "receipts and logs are held to the bloom and the gas alone",
        "bloom": "logs are held to the root of the receipts alone",
        "log indexes": "the node's log indexes are compared with nothing",
        "gas": "the receipts' gas is held to their root alone",
        "contracts": "the addresses of created contracts are the node's claim",
        "withdrawals root": "withdrawals are the node's claim",
        "uncles hash": "uncles are the node's claim",
    }
)
"""The loss by check, where it is skipped. The hash is never skipped."""

_NEVER: Final = (
    "unchecked would skip the roots, never the hash, without which nothing proves header, transactions, receipts "
    "and logs"
)


def advice(failed: str, chain: Chain | None = None) -> str:
    """Remedy for a block that failed this check on its chain; part of a sentence."""
    if failed in LOST:
        return (
            "use another node, or retry later; where every node returns it so, the chain makes it otherwise: "
            f"unchecked={failed} skips the check, and then {LOST[failed]}"
        )
    if chain is not None and chain.foreign_hashes:
        return refusal_of(chain)
    return (
        "use another node, or another release of Cardinal if the header has fields that this one does not know; where "
        "every node returns it so, the chain makes its hashes otherwise than Ethereum and cannot be published: "
        f"{_NEVER}"
    )


def refusal_of(chain: Chain) -> str:
    """The reason for which a chain with hashes of its own is not published; part of a sentence."""
    return (
        f"{chain.name} makes its block hashes otherwise than Ethereum ({chain.foreign_hashes}), so no node's blocks "
        f"can be verified and the chain cannot be published: {_NEVER}"
    )
