"""A node feed's URL: one or several nodes, and options behind ``#``, which no node ever sees.

    https://one#token_file=/run/secrets/one,ws://two:8546#lag=2&rate=50

Rules:

1. How nodes and options are divided says :mod:`cardinal.transports.node_url`.
2. Options of all nodes are those of :data:`OPTIONS`, behind the last of them; what one node is shown stands behind it
   (:mod:`.credentials`). Another one is refused with the names that there are.
3. No error repeats more of the URL than scheme, host and port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from cardinal.apps.evm.chains import CHECK_NAMES, Chain
from cardinal.errors import ConfigurationError
from cardinal.transports.node_url import OWN, NodeUrl, options_of_all, split_nodes

from .settings import FeedSettings, RpcSettings

_Value = TypeVar("_Value", int, float)


def read_url(url: str, settings: FeedSettings | None = None) -> tuple[list[str], FeedSettings]:
    """The nodes of a URL, each with what it is shown behind its ``#``, and the settings with the other options.

    Raises:
        ConfigurationError: an option that there is not, or a value that it cannot have.

    """
    nodes = split_nodes(url)
    if any(node.others for node in nodes[:-1]):
        raise ConfigurationError(
            f"behind # of a node that is not the last there may be {', '.join(OWN)}, which are its own: write the "
            "others behind the last",
            setting="from",
        )
    feed = settings or FeedSettings()
    rpc: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, text in options_of_all(url):
        if name not in OPTIONS:
            raise ConfigurationError(
                f"a node's URL has no option {name!r}: after # there may be {', '.join(sorted((*OPTIONS, *OWN)))}",
                setting=name,
            )
        of_rpc, read = OPTIONS[name]
        (rpc if of_rpc else own)[name] = read(name, text)
    if "workers" in own:
        own["worker_bytes"] = 0  # who says how many wants them, whether they pay or not
    asked: RpcSettings = replace(feed.rpc, **rpc)
    chosen = replace(feed, rpc=asked, **own)
    if chosen.state and chosen.workers:
        raise ConfigurationError(
            "state deltas are made without worker processes, since the node's proofs take longer: leave workers out, "
            "or write 0",
            setting="workers",
        )
    return [str(NodeUrl(node.url, node.own)) for node in nodes], chosen


def _number(kind: Callable[[str], _Value], least: _Value) -> Callable[[str, str], _Value]:
    def read(name: str, text: str) -> _Value:
        try:
            value = kind(text)
        except ValueError:
            value = least - 1
        if not value >= least:
            raise ConfigurationError(f"{name} is a number from {least} on, not {text[:20]!r}", setting=name)
        return value

    return read


def _rate(name: str, text: str) -> float:
    rate = _number(float, 0.0)(name, text)
    if not rate:
        raise ConfigurationError("rate is a number of calls a second, above 0", setting=name)
    return rate


def _finality(name: str, text: str) -> str:
    if text not in ("safe", "finalized"):
        raise ConfigurationError(f"finality is safe or finalized, not {text[:20]!r}", setting=name)
    return text


def _yes(name: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ConfigurationError(f"{name} is yes or no, not {text[:20]!r}", setting=name)
    return text == "yes"


def _chain(_: str, text: str) -> Chain:
    return Chain.load(Path(text))


def _file(name: str, text: str) -> Path:
    if not text:
        raise ConfigurationError(f"{name} is the path of a file", setting=name)
    return Path(text)


def _left_out(name: str, text: str) -> frozenset[str]:
    """Checks that the chain does not satisfy, divided by commas."""
    names = frozenset(filter(None, text.replace("+", " ").split(",")))
    switchable = set(CHECK_NAMES) - {"hash"}
    if unknown := names - switchable:
        raise ConfigurationError(
            f"no check that can be left out is named {min(unknown)!r}: there are {', '.join(sorted(switchable))}",
            setting=name,
        )
    return names


OPTIONS: Final[Mapping[str, tuple[bool, Callable[[str, str], Any]]]] = MappingProxyType(
    {
        "batch": (True, _number(int, 1)),
        "connections": (True, _number(int, 1)),
        "rate": (True, _rate),
        "timeout": (True, _number(float, 0.001)),
        "attempts": (True, _number(int, 1)),
        "lag": (False, _number(int, 0)),
        "finality": (False, _finality),
        "poll": (False, _number(float, 0.001)),
        "patience": (False, _number(float, 0.0)),
        "workers": (False, _number(int, 0)),
        "chain": (False, _chain),
        "state": (False, _yes),
        "genesis": (False, _file),
        "unchecked": (False, _left_out),
    }
)
"""Every option of all nodes: whether it belongs to how a node is asked, and how its text is read."""
