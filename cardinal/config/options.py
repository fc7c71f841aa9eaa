"""Option models: each option is a field, unknown ones are refused with the nearest name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NEAR = 0.7


def nearest(wrong: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The remedy for a name that does not exist: the nearest one in any case, or all of them.

    Arguments:
        wrong: the written name.
        known: the existing names.
        otherwise: the remedy where none is near; None lists them.

    """
    names = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(wrong.lower(), names, 1, _NEAR)
    return f"did you mean {names[near[0]]}?" if near else otherwise or f"use {', '.join(names.values()) or 'none'}"


def sentence(message: str) -> str:
    """A pydantic message as a part of our sentences."""
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


class Options(BaseModel):
    """Options of a URL: one field each, described by the docstring after it.

    The option has the field's name, with dots for underscores, unless the field has an alias. Errors contain names of
    options and never their values, which may be secrets.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_by_name=True,
        validate_by_alias=True,
        alias_generator=lambda name: name.replace("_", "."),
        use_attribute_docstrings=True,
    )

    @classmethod
    def names(cls) -> list[str]:
        """The names of all options."""
        return sorted(field.alias or name for name, field in cls.model_fields.items())

    @classmethod
    def read(cls, options: Mapping[str, str], what: str) -> Self:
        """Check options.

        Arguments:
            options: by name, as text.
            what: the owner of the options, for errors, such as ``file:// URLs``.

        Raises:
            ConfigurationError: an unknown option, or one that cannot have its value; ``setting`` names it.

        """
        try:
            return cls.model_validate(dict(options), by_alias=True, by_name=False)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            name = str(first["loc"][0])
            if first["type"] == "extra_forbidden":
                message = f"there is no option {name} of {what}: {nearest(name, cls.names())}"
            else:
                message = f"the option {name} of {what} cannot be used: {sentence(first['msg'])}"
            raise ConfigurationError(message, setting=name) from None
