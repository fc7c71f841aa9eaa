"""Handlers: a user's class that applies chain updates and stores their cursors.

The same class is tested by the fault kit (:mod:`cardinal_devkit.faultkit`) and run by ``cardinal run``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from cardinal.protocols.streams.events import ChainUpdate

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["Handler", "HandlerFactory", "close_handler", "load_factory"]


class Handler(Protocol):
    """Handler of chain updates. It may have a method `close()`, called before the process ends normally.

    ``handle`` stores an update's data and its cursor in one transaction: a process that is killed at any moment resumes
    with the next update.
    """

    def handle(self, update: ChainUpdate) -> None:
        """Apply an update, and store its cursor."""
        ...

    def cursor(self) -> str | None:
        """The stored cursor; None before the first."""
        ...


HandlerFactory: TypeAlias = "Callable[[Path], Any]"
"""Class or function that opens a handler, with the directory of its data."""


def load_factory(name: str, folder: str | Path) -> HandlerFactory:
    """The factory that ``package.module:Name`` or ``file.py:Name`` names, from ``folder`` or an installed package.

    Raises:
        ImportError: the name has no colon, or the file is no Python file. The import itself may raise anything.

    """
    path, colon, attribute = name.rpartition(":")
    if not colon:
        raise ImportError(f"{name} names no handler: write package.module:Name, or file.py:Name")
    sys.path.insert(0, str(folder))
    value: Any = _load_file(Path(folder, path)) if path.endswith(".py") else importlib.import_module(path)
    for part in attribute.split("."):
        value = getattr(value, part)
    factory: HandlerFactory = value
    return factory


def close_handler(handler: object) -> None:
    """Close a handler, if it has that method."""
    close = getattr(handler, "close", None)
    if close is not None:
        close()


def _load_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module
