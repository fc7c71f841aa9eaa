"""Secrets from files and environment variables.

An option with the suffix ``_file`` names the file that holds its value (UTF-8, without one newline at its end). It is
read when a transport is opened, or connects. The text of a secret is never part of an error.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.config.url import TransportUrl

_SUFFIX: Final = "_file"
_PASSWORD: Final = "password"  # noqa: S105 - an option's name
_SIZE_MAX: Final = 64 << 10


def variable(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """An environment variable; None where it is not set, or empty, as templates leave missing values.

    Arguments:
        name: the variable's.
        environ: variables; None: those of this process.

    """
    return (os.environ if environ is None else environ).get(name) or None


def with_secrets(url: TransportUrl) -> TransportUrl:
    """The URL with the current content of its files, for a transport that is being opened.

    Raises:
        ConfigurationError: a file cannot be read or is empty, or the secret is given twice.

    """
    options, password = dict(url.options), url.password
    for name in [name for name in options if name.endswith(_SUFFIX)]:
        secret = read_secret(Path(options.pop(name)), name)
        proper = name.removesuffix(_SUFFIX)
        if proper in options or (proper == _PASSWORD and password is not None):
            raise ConfigurationError(f"{proper} is given twice: leave {name} or the other out", setting=name)
        if proper == _PASSWORD:
            password = secret
        else:
            options[proper] = secret
    return replace(url, password=password, options=MappingProxyType(options))


def check_secrets(url: TransportUrl) -> None:
    """Check early that the files of a URL, and of a mux's members, can be read; raises as :func:`with_secrets`."""
    for each in (url, *(member for _, member in url.members)):
        with_secrets(each)


def read_secret(path: Path, setting: str) -> str:
    """The content of a secret's file. ConfigurationError names the file and the setting."""
    try:
        data = path.expanduser().read_bytes()
        text = data[: _SIZE_MAX + 1].decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ConfigurationError(
            f"the file {path} of {setting} cannot be read: {error.strerror}", setting=setting
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the file {path} of {setting} is not UTF-8 text", setting=setting) from None
    if not text or len(data) > _SIZE_MAX:
        raise ConfigurationError(f"the file {path} of {setting} is empty or too large for a secret", setting=setting)
    return text
