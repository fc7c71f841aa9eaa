"""Options of a node feed's URL: see :mod:`cardinal.config.url` for its form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from cardinal.config.options import Options
from cardinal.config.url import CREDENTIALS, Endpoint, NodeUrl, parse_node_url
from cardinal.errors import ConfigurationError
from cardinal_ethereum.chains import CHECK_NAMES, Chain

from .settings import FeedSettings, RpcSettings, StartTotal

_NUMBER = Annotated[int, Field(ge=0)]
_SECONDS = Annotated[float, Field(ge=0.001, allow_inf_nan=False)]
_HASH_BYTES: Final = 32
_SWITCHABLE: Final = frozenset(CHECK_NAMES) - {"hash"}


class NodeOptions(Options):
    """Options of all nodes: settings of :class:`.RpcSettings` or :class:`.FeedSettings` of the same names."""

    batch: PositiveInt | None = None
    """Calls in a batch; default: 500."""

    connections: PositiveInt | None = None
    """Requests in flight at once; default: 4."""

    rate: Annotated[PositiveFloat | None, Field(allow_inf_nan=False)] = None
    """Calls a second, for nodes that count them; each call of a batch is one."""

    timeout: _SECONDS | None = None
    """Seconds that one request may take; default: 30."""

    attempts: PositiveInt | None = None
    """Attempts of a request that fails with a transient error; default: 5."""

    lag: _NUMBER | None = None
    """Blocks to stay below the node's head; default: 0."""

    finality: Literal["safe", "finalized"] | None = None
    """Publish only blocks that the node calls ``safe`` or ``finalized``."""

    poll: _SECONDS | None = None
    """Seconds between two requests of the head; default: 0.5."""

    patience: Annotated[float | None, Field(ge=0)] = None
    """Seconds that a node which answered once may be unreachable before the feed fails; default: it is waited for."""

    workers: _NUMBER | None = None
    """Processes that check a backfill; default: one for each processor."""

    chain: Path | None = None
    """A TOML file that describes the chain, where it is not a known one."""

    state: bool | None = None
    """Publish the state changes of each block; the node has to trace blocks and to prove."""

    genesis: Path | None = None
    """The chain's genesis file, for the state of the first block where the node does not list it."""

    start_total: StartTotal | None = None
    """``TOTAL@HASH``: the total difficulty of the block with this hash, for a new stream that begins within 100,000
    blocks of it, where neither the node nor the chain's description supplies one."""

    unchecked: frozenset[str] | None = None
    """Checks that the chain does not satisfy, separated by commas, such as ``receipts root,bloom``; a wrong name is
    refused with all names."""

    @classmethod
    def names(cls) -> list[str]:
        """The names of all options, with those of one node."""
        return sorted((*super().names(), *CREDENTIALS))

    @field_validator("start_total", mode="before")
    @classmethod
    def _named_total(cls, value: str) -> StartTotal:
        """A total difficulty and the block that has it."""
        total, _, block_hash = value.partition("@")
        digits = block_hash.removeprefix("0x")
        try:
            named = StartTotal(int(total, 0), bytes.fromhex(digits))
        except ValueError:
            named = StartTotal(-1, b"")
        if named.total < 0 or len(named.hash) != _HASH_BYTES:
            raise ValueError("a total difficulty and the hash of the block that has it were expected, as 123@0x…")
        return named

    @field_validator("unchecked", mode="before")
    @classmethod
    def _split(cls, value: str) -> frozenset[str]:
        """Checks that the chain does not satisfy, separated by commas."""
        names = frozenset(filter(None, value.replace("+", " ").split(",")))
        if unknown := names - _SWITCHABLE:
            raise ValueError(
                f"no check that can be left out is named {min(unknown)!r}: there are {', '.join(sorted(_SWITCHABLE))}"
            )
        return names


def read_url(url: str | NodeUrl, settings: FeedSettings | None = None) -> tuple[tuple[Endpoint, ...], FeedSettings]:
    """The nodes of a URL, and the settings with its options in place of theirs.

    Raises:
        ConfigurationError: an unknown option, or one that cannot have its value.

    """
    url = parse_node_url(url)
    feed = settings or FeedSettings()
    read = NodeOptions.read(url.options, "a node's URL")
    options = {name: getattr(read, name) for name in read.model_fields_set}
    if "chain" in options:
        options["chain"] = Chain.load(options["chain"])
    if "workers" in options:
        options["worker_bytes"] = 0  # an explicit number of workers starts them, whether that pays or not
    rpc = {name: options.pop(name) for name in RpcSettings.__slots__ if name in options}
    chosen = replace(feed, rpc=replace(feed.rpc, **rpc), **options)
    if chosen.state and chosen.workers:
        raise ConfigurationError(
            "state deltas are made without worker processes, since the node's proofs take longer: leave workers out, "
            "or write 0",
            setting="workers",
        )
    return url.nodes, chosen
