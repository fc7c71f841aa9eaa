"""What a settings file holds: TOML, read and checked, and one sentence for whatever is wrong with it.

A sentence names the file, the place and what to write there. It repeats no value; a key is repeated only where it looks
like a name, since it may be a secret that was pasted into the wrong place. No secret's file is read here.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from datetime import date, datetime, time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from cardinal.errors import ConfigurationError

from .variables import stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""How streams and nodes may be called."""

_SHOWN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OPTION_DEPTH: Final = 4
_KINDS: Final = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "a table"),
    ((date, datetime, time), "a date"),
)
_WANTED: Final = MappingProxyType(
    {
        "streams": "a table",
        "nodes": "a table",
        "options": "a table",
        "members": "a list of names of streams",
        "password_file": "a path in quotes",
        "token_file": "a path in quotes",
        "url_file": "a path in quotes",
    }
)


def _url_alone(value: object) -> object:
    """``name = "URL"`` is short for a table that holds nothing else."""
    return {"url": value} if isinstance(value, str) else value


def _flat(value: object) -> object:
    """A dot in a key makes a table of it, unless it is quoted; options have dots in their names."""
    if not isinstance(value, dict):
        return value
    options: dict[str, object] = {}
    for name, option in _leaves(value, ""):
        if name in options:
            raise PydanticCustomError("option_twice", "the option {name} is given twice", {"name": name})
        options[name] = option
    return options


def _leaves(table: dict[str, object], above: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield above + name, value


class StreamSettings(BaseModel):
    """One stream of the file: a URL with what belongs to it, or the members of a mux."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: SecretStr | None = None
    members: tuple[str, ...] = ()
    user: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    options: Annotated[dict[str, str | bool | int | float], BeforeValidator(_flat)] = Field(default_factory=dict)


class NodeSettings(BaseModel):
    """One node of the file: its URL, which often is a secret as a whole, or the file that holds it; and its options.

    ``token`` or ``token_file``: what the node wants to be shown; ``header``: where, if not as a Bearer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: SecretStr | None = None
    url_file: Path | None = None
    token: SecretStr | None = None
    token_file: Path | None = None
    header: str | None = None
    options: Annotated[dict[str, str | bool | int | float], BeforeValidator(_flat)] = Field(default_factory=dict)


_Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]


class TransportSettings(BaseModel):
    """A file's streams and nodes by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    streams: dict[_Name, Annotated[StreamSettings, BeforeValidator(_url_alone)]] = Field(default_factory=dict)
    nodes: dict[_Name, Annotated[NodeSettings, BeforeValidator(_url_alone)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_are_of_one(self) -> TransportSettings:
        # Those of one stem would be overridden by the same variables of the environment.
        seen: dict[str, tuple[str, str]] = {}
        for kind, names in (("streams", self.streams), ("nodes", self.nodes)):
            for name in sorted(names):
                before, other = seen.setdefault(stem(name), (kind, name))
                if (before, other) != (kind, name):
                    one = "one name" if other == name else f"the same variables, {stem(name)}…,"
                    what = {"before": f"{before}.{other}", "name": f"{kind}.{name}", "one": one}
                    raise PydanticCustomError("name_twice", "{before} and {name} have {one}", what)
        return self


def load_settings(file: Path) -> TransportSettings:
    """Read a settings file.

    Raises:
        ConfigurationError: it cannot be read, is no TOML, or holds what cannot be used; ``setting`` names the place.

    """
    data = _toml(file)
    try:
        return TransportSettings.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = first["loc"][:_OPTION_DEPTH]  # behind an option stands which of its types was tried
        raise ConfigurationError(_sentence(file, data, place, dict(first)), setting=_shown(place)) from None


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """What a user may have meant by a name that is none."""
    names = sorted(known)
    near = difflib.get_close_matches(wrong, names, 1)
    return f"did you mean {near[0]}?" if near else f"use {', '.join(names)}" if names else "it names none"


def _toml(file: Path) -> dict[str, Any]:
    try:
        text = file.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the settings {file} cannot be read: {error.strerror}", setting="config") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the settings {file} are not UTF-8", setting="config") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Of the library's sentence only the place: it may repeat what stands there.
        found = re.search(r"\(at (line \d+, column \d+)\)$", str(error))
        where = found[1] if found else f"its end, line {len(text.splitlines())}"
        raise ConfigurationError(f"the settings {file} are no TOML: look at {where}", setting="config") from None


def _sentence(file: Path, data: Any, place: tuple[int | str, ...], error: dict[str, Any]) -> str:  # noqa: ANN401 - TOML's
    shown = _shown(place)
    match error["type"]:
        case "extra_forbidden":
            return f"there is no setting {shown} in {file}: {suggestion(str(place[-1]), _known(place[:-1]))}"
        case "string_pattern_mismatch":
            return f"{_shown(place[:2])} in {file} is no name: write letters, digits, - and _, a letter first"
        case "option_twice":
            name = _shown((error["ctx"]["name"],))
            return f"the option {name} of {_shown(place[:2])} in {file} is given twice"
        case "name_twice":
            return f"{error['msg']} in {file}: call one of them otherwise"
    *above, last = place
    for part in above:
        data = data[part]
    # An option's name may have been several tables.
    value = data[last] if not isinstance(data, dict) or last in data else dict(_leaves(data, ""))[str(last)]
    found = next((name for kind, name in _KINDS if isinstance(value, kind)), "nothing")
    return f"{shown} in {file} is {found}: write {_wanted(place)}"


def _wanted(place: tuple[int | str, ...]) -> str:
    match place:
        case (_, _):
            return "a URL in quotes, or a table"
        case (_, _, "options", _):
            return "text, a number, or true or false"
        case (*_, str(last)):
            return _WANTED.get(last, "text in quotes")
    return "text in quotes"


def _known(place: tuple[int | str, ...]) -> Iterable[str]:
    """The settings that a table may have."""
    match place:
        case ("streams", _):
            return StreamSettings.model_fields
        case ("nodes", _):
            return NodeSettings.model_fields
    return TransportSettings.model_fields


def _shown(place: tuple[int | str, ...]) -> str:
    return ".".join(part if _SHOWN.fullmatch(part) else "…" for part in map(str, place))
