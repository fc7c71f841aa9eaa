"""What a development chain is made from, and how a ``dev://`` URL says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from cardinal.errors import ConfigurationError, WrongChainError
from cardinal.testing.forks import ForkSettings

CHAIN_ID: Final = 1337
FORM: Final = "dev://?seed=1&blocks=48&reorg-rate=0.15&rate=4"

_DIFFICULTY: Final = 1 << 20
_MAX_CHAIN_ID: Final = (1 << 53) - 1
"""The largest number that every JSON reader keeps."""

_MAX_TRANSACTIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class DevSettings:
    """A development chain. Equal settings give equal bytes.

    Attributes:
        seed: everything random comes from it.
        blocks: number of the last block of the chain in the end.
        reorg_rate: the chance that a step is a reorg, 0 to 1; 0 is a chain without any.
        max_depth: the most blocks that one reorg removes.
        transactions: the most in a block.
        chain_id: as in EIP-155.
        merged: no difficulty, withdrawals and finality marks, as after Ethereum's merge: only longer chains win.

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


def settings_from_url(url: str, *, chain_id: int | None = None) -> tuple[DevSettings, float]:
    """The settings and the rate (blocks a second, 0 for as fast as they are taken) that a ``dev://`` URL names.

    Arguments:
        url: options are ``seed``, ``blocks``, ``reorg-rate``, ``max-depth``, ``transactions``, ``chain-id``,
            ``merged`` (0 or 1) and ``rate``; every one has a default.
        chain_id: the chain's id where the URL names none.

    Raises:
        ConfigurationError: an option that is unknown, named twice, no number, or out of its bounds.
        WrongChainError: the URL names another chain id.

    """
    options = _options(url)
    seed, blocks = _integer(options, "seed", DEFAULTS.seed), _integer(options, "blocks", DEFAULTS.blocks)
    rate = _number(options, "rate", 0.0)
    if not 0 <= rate < float("inf"):
        raise ConfigurationError(f"rate must be 0 or more blocks a second, not {rate}", setting="rate")
    merged = _integer(options, "merged", 0)
    if merged not in (0, 1):
        raise ConfigurationError(f"merged must be 0 or 1, not {merged}", setting="merged")
    named = _integer(options, "chain-id", chain_id or CHAIN_ID)
    if chain_id is not None and named != chain_id:
        raise WrongChainError(
            f"this development chain has the id {named}, and {chain_id} is asked for: change chain-id in its URL"
        )
    settings = DevSettings(
        seed=seed,
        blocks=blocks,
        reorg_rate=_number(options, "reorg-rate", DEFAULTS.reorg_rate),
        max_depth=_integer(options, "max-depth", DEFAULTS.max_depth),
        transactions=_integer(options, "transactions", DEFAULTS.transactions),
        chain_id=named,
        merged=merged == 1,
    )
    return settings, rate


_KNOWN: Final = ("seed", "blocks", "reorg-rate", "max-depth", "rate", "transactions", "chain-id", "merged")


def _options(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    if parts.fragment:
        name = parts.fragment.partition("=")[0]
        raise ConfigurationError(
            f"a development chain has no option {name[:20]!r}, as nodes have: it has a seed and options, {FORM}",
            setting="from",
        )
    if parts.scheme != "dev" or parts.netloc or parts.path.strip("/"):
        raise ConfigurationError(
            f"a development chain has a seed and options, and no host or path: {FORM}", setting="from"
        )
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigurationError(f"an option of this development chain is named twice: {FORM}", setting="from")
    if unknown := sorted(options.keys() - set(_KNOWN)):
        raise ConfigurationError(
            f"{unknown[0]!r} is no option of a development chain; there are {', '.join(sorted(_KNOWN))}",
            setting=unknown[0],
        )
    return options


def _integer(options: dict[str, str], name: str, default: int) -> int:
    try:
        return int(options[name]) if name in options else default
    except ValueError:
        raise ConfigurationError(f"{name} must be an integer, not {options[name]!r}", setting=name) from None


def _number(options: dict[str, str], name: str, default: float) -> float:
    try:
        return float(options[name]) if name in options else default
    except ValueError:
        raise ConfigurationError(f"{name} must be a number, not {options[name]!r}", setting=name) from None
