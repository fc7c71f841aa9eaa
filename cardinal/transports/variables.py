"""Environment variables: how they are called, and what counts as set.

One that is set to nothing is not set: compose files make such ones of ``${NAME:-}``, and templates of a missing value.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "CARDINAL_"
"""How every variable of ours begins."""

_OTHER: Final = re.compile(r"[^A-Z0-9]")


def variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """What a variable says; None where it is not set, or to nothing. ``environ``: None: that of this process."""
    return (os.environ if environ is None else environ).get(name) or None


def stem(name: str) -> str:
    """How the variables of a stream or node begin."""
    return f"{PREFIX}{_OTHER.sub('_', name.upper())}_"


@dataclass(frozen=True, slots=True)
class Variables:
    """What the environment says of one stream or node."""

    name: str
    environ: Mapping[str, str]

    def named(self, what: str) -> str:
        """The variable for a setting, such as ``URL``."""
        return stem(self.name) + what

    def get(self, what: str) -> str | None:
        """What that variable says."""
        return variable(self.named(what), self.environ)
