"""The `cardinal` command. One file per command: arguments and printing only."""

from .main import main

__all__ = ["main"]
