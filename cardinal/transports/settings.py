"""Streams by name: a TOML file, environment variables, secrets from files.

::

    [streams.main]
    url = "kafka://one:9092,two:9092?tls=1&sasl.mechanism=SCRAM-SHA-512"
    user = "alice"
    password_file = "/run/secrets/kafka"

    [streams.main.options]
    "compression.type" = "lz4"
    "cardinal.partitions" = 12

    [streams.copy]
    url = "file:///var/lib/cardinal"

    [streams.moving]
    members = ["main", "64=new"]      # a mux of other streams of this file

The environment goes before the file: ``CARDINAL_MAIN_URL``, ``CARDINAL_MAIN_USER``, ``CARDINAL_MAIN_PASSWORD`` and
``CARDINAL_MAIN_PASSWORD_FILE`` for the stream ``main`` (in capitals, ``_`` for what is no letter or digit). A stream
may be named by the environment alone.

Rules:

1. The environment is an argument. Nothing is connected to, and no secret read from a file, before a transport is
   opened.
2. No error repeats a value: it names the file, the stream and the setting.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from cardinal.errors import ConfigurationError

from .address import TransportUrl
from .parsing import mux_of, parse_url

_PREFIX: Final = "CARDINAL_"
_OTHER: Final = re.compile(r"[^A-Z0-9]")
_NUMBERED: Final = re.compile(r"(?:(\d{1,9})=)?(.+)")
_NAME: Final = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"


class StreamSettings(BaseModel):
    """One stream of the file: a URL with what belongs to it, or the members of a mux."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: SecretStr | None = None
    members: tuple[str, ...] = ()
    user: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    options: dict[str, str | int] = Field(default_factory=dict)


class TransportSettings(BaseModel):
    """A file's streams by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    streams: dict[Annotated[str, Field(pattern=_NAME)], StreamSettings] = Field(default_factory=dict)

    def url(self, name: str, environ: Mapping[str, str]) -> TransportUrl:
        """The URL of a stream.

        Arguments:
            name: of the stream.
            environ: environment variables.

        Raises:
            ConfigurationError: there is no such stream, or it is given in a way that cannot work.

        """
        return self._url(name, environ, ())

    def _url(self, name: str, environ: Mapping[str, str], above: tuple[str, ...]) -> TransportUrl:
        def variable(what: str) -> str | None:
            return environ.get(f"{_PREFIX}{_OTHER.sub('_', name.upper())}_{what}")

        stream = self.streams.get(name)
        text = variable("URL")
        if stream is None:
            if text is None:
                known = ", ".join(sorted(self.streams)) or "none"
                raise ConfigurationError(f"no stream is called {name!r} (the settings name: {known})", setting="url")
            stream = StreamSettings()
        if stream.members and text is None:
            return self._mux(name, stream, environ, above)
        if text is None and stream.url is not None:
            text = stream.url.get_secret_value()
        if text is None:
            raise ConfigurationError(f"the stream {name!r} has neither url nor members", setting=f"streams.{name}")
        url = parse_url(text)
        options = {**url.options, **{option: str(value) for option, value in stream.options.items()}}
        user, password, file = variable("USER"), variable("PASSWORD"), variable("PASSWORD_FILE")
        if password is None and file is None:
            password = None if stream.password is None else stream.password.get_secret_value()
            file = None if stream.password_file is None else str(stream.password_file)
        if password is not None and file is not None:
            raise ConfigurationError(
                f"the password of the stream {name!r} is given in two ways: as text or by a file", setting="password"
            )
        if file is not None:
            options["password_file"] = file
        return replace(
            url,
            user=user or stream.user or url.user,
            password=password if password is not None else None if file is not None else url.password,
            options=MappingProxyType(options),
        )

    def _mux(
        self, name: str, stream: StreamSettings, environ: Mapping[str, str], above: tuple[str, ...]
    ) -> TransportUrl:
        if stream.url is not None or stream.options or name in above:
            raise ConfigurationError(
                f"the stream {name!r} has members, so it has no url and no options, and is no member of itself",
                setting=f"streams.{name}",
            )
        members: list[tuple[int | None, TransportUrl]] = []
        for member in stream.members:
            found = _NUMBERED.fullmatch(member)
            number, other = found.groups() if found else (None, member)
            members.append((None if number is None else int(number), self._url(other, environ, (*above, name))))
        return mux_of(members)


def load_settings(file: Path) -> TransportSettings:
    """Read a settings file.

    Raises:
        ConfigurationError: it cannot be read, is no TOML, or holds what cannot be used; ``setting`` names the place.

    """
    try:
        data = tomllib.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the settings {file} cannot be read: {error.strerror}", setting="config") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the settings {file} are not UTF-8", setting="config") from None
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at .*\)$", str(error))
        raise ConfigurationError(
            f"the settings {file} are no TOML {where.group() if where else ''}".rstrip(), setting="config"
        ) from None
    try:
        return TransportSettings.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False)[0]
        # A key may be a pasted secret: only what looks like a name is repeated.
        place = ".".join(
            part if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", part) else "…" for part in map(str, first["loc"])
        )
        raise ConfigurationError(
            f"the settings {file} cannot be used: {place}: {first['msg']}", setting=place
        ) from None


def find_url(text: str, config: Path | None, environ: Mapping[str, str]) -> TransportUrl:
    """The URL for what a user wrote: a URL, or the name of a stream of the settings file or the environment.

    Raises:
        ConfigurationError: it is neither.

    """
    if re.fullmatch(_NAME.strip("^$"), text):
        settings = TransportSettings() if config is None else load_settings(config)
        if config is not None or f"{_PREFIX}{_OTHER.sub('_', text.upper())}_URL" in environ:
            return settings.url(text, environ)
    return parse_url(text)
