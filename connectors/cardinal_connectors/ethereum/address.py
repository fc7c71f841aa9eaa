"""Options of a node feed's URL: see :mod:`cardinal.config.url` for its form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from cardinal.apps.evm.chains import CHECK_NAMES, Chain
from cardinal.config.options import Options
from cardinal.config.url import CREDENTIALS, Endpoint, NodeUrl, parse_node_url
from cardinal.errors import ConfigurationError

from .settings import FeedSettings, RpcSettings

_NUMBER = Annotated[int, Field(ge=0)]
_SECONDS = Annotated[float, Field(ge=0.001, allow_inf_nan=False)]
_SWITCHABLE: Final = frozenset(CHECK_NAMES) - {"hash"}


class NodeOptions(Options):
    """Options of all nodes: settings of :class:`.RpcSettings` or :class:`.FeedSettings` of the same names."""

    batch: PositiveInt | None = None
    connections: PositiveInt | None = None
    rate: Annotated[PositiveFloat | None, Field(allow_inf_nan=False)] = None
    timeout: _SECONDS | None = None
    attempts: PositiveInt | None = None
    lag: _NUMBER | None = None
    finality: Literal["safe", "finalized"] | None = None
    poll: _SECONDS | None = None
    patience: Annotated[float | None, Field(ge=0)] = None
    workers: _NUMBER | None = None
    chain: Path | None = None
    state: bool | None = None
    genesis: Path | None = None
    unchecked: frozenset[str] | None = None

    @classmethod
    def names(cls) -> list[str]:
        """The names of all options, with those of one node."""
        return sorted((*super().names(), *CREDENTIALS))

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
    read = NodeOptions.read(url.options, "nodes, behind #")
    given = {name: getattr(read, name) for name in read.model_fields_set}
    if "chain" in given:
        given["chain"] = Chain.load(given["chain"])
    if "workers" in given:
        given["worker_bytes"] = 0  # an explicit number of workers starts them, whether that pays or not
    rpc = {name: given.pop(name) for name in RpcSettings.__slots__ if name in given}
    chosen = replace(feed, rpc=replace(feed.rpc, **rpc), **given)
    if chosen.state and chosen.workers:
        raise ConfigurationError(
            "state deltas are made without worker processes, since the node's proofs take longer: leave workers out, "
            "or write 0",
            setting="workers",
        )
    return url.nodes, chosen
