"""Applications: the meaning of payloads on a chain. An application is data and never touches a transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Final

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload

from .base import Application, read_toml
from .selection import Selection, SelectionOption

__all__ = ["NAMES", "Application", "block_time", "get", "load", "selection", "selection_options"]

_APPLICATIONS = {"blob": "cardinal.apps.blob", "evm": "cardinal.apps.evm.application", "items": "cardinal.apps.items"}
"""Name to the module whose ``application(**presets)`` makes it; imported on first use."""

_SELECTIONS = {"evm": "cardinal.apps.evm.selection"}
"""Name to the module with the options by which the application selects parts of blocks."""

_MICROSECONDS: Final = 1_000_000

NAMES = tuple(sorted(_APPLICATIONS))
"""The applications that :func:`get` knows."""


def get(name: str, **presets: Any) -> Application:  # noqa: ANN401 -- each application has presets of its own
    """The application called ``name`` with its presets.

    Arguments:
        name: "evm" for Ethereum-like chains, "blob" for blocks of keys and values, "items" for blocks of opaque items.
        presets: arguments of the application; "evm" takes ``chain_id`` (default 1) or ``chain`` (a name), ``topic``
            (default ``cardinal-<chain id>``) and ``reorg_threshold``.

    Raises:
        ConfigurationError: there is no such application, or it has no such preset.

    """
    module = _APPLICATIONS.get(name)
    if module is None:
        known = ", ".join(sorted(_APPLICATIONS))
        raise ConfigurationError(
            f"there is no application {name!r}; choose one of: {known}; or pass an Application of your own",
            setting="app",
        )
    chain_id = presets.get("chain_id")
    if chain_id is not None and (isinstance(chain_id, bool) or not isinstance(chain_id, int)):
        raise ConfigurationError(f"chain_id must be a number, not {type(chain_id).__name__}", setting="chain_id")
    factory: Callable[..., Application] = import_module(module).application
    try:
        signature(factory).bind(**presets)
    except TypeError as error:
        raise ConfigurationError(f"the application {name!r} has no such preset: {error}", setting="app") from None
    return factory(**presets)


def load(file: Path | str) -> Application:
    """Read an application from a TOML file: with the key ``app``, its name and presets; else every attribute.

        app = "evm"                  |   name = "ours"
        chain = "sepolia"            |   chain = "ours:1"
        topic = "our-sepolia"        |   default_topic = "ours"
                                     |   [topics]
                                     |   "k/[0-9]+/" = "ours-keys"

    Raises:
        ConfigurationError: the file cannot be read, is no TOML, or holds what cannot work.

    """
    data = read_toml(Path(file))
    if "app" not in data:
        return Application.model_validate(data)
    name = data.pop("app")
    try:
        return get(name, **data)
    except TypeError as error:
        raise ConfigurationError(f"the application file {file} cannot be used: {error}", setting="app") from None


def selection_options(name: str) -> tuple[SelectionOption, ...]:
    """Options by which an application selects parts of blocks; none of one that is unknown, or has none."""
    if name not in _SELECTIONS:
        return ()
    options: tuple[SelectionOption, ...] = import_module(_SELECTIONS[name]).OPTIONS
    return options


def selection(name: str, values: Mapping[str, Sequence[str]]) -> Selection:
    """The selection that values of an application's options make. ConfigurationError: one cannot be used."""
    made: Selection = import_module(_SELECTIONS[name]).selection(values)
    return made


def block_time(app: Application, payload: Payload) -> float | None:
    """Time of a block by its own content, in seconds since 1970, whole ones as ``int``.

    None where its application or payload has none, or one that no calendar has.
    """
    if app.name != "evm":
        return None
    path = f"c/{int(app.chain.removeprefix('evm:')):x}/b/{payload.hash.hex()}/h"
    if (header := payload.updates.get(path)) is None:
        return None
    from .evm.times import header_time  # noqa: PLC0415 - of one application

    if (time := header_time(header)) is None:
        return None
    seconds, rest = divmod(time, _MICROSECONDS)
    return time / _MICROSECONDS if rest else seconds
