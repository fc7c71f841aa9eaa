"""Commands whose modules are imported when they are used: help and completion of names load none of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["Deferred"]


@dataclass(frozen=True, slots=True)
class Deferred:
    """Value of an entry point of the group ``cardinal.commands``, in a module that imports nothing else.

    Attributes:
        summary: first sentence of the command's help.
        target: ``module:name`` of the command of click.

    """

    summary: str
    target: str

    def load(self) -> click.Command:
        """The command. MissingExtraError: its module needs an extra that is not installed."""
        module, _, name = self.target.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command
