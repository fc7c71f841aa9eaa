"""Streams and nodes by name: a TOML file and environment variables.

::

    [streams.main]
    url = "kafka://one:9092,two:9092?tls=1&sasl.mechanism=SCRAM-SHA-512"
    user = "alice"
    password_file = "/run/secrets/kafka"

    [streams.main.options]
    compression.type = "lz4"
    cardinal.partitions = 12

    [streams]
    copy = "file:///var/lib/cardinal"

    [streams.moving]
    members = ["main", "64=new"]      # a mux of other streams of this file

    [nodes.mainnet]
    url_file = "/run/secrets/node"    # or url = "wss://…"
    token_file = "/run/secrets/token" # header = "X-Api-Key" where the node does not accept a Bearer token
    options = { state = true, lag = 2 }

``CARDINAL_MAIN_URL``, ``_USER``, ``_PASSWORD`` and ``_PASSWORD_FILE`` are the variables of the stream ``main`` (in
capitals, ``_`` for any other character than a letter or digit), ``CARDINAL_MAINNET_URL``, ``_URL_FILE``, ``_TOKEN``,
``_TOKEN_FILE`` and ``_HEADER`` those of a node. The environment alone may define a stream or node. ``CARDINAL_CONFIG``
names the default file. An empty variable counts as not set.

Rules:

1. Precedence: variables, then a URL of the environment, then the file's table, then the table's URL.
2. No connection is made, and no password or token read from its file, before the stream or node is opened.
3. An error contains no value: it names the file and the setting, or the variable.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

from cardinal.config.options import nearest, sentence
from cardinal.config.secrets import read_secret, variable
from cardinal.config.url import (
    Endpoint,
    NodeUrl,
    TransportUrl,
    check_text,
    mux_of,
    numbered,
    parse_node_url,
    parse_url,
)
from cardinal.errors import ConfigurationError

CONFIG_VARIABLE: Final = "CARDINAL_CONFIG"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_SHOWN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.*", re.DOTALL)
_FORMS: Final = MappingProxyType({"stream": "kafka://host:port", "node": "scheme://host:port"})


# --- the file --------------------------------------------------------------------------------------------------------


def _url_alone(value: object) -> object:
    """Expand ``name = "URL"`` to a table with only that URL."""
    if isinstance(value, str):
        return {"url": value}
    if not isinstance(value, dict):
        raise ValueError("write a URL in quotes, or a table")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


def _flat(value: object) -> object:
    """Options as text with dotted names: TOML parses the dots to tables, and has numbers and booleans."""
    if not isinstance(value, dict):
        return value
    leaves = list(_leaves(value, ""))
    options = dict(leaves)
    if len(options) < len(leaves):
        raise ValueError("an option is given twice")
    return options


def _leaves(table: dict[str, object], above: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield above + name, text if isinstance(value, str | bool | int | float) else value


_Options = Annotated[dict[str, str], BeforeValidator(_flat), Field(default_factory=dict)]


class _Table(BaseModel):
    """Settings by name; secrets are not in ``repr``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def given(self) -> dict[str, str]:
        """The text settings."""
        texts = {name: getattr(self, name) for name in type(self).model_fields if name not in {"members", "options"}}
        return {
            name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            for name, value in texts.items()
            if value is not None
        }


class StreamSettings(_Table):
    """One stream of the file: a URL and its login and options, or the members of a mux."""

    url: SecretStr | None = None
    members: tuple[str, ...] = ()
    user: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    options: _Options


class NodeSettings(_Table):
    """One node of the file: its URL, often a secret itself, or the file that holds it; and its options.

    ``header`` carries the token where the node does not accept it as a Bearer token.
    """

    url: SecretStr | None = None
    url_file: Path | None = None
    token: SecretStr | None = None
    token_file: Path | None = None
    header: str | None = None
    options: _Options


_Name = Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]


