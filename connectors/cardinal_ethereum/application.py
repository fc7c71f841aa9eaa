"""Application of an Ethereum-like chain: paths, topics, fork choice.

Paths carry the chain id in hex, topics in decimal, like the reference producer's
(``connectors/cardinal_ethereum/docs/application.md``; the evm cases of the conformance vectors). Parameters of single
chains: :mod:`.chains`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from cardinal.apps.base import REORG_THRESHOLD, Application
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload

from .chains import CHAINS, Chain, chain_of
from .selection import OPTIONS, selection
from .times import header_time

__all__ = [
    "CHAINS",
    "OPTIONS",
    "Chain",
    "EvmApplication",
    "application",
    "chain_of",
    "selection",
]

_MICROSECONDS: Final = 1_000_000


class EvmApplication(Application):
    """Application of an Ethereum-like chain."""

    counted: ClassVar[tuple[str, ...]] = ("transactions",)

    @property
    def chain_id(self) -> int:
        """The chain's id."""
        return int(self.chain.removeprefix("evm:"))

    def time_of(self, payload: Payload) -> float | None:
        """Time in the block's header, in seconds since 1970 (:mod:`.times`)."""
        header = payload.updates.get(f"{self._block(payload)}/h")
        if header is None or (time := header_time(header)) is None:
            return None
        seconds, rest = divmod(time, _MICROSECONDS)
        return time / _MICROSECONDS if rest else seconds

    def counts(self, payload: Payload) -> Mapping[str, int]:
        """The number of the block's transactions."""
        transactions = f"{self._block(payload)}/t/"
        return {"transactions": sum(path.startswith(transactions) for path in payload.updates)}

    def verifier(self, chain: Path | None = None) -> Callable[[Payload], None]:
        """Check of hash, roots and content (:func:`.checks.published.verify_payload`)."""
        from .checks.published import verify_payload  # noqa: PLC0415 - needs the extra evm

        found = chain_of(self.chain_id) if chain is None else Chain.load(chain)
        if found.chain_id != self.chain_id:
            raise ConfigurationError(
                f"{chain} describes chain {found.chain_id}, and the stream is of chain {self.chain_id}", setting="chain"
            )
        return partial(verify_payload, chain=found)

    def _block(self, payload: Payload) -> str:
        return f"c/{self.chain_id:x}/b/{payload.hash.hex()}"


def application(
    *, chain_id: int | None = None, chain: str = "", topic: str | None = None, reorg_threshold: int = REORG_THRESHOLD
) -> EvmApplication:
    """Application of an Ethereum-like chain.

    Arguments:
        chain_id: as in EIP-155, 1 or more; default mainnet.
        chain: instead of the id, a name such as ``sepolia`` (:data:`.chains.CHAINS`).
        topic: default topic, and prefix of the others; default ``cardinal-<chain id>``.
        reorg_threshold: in blocks.

    Raises:
        ConfigurationError: the chain or topic cannot be used.

    """
    chain_id = _chain_id(chain_id, chain)
    base = topic or f"cardinal-{chain_id}"
    root = f"c/{chain_id:x}"
    block = f"{root}/b/[0-9a-z]+"
    topics = {
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
    }
    # Some chains publish state-sync transactions under paths of their own (br/, bl/).
    apart = chain_of(chain_id).state_sync
    names = {
        "blocks": (f"{block}/h", f"{block}/d", f"{block}/w", f"{block}/u/", f"{root}/n/"),
        "headers": (f"{block}/h", f"{block}/d"),
        "transactions": (f"{block}/t/",),
        "receipts": (f"{block}/r/", *([f"{block}/br/"] if apart else [])),
        "logs": (f"{block}/l/", *([f"{block}/bl/"] if apart else [])),
        "withdrawals": (f"{block}/w",),
        "uncles": (f"{block}/u/",),
        "finality": (f"{root}/n/",),
        "state": (f"{root}/a/", f"{root}/s"),
        "code": (f"{root}/c/",),
    }
    return EvmApplication(
        name="evm",
        chain=f"evm:{chain_id}",
        default_topic=base,
        topics=topics,
        reorg_threshold=reorg_threshold,
        prefixes=(*topics, f"{block}/br/", f"{block}/bl/") if apart else (),
        sub_batches=(f"{root}/s",),
        # The safe and finalized blocks advance while a block is being published: two honest producers differ.
        volatile_paths=(f"^{root}/n/safe$", f"^{root}/n/finalized$"),
        finality_paths=(f"{root}/n/safe", f"{root}/n/finalized"),
        names=names,
    )


def _chain_id(chain_id: int | None, name: str) -> int:
    """The chain's id, by id or by name."""
    if name:
        found = next((known.chain_id for known in CHAINS.values() if known.name == name), None)
        if found is None or chain_id not in (None, found):
            known = ", ".join(sorted(each.name for each in CHAINS.values()))
            raise ConfigurationError(
                f"there is no chain {name!r} with this id; choose one of {known}, or pass the chain_id alone",
                setting="chain",
            )
        return found
    if chain_id is None:
        return 1
    if chain_id < 1:
        raise ConfigurationError(f"a chain id is 1 or more, not {chain_id}", setting="chain_id")
    return chain_id
