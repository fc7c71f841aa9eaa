"""Secrets that a URL names by a file: ``password_file=PATH``, ``ssl.key.password_file=PATH``.

What the file holds (UTF-8, one newline at its end left out) takes the place of the option without ``_file``. The text
of a secret is never part of an error.

Files are read when a transport is opened, and again where a transport connects anew (websocket) or is refused (Kafka),
because secrets are changed while clients run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from .address import TransportUrl

_SUFFIX: Final = "_file"
_PASSWORD: Final = "password"  # noqa: S105 - an option's name
_SIZE_MAX: Final = 64 << 10


def with_secrets(url: TransportUrl) -> TransportUrl:
    """The URL with what its files hold now, also where they were read before.

    Raises:
        ConfigurationError: a file cannot be read or is empty, or the secret is given in two ways.

    """
    if url.members:
        return replace(url, members=tuple((first, with_secrets(member)) for first, member in url.members))
    named = [name for name in url.options if name.endswith(_SUFFIX)]
    if not named:
        return read_again(url) or url
    options = dict(url.options)
    password = url.password
    for name in named:
        secret = read_secret(Path(options.pop(name)), name)
        proper = name.removesuffix(_SUFFIX)
        if proper in options or (proper == _PASSWORD and password is not None):
            raise ConfigurationError(f"{proper} is given in two ways: leave {name} out, or the other", setting=name)
        if proper == _PASSWORD:
            password = secret
        else:
            options[proper] = secret
    return replace(url, password=password, options=MappingProxyType(options), unread=url)


def read_again(url: TransportUrl) -> TransportUrl | None:
    """The URL with what its files hold now; None where it names none, or one of them cannot be read just now.

    A file that is being replaced may be away or empty for a moment.
    """
    if url.unread is None:
        return None
    try:
        return with_secrets(url.unread)
    except ConfigurationError:
        return None


def read_secret(path: Path, setting: str) -> str:
    """What a file of a secret holds. ConfigurationError names the file and the setting."""
    try:
        data = path.expanduser().read_bytes()
        text = data[: _SIZE_MAX + 1].decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ConfigurationError(
            f"the file {path} of {setting} cannot be read: {error.strerror}", setting=setting
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the file {path} of {setting} does not hold text", setting=setting) from None
    if not text or len(data) > _SIZE_MAX:
        raise ConfigurationError(f"the file {path} of {setting} is empty, or too large for a secret", setting=setting)
    return text
