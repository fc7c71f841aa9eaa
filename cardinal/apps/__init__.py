"""What a payload means on a chain. An application is data; :mod:`cardinal.apps.evm` is one.

An application never touches a transport.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from cardinal.errors import ConfigurationError

from .base import Application

__all__ = ["Application", "get"]

_APPLICATIONS = {"evm": "cardinal.apps.evm.chains"}
"""Name to the module whose ``application(**presets)`` makes it; imported only when asked for."""


def get(name: str, **presets: Any) -> Application:  # noqa: ANN401 -- each application has presets of its own
    """The application called ``name`` with its presets.

    Arguments:
        name: "evm" for Ethereum-like chains.
        presets: what the application takes; "evm" takes ``chain_id`` (default 1), ``topic`` (default
            ``cardinal-<chain id>``) and ``reorg_threshold``.

    Raises:
        ConfigurationError: there is no such application, or it does not take these presets.

    """
    module = _APPLICATIONS.get(name)
    if module is None:
        known = ", ".join(sorted(_APPLICATIONS))
        raise ConfigurationError(f"there is no application {name!r}; choose one of: {known}", setting="app")
    factory: Callable[..., Application] = import_module(module).application
    try:
        signature(factory).bind(**presets)
    except TypeError as error:
        raise ConfigurationError(f"the application {name!r} has no such preset: {error}", setting="app") from None
    return factory(**presets)
