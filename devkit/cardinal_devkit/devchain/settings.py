"""Settings of a development chain, and the options of a ``dev://`` URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import parse_qsl

from pydantic import ConfigDict, Field

from cardinal.config.options import Options
from cardinal.config.url import NodeUrl, parse_node_url
from cardinal.errors import ConfigurationError, WrongChainError
from cardinal_devkit.testing.forks import ForkSettings

CHAIN_ID: Final = 1337
FORM: Final = "dev://?seed=1&blocks=48&reorg-rate=0.15&rate=4"

_DIFFICULTY: Final = 1 << 20
_MAX_CHAIN_ID: Final = (1 << 53) - 1
"""The largest number that every JSON parser represents exactly."""

_MAX_TRANSACTIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class DevSettings:
    """A development chain. Equal settings give equal bytes.

    Attributes:
        seed: seed of all random values.
        blocks: number of the last block of the final chain.
        reorg_rate: the probability that a step is a reorg, 0 to 1.
        max_depth: the most blocks that one reorg removes.
        transactions: the most in a block.
        chain_id: as in EIP-155.
        merged: no difficulty, withdrawals and finality, as after Ethereum's merge: only longer chains win.

    Raises:
        ConfigurationError: a value out of its bounds; ``setting`` names it.

    """

    seed: int = 1
    blocks: int = 48
    reorg_rate: float = 0.15
    max_depth: int = 6
    transactions: int = 6
    chain_id: int = CHAIN_ID
    merged: bool = False

    def __post_init__(self) -> None:
        _ = self.forks
        for name, value, low, high in (
            ("transactions", self.transactions, 0, _MAX_TRANSACTIONS),
            ("chain-id", self.chain_id, 1, _MAX_CHAIN_ID),
        ):
            if not low <= value <= high:
                raise ConfigurationError(f"{name} must be {low} to {high}, not {value}", setting=name)

    @property
    def forks(self) -> ForkSettings:
        """The script of heads that this chain plays."""
        return ForkSettings(
            self.seed, self.blocks, self.reorg_rate, self.max_depth, difficulty=0 if self.merged else _DIFFICULTY
        )


DEFAULTS: Final = DevSettings()


class DevOptions(Options):
    """Options of a ``dev://`` URL: those of :class:`DevSettings`, and ``rate``."""

    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"))

    seed: int = DEFAULTS.seed
    """Seed of the chain; the same options give the same blocks: publish more of a chain with `--stop`."""

    blocks: int = DEFAULTS.blocks
    """Number of the last block."""

    reorg_rate: float = DEFAULTS.reorg_rate
    """Probability that a step is a reorg, 0 to 1."""

    max_depth: int = DEFAULTS.max_depth
    """Most blocks that a reorg removes."""

    transactions: int = DEFAULTS.transactions
    """Most transactions in a block."""

    chain_id: int | None = None
    """Chain id; default: 1337."""

    merged: bool = DEFAULTS.merged
    """Blocks as after the merge: without difficulty, with withdrawals and finality."""

    rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Blocks a second; 0 for as fast as they are consumed."""


def settings_from_url(url: str | NodeUrl, *, chain_id: int | None = None) -> tuple[DevSettings, float]:
    """The settings and the rate (blocks a second, 0 for as fast as they are consumed) of a ``dev://`` URL.

    Arguments:
        url: ``dev://?seed=…&blocks=…``; see :class:`DevOptions`. Every option has a default.
        chain_id: the chain's id where the URL has none.

    Raises:
        ConfigurationError: an option that is unknown, given twice, or out of its bounds.
        WrongChainError: the URL has another chain id.

    """
    url = parse_node_url(url)
    parts = url.nodes[0].parts
    if len(url.nodes) > 1 or parts.netloc or parts.path.strip("/"):
        raise ConfigurationError(f"a development chain has options only, no host or path: write {FORM}", setting="from")
    pairs = [*parse_qsl(parts.query, keep_blank_values=True), *url.options.items()]
    if len(dict(pairs)) < len(pairs):
        raise ConfigurationError(f"an option of this development chain is given twice: write {FORM}", setting="from")
    options = DevOptions.read(dict(pairs), "dev:// URLs").model_dump()
    rate, named = options.pop("rate"), options.pop("chain_id")
    if named is None:
        named = CHAIN_ID if chain_id is None else chain_id
    if chain_id is not None and named != chain_id:
        raise WrongChainError(
            f"this development chain has the id {named}, and {chain_id} is required: change chain-id in its URL"
        )
    return DevSettings(chain_id=named, **options), rate
