"""Applications: the meaning of payloads on a chain. An application is data and never touches a transport.

An application is an entry point of the group ``cardinal.applications``: a module with ``application(**presets)``. One
whose blocks can be selected from by options also has ``OPTIONS`` and ``selection`` (:mod:`.selection`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from cardinal import plugins
from cardinal.errors import ConfigurationError

from .base import Application, read_toml
from .selection import Selection, SelectionOption

__all__ = ["DEFAULT", "Application", "get", "load", "names", "selection", "selection_options"]

DEFAULT: Final = "evm"
"""The application of a command or consumer that names none."""

_OWN: Final = MappingProxyType({"blob": "cardinal.apps.blob"})
"""Modules of the core's own applications; others are entry points of the group ``cardinal.applications``."""


def names() -> tuple[str, ...]:
    """The applications that :func:`get` knows, sorted."""
    return tuple(sorted({*_OWN, *plugins.names(plugins.APPLICATIONS)}))


def get(name: str, **presets: Any) -> Application:  # noqa: ANN401 -- each application has presets of its own
    """The application called ``name`` with its presets.

    Arguments:
        name: one of :func:`names`, such as "evm" for Ethereum-like chains, or "blob" for blocks of keys and values.
        presets: arguments of the application. All take ``chain_id``, ``topic`` (default ``<name>-<chain id>``, of "evm"
            ``cardinal-<chain id>``) and ``reorg_threshold``.

    Raises:
        ConfigurationError: there is no such application, or it has no such preset.

    """
    if (module := _module(name)) is None:
        raise ConfigurationError(
            f"there is no application {name!r}; choose one of: {', '.join(names())}; or pass an Application of "
            "your own",
            setting="app",
        )
    chain_id = presets.get("chain_id")
    if chain_id is not None and (isinstance(chain_id, bool) or not isinstance(chain_id, int)):
        raise ConfigurationError(f"chain_id must be a number, not {type(chain_id).__name__}", setting="chain_id")
    factory: Callable[..., Application] = module.application
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
        name = data.get("name")
        kind = type(get(name)) if name in names() else Application  # its times, counts and check are the kind's
        return kind.model_validate(data)
    name = data.pop("app")
    try:
        return get(name, **data)
    except TypeError as error:
        raise ConfigurationError(f"the application file {file} cannot be used: {error}", setting="app") from None


def selection_options(name: str) -> tuple[SelectionOption, ...]:
    """Options by which an application selects parts of blocks; none of one that is unknown, or has none."""
    return getattr(_module(name), "OPTIONS", ())


def selection(name: str, values: Mapping[str, Sequence[str]]) -> Selection:
    """The selection that values of an application's options make. ConfigurationError: one cannot be used."""
    made: Selection = cast("Any", _module(name)).selection(values)
    return made


def _module(name: str) -> Any:  # noqa: ANN401 -- a module is known by contract only
    """Module of an application; None where there is none."""
    if name in _OWN:
        return import_module(_OWN[name])
    return plugins.load(plugins.APPLICATIONS, name) if name in plugins.names(plugins.APPLICATIONS) else None
