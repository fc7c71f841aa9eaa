"""Environment variables that look like ours and are none: who misspells one is told, as nothing else would show it.

Rules:

1. A variable is told only where another name is near: what else begins with our prefix may be anybody's (an
   orchestrator makes ``CARDINAL_SERVICE_HOST`` of a service that is called so).
2. ``CARDINAL_NAME_URL`` names a stream or node by itself, perhaps for another command. It is told only where the
   settings file has a name like it, whose own variable is not set.
3. Names are told, never what a variable holds. One that is set to nothing is not set.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING, Final

from .variables import PREFIX, stem, variable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_STREAM: Final = ("URL", "USER", "PASSWORD", "PASSWORD_FILE")
_NODE: Final = ("URL", "URL_FILE", "TOKEN", "TOKEN_FILE", "HEADER")
_EITHER: Final = tuple(dict.fromkeys((*_STREAM, *_NODE)))
"""What is said of a stream and of a node, behind its name."""

_NAMES_ONE: Final = ("URL", "URL_FILE")
_ALONE: Final = ("CONFIG", "TOKEN", "SERVE_TOKEN", "CACHE")
_TESTS: Final = "TEST"
"""The project's own tests are told something by variables that begin so."""

_OF_ONE: Final = re.compile(f"(.+)_({'|'.join(_EITHER)})")
_NEAR_NAME: Final = 0.75
_NEAR_SETTING: Final = 0.65
"""Lower: where one letter of three is wrong, it is two thirds."""


def unknown(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that means nothing to anybody, whatever the settings file names."""
    names = (name for name in _rests(environ) if _OF_ONE.fullmatch(name) is None)
    return [_sentence(name, near) for name in names if (near := _meant(name)) is not None]


def unused(environ: Mapping[str, str], streams: Iterable[str], nodes: Iterable[str]) -> list[str]:
    """A sentence for each variable that would say something of a stream or node, and does not.

    Arguments:
        environ: the variables.
        streams: the names of those that the settings file has.
        nodes: the same.

    """
    filed = {_stem(name): _STREAM for name in streams} | {_stem(name): _NODE for name in nodes}
    given = [found.groups() for name in _rests(environ) if (found := _OF_ONE.fullmatch(name))]
    alone = {one for one, setting in given if setting in _NAMES_ONE and one not in filed}
    said: list[str] = []
    for one, setting in given:
        if one in filed:
            if setting not in filed[one]:
                there = ", ".join(f"{PREFIX}{one}_{other}" for other in filed[one])
                said.append(f"{PREFIX}{one}_{setting} is set and not used: there are {there}")
            continue
        others = [other for other, settings in filed.items() if setting in settings and (other, setting) not in given]
        if one not in alone:
            others += [other for other in alone if (other, setting) not in given]
        elif setting not in _NAMES_ONE:
            continue
        near = get_close_matches(one, others, 1, _NEAR_NAME)
        if near:
            said.append(_sentence(f"{one}_{setting}", f"{near[0]}_{setting}", alone=one in alone))
        elif one not in alone and (names := get_close_matches(f"{one}_{setting}", _ALONE, 1, _NEAR_NAME)):
            said.append(_sentence(f"{one}_{setting}", names[0]))
    return said


def _rests(environ: Mapping[str, str]) -> list[str]:
    """What stands behind our prefix, of the variables that are no others of ours."""
    names = [name.removeprefix(PREFIX) for name in sorted(environ) if name.startswith(PREFIX)]
    return [
        one for one in names if one not in _ALONE and not one.startswith(_TESTS) and variable(PREFIX + one, environ)
    ]


def _meant(name: str) -> str | None:
    """The nearest name that there is, or that there would be of some stream or node."""
    if name in _EITHER:
        return f"NAME_{name}"
    if near := get_close_matches(name, _ALONE, 1, _NEAR_NAME):
        return near[0]
    cuts = [match.start() for match in re.finditer("_", name)]
    likely = [
        (SequenceMatcher(None, name[at + 1 :], setting).ratio(), f"{name[:at]}_{setting}")
        for at in cuts
        for setting in _EITHER
    ]
    ratio, whole = max(likely, default=(0.0, ""))
    return whole if ratio >= _NEAR_SETTING else None


def _stem(name: str) -> str:
    return stem(name).removeprefix(PREFIX).removesuffix("_")


def _sentence(name: str, near: str, *, alone: bool = False) -> str:
    what = "names a stream or node that is not in the settings" if alone else "is set and not used"
    return f"{PREFIX}{name} {what}: did you mean {PREFIX}{near}?"