class Settings(_Table):
    """A file's streams and nodes by name."""

    streams: dict[_Name, Annotated[StreamSettings, BeforeValidator(_url_alone)]] = Field(default_factory=dict)
    nodes: dict[_Name, Annotated[NodeSettings, BeforeValidator(_url_alone)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _variables_are_of_one(self) -> Settings:
        seen: dict[str, str] = {}
        for name in (*(f"streams.{name}" for name in self.streams), *(f"nodes.{name}" for name in self.nodes)):
            stem = _stem(name.partition(".")[2])
            if (other := seen.setdefault(stem, name)) != name:
                raise ValueError(f"{other} and {name} have the same variables, {stem}…: rename one of them")
        return self


def load_settings(file: Path) -> Settings:
    """Read a settings file.

    Raises:
        ConfigurationError: it cannot be read, is not TOML, or has a setting that cannot work; ``setting`` names it.

    """
    try:
        data = tomllib.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the settings {file} cannot be read: {error.strerror}", setting="config") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the settings {file} are not UTF-8", setting="config") from None
    except tomllib.TOMLDecodeError as error:
        # Only the position: the rest of the library's message may repeat a value.
        match = re.search(r"\(at (.*)\)$", str(error))
        position = match[1] if match else "end of document"
        raise ConfigurationError(
            f"the settings {file} are not TOML: correct them at {position}", setting="config"
        ) from None
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise _refusal(file, dict(error.errors(include_input=False)[0])) from None


def _refusal(file: Path, error: Mapping[str, Any]) -> ConfigurationError:
    """Error for pydantic's first finding. It repeats no key that may be a misplaced secret."""
    loc = tuple(map(str, error["loc"]))
    setting = ".".join(part if _SHOWN.fullmatch(part) else "…" for part in loc if part != "[key]")
    if error["type"] == "extra_forbidden":
        tables: Mapping[str, type[_Table]] = {"streams": StreamSettings, "nodes": NodeSettings}
        table = tables.get(loc[0], Settings)
        message = f"there is no setting {setting} in {file}: {nearest(loc[-1], table.model_fields)}"
    elif error["type"] == "string_pattern_mismatch":
        message = f"{setting} in {file} is not a name: write letters, digits, - and _, a letter first"
    else:
        message = f"{f'{setting} in ' if setting else ''}{file}: {sentence(error['msg'])}"
    return ConfigurationError(message, setting=setting or "config")


# --- names -----------------------------------------------------------------------------------------------------------


def find_url(
    text: str | TransportUrl, config: Path | str | None = None, environ: Mapping[str, str] | None = None
) -> TransportUrl:
    """The URL of a stream, from a URL or the name of a stream of the settings file or the environment.

    Arguments:
        text: a URL or a name; a parsed URL passes through.
        config: the settings file; None: the one that ``CARDINAL_CONFIG`` names, if any.
        environ: environment variables; None: those of this process.

    Raises:
        ConfigurationError: it is neither, or its settings cannot work.

    """
    if isinstance(text, TransportUrl):
        return text
    check_text(text)
    names = _Names.read(text, config, environ)
    return parse_url(text) if names is None else names.stream(text)


def find_node(
    text: str | NodeUrl, config: Path | str | None = None, environ: Mapping[str, str] | None = None
) -> NodeUrl:
    """The URL of a feed, from a URL or the name of a node, or names of several nodes separated by commas.

    Arguments as for :func:`find_url`. Several nodes have the same options, but each its own credentials.

    Raises:
        ConfigurationError: an unknown name, settings that cannot work, or the file of the URL cannot be read.

    """
    if isinstance(text, NodeUrl):
        return text
    check_text(text)
    several = text.split(",")
    if len(several) > 1 and all(map(_NAME.fullmatch, several)):
        urls = [find_node(name, config, environ) for name in several]
        other = next((name for name, url in zip(several, urls, strict=True) if url.options != urls[0].options), None)
        if other is not None:
            raise ConfigurationError(
                f"the nodes {several[0]!r} and {other!r} have different options: give them the same",
                setting=f"nodes.{other}",
            )
        return NodeUrl(tuple(node for url in urls for node in url.nodes), urls[0].options)
    names = _Names.read(text, config, environ)
    return parse_node_url(text) if names is None else names.node(text)


@dataclass(frozen=True, slots=True)
class _Names:
    """The streams and nodes of a file, and the environment."""

    settings: Settings
    environ: Mapping[str, str]
    file: Path | None

    @classmethod
    def read(cls, text: str, config: Path | str | None, environ: Mapping[str, str] | None) -> _Names | None:
        """The layers for looking up a name; None for a URL. A file that the caller names is always checked."""
        environ = os.environ if environ is None else environ
        is_name = _NAME.fullmatch(text) is not None
        if config is None and is_name:
            config = variable(CONFIG_VARIABLE, environ)
        file = None if config is None else Path(config)
        settings = Settings() if file is None else load_settings(file)
        return cls(settings, environ, file) if is_name else None

    def stream(self, name: str, above: tuple[str, ...] = ()) -> TransportUrl:
        """The URL of a stream. ``above``: the muxes that it is a member of."""
        table = self.settings.streams.get(name)
        variables = self._variables(name, StreamSettings)
        if table is None and "url" not in variables:
            raise self._unknown("stream", name, self.settings.streams)
        table = table or StreamSettings(options={})
        file = table.given()
        if "url" in variables:
            url = _parsed(variables["url"], f"{_stem(name)}URL")
            scheme = _SCHEME.fullmatch(file.get("url", ""))
            if scheme is not None and scheme[1].lower() != url.scheme:
                file = {}  # the login of another transport
            merged = url.with_defaults(table.options)
            layers = [variables, _login(url), file]
        elif table.members:
            return self._mux(name, table, above)
        elif "url" in file:
            url = _parsed(file["url"], f"streams.{name}.url in {self.file}")
            merged = url.with_options(table.options)
            layers = [variables, file, _login(merged)]
        else:
            raise ConfigurationError(f"the stream {name!r} has neither url nor members", setting=f"streams.{name}")
        if url.members:
            self._refuse_for_several(name, table)
            return url
        return _with_login(merged, layers, name)

    def node(self, name: str) -> NodeUrl:
        """The URL of a node."""
        table = self.settings.nodes.get(name)
        variables = self._variables(name, NodeSettings)
        file = {} if table is None else table.given()
        options = {} if table is None else table.options
        in_file = not variables.keys() & {"url", "url_file"}
        if in_file and table is None:
            raise self._unknown("node", name, self.settings.nodes)
        source = file if in_file else variables
        given = [what for what in ("url", "url_file") if what in source]
        if len(given) != 1:
            raise ConfigurationError(
                f"the node {name!r} has one of url and url_file, not both or none", setting=f"nodes.{name}"
            )
        what = given[0]
        text = source[what] if what == "url" else read_secret(Path(source[what]), what)
        origin = f"nodes.{name}.{what} in {self.file}" if in_file else f"{_stem(name)}{what.upper()}"
        try:
            url = parse_node_url(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"{origin}: {error}", setting=f"nodes.{name}") from None
        last = url.nodes[-1].credentials
        layers = [variables, file, last] if in_file else [variables, last, file]
        credentials = {**_first(layers, "token", "token_file"), **_first(layers, "header")}
        if len(url.nodes) > 1 and credentials != last:
            raise ConfigurationError(
                f"the node {name!r} has several URLs, and a token belongs to one node: write it behind # of each, or "
                "give each a name",
                setting=f"nodes.{name}",
            )
        nodes: list[Endpoint] = [*url.nodes[:-1], replace(url.nodes[-1], credentials=MappingProxyType(credentials))]
        feed = NodeUrl(tuple(nodes), url.options)
        return feed.with_options(options) if in_file else feed.with_options({**options, **url.options})

    def _mux(self, name: str, table: StreamSettings, above: tuple[str, ...]) -> TransportUrl:
        if table.url is not None or name in above:
            raise ConfigurationError(
                f"the stream {name!r} has members, so it has no url, and is no member of itself",
                setting=f"streams.{name}",
            )
        self._refuse_for_several(name, table)
        members = [numbered(member) for member in table.members]
        return mux_of([(first, self.stream(other, (*above, name))) for first, other in members])

    def _refuse_for_several(self, name: str, table: StreamSettings) -> None:
        """ConfigurationError for a login or options of a mux, which belong to its members."""
        of_file = [what for what in ("user", "password", "password_file", "options") if getattr(table, what)]
        variables = self._variables(name, StreamSettings).keys() - {"url"}
        if misplaced := [*of_file, *(_stem(name) + what.upper() for what in sorted(variables))]:
            raise ConfigurationError(
                f"the stream {name!r} is a mux, whose members have a user, a password and options each: leave out "
                f"{', '.join(misplaced)}, and give it to the members",
                setting=f"streams.{name}",
            )

    def _variables(self, name: str, table: type[_Table]) -> dict[str, str]:
        """The variables of one stream or node, by setting."""
        names = table.model_fields.keys() - {"members", "options"}
        values = {what: variable(_stem(name) + what.upper(), self.environ) for what in names}
        return {what: value for what, value in values.items() if value is not None}

    def _unknown(self, what: str, name: str, names: Mapping[str, object]) -> ConfigurationError:
        if self.file is not None:
            message = f"no {what} is called {name!r} in {self.file}: {nearest(name, names)}"
        else:
            message = (
                f"{name!r} is not a URL, and no {what} of that name is set: write a URL with its scheme "
                f"({_FORMS[what]}), set {_stem(name)}URL, or give the settings file that names it"
            )
        return ConfigurationError(message, setting=f"{what}s.{name}")


def _stem(name: str) -> str:
    """Prefix of the variables of a stream or node."""
    return f"CARDINAL_{re.sub('[^A-Z0-9]', '_', name.upper())}_"


def _parsed(text: str, where: str) -> TransportUrl:
    """Parse a URL; an error begins with its origin."""
    try:
        return parse_url(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}", setting=error.setting) from None


def _login(url: TransportUrl) -> dict[str, str]:
    """The login of a URL as a layer."""
    values = {"user": url.user, "password": url.password, "password_file": url.options.get("password_file")}
    return {name: value for name, value in values.items() if value is not None}


def _with_login(url: TransportUrl, layers: Sequence[Mapping[str, str]], name: str) -> TransportUrl:
    password = _first(layers, "password", "password_file")
    if len(password) > 1:
        raise ConfigurationError(
            f"the password of the stream {name!r} is given twice, as text and by a file: leave one of them out",
            setting="password",
        )
    options = {option: value for option, value in url.options.items() if option != "password_file"}
    if file := password.get("password_file"):
        options["password_file"] = file
    user = _first(layers, "user").get("user")
    return replace(url, user=user, password=password.get("password"), options=MappingProxyType(options))


def _first(layers: Sequence[Mapping[str, str]], *names: str) -> dict[str, str]:
    """These settings, from the first layer that has any of them."""
    matching = ({name: layer[name] for name in names if name in layer} for layer in layers)
    return next(filter(None, matching), {})
