"""Streams and nodes by name: a TOML file, environment variables, secrets from files.

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
    token_file = "/run/secrets/token" # what the node wants to be shown; header = "X-Api-Key" where it is not a Bearer
    options = { state = true, lag = 2 }

The environment goes before the file: ``CARDINAL_MAIN_URL``, ``CARDINAL_MAIN_USER``, ``CARDINAL_MAIN_PASSWORD`` and
``CARDINAL_MAIN_PASSWORD_FILE`` for the stream ``main`` (in capitals, ``_`` for what is no letter or digit; two names of
a file differ then, too), and ``CARDINAL_MAINNET_URL``, ``CARDINAL_MAINNET_URL_FILE``, ``CARDINAL_MAINNET_TOKEN``,
``CARDINAL_MAINNET_TOKEN_FILE`` and ``CARDINAL_MAINNET_HEADER`` for a node. A stream or node may be named by the
environment alone. ``CARDINAL_CONFIG`` names the file where nothing else does. One that is set to nothing is not set.
Commands tell of those that are misspelt (:mod:`.misspelt`).

Rules:

1. Nothing is connected to, and no stream's secret and no node's token read from a file, before it is opened.
2. No error repeats a value: it names the file, the stream and the setting, or the variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cardinal.errors import ConfigurationError

from .address import TransportUrl
from .node_url import NodeUrl, join_nodes, split_nodes, without, written
from .parsing import check_text, mux_of, parse_url
from .secrets import read_secret
from .settings_file import NAME, NodeSettings, StreamSettings, TransportSettings, load_settings, suggestion
from .variables import Variables, variable

__all__ = ["TransportSettings", "find_node", "find_url", "load_settings"]

CONFIG_VARIABLE: Final = "CARDINAL_CONFIG"
_FORMS: Final = MappingProxyType({"stream": "kafka://host:port", "node": "ws://host:port"})
_NUMBERED: Final = re.compile(r"(?:(\d{1,9})=)?(.+)")


def find_url(
    text: str | TransportUrl, config: Path | str | None = None, environ: Mapping[str, str] | None = None
) -> TransportUrl:
    """The URL for what a user wrote: a URL, or the name of a stream of the settings file or the environment.

    Arguments:
        text: what the user wrote; a URL that was found already passes through.
        config: the settings file; None: the one that ``CARDINAL_CONFIG`` names, where it does.
        environ: environment variables; None: those of this process.

    Raises:
        ConfigurationError: it is neither, or its settings cannot work.

    """
    if isinstance(text, TransportUrl):
        return text
    check_text(text)
    found = _Known.of(text, config, environ)
    return parse_url(text) if found is None else found.url(text)


def find_node(text: str, config: Path | str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The URL of a node for what a user wrote: a URL, or the name of a node; arguments as for :func:`find_url`.

    Names of several nodes stand beside each other with commas, as their URLs do. A node's options stand behind ``#`` of
    its URL; several nodes have the same, but for what each is shown (:mod:`.node_url`).

    Raises:
        ConfigurationError: the name is not known, its settings cannot work, or the file of its URL cannot be read.

    """
    names = text.split(",")
    if len(names) > 1 and all(map(NAME.fullmatch, names)):
        return _beside([find_node(name, config, environ) for name in names], names)
    found = _Known.of(text, config, environ)
    return text if found is None else found.node(text)


@dataclass(frozen=True, slots=True)
class _Known:
    """A file's streams and nodes, and what the environment says of them."""

    settings: TransportSettings
    environ: Mapping[str, str]
    file: Path | None

    @classmethod
    def of(cls, text: str, config: Path | str | None, environ: Mapping[str, str] | None) -> _Known | None:
        """Where to look a name up; None for what is no name. A file that the caller names is read in any case."""
        environ = os.environ if environ is None else environ
        is_name = NAME.fullmatch(text) is not None
        if config is None and is_name:
            config = variable(CONFIG_VARIABLE, environ)
        file = None if config is None else Path(config)
        settings = TransportSettings() if file is None else load_settings(file)
        return cls(settings, environ, file) if is_name else None

    def url(self, name: str, above: tuple[str, ...] = ()) -> TransportUrl:
        """A stream's URL. ``above``: the muxes that it is a member of."""
        given = Variables(name, self.environ)
        stream = self.settings.streams.get(name)
        text = given.get("URL")
        if stream is None:
            if text is None:
                raise self._unknown("stream", given, self.settings.streams)
            stream = StreamSettings()
        if text is not None:
            return _merged(stream, _parsed(text, given.named("URL")), given, environment=True)
        if stream.members:
            return self._mux(name, stream, above)
        if stream.url is None:
            raise ConfigurationError(f"the stream {name!r} has neither url nor members", setting=f"streams.{name}")
        url = _parsed(stream.url.get_secret_value(), f"streams.{name}.url in {self.file}")
        return _merged(stream, url, given, environment=False)

    def node(self, name: str) -> str:
        """A node's URL."""
        given = Variables(name, self.environ)
        node = self.settings.nodes.get(name)
        text, file = given.get("URL"), given.get("URL_FILE")
        in_file = text is None and file is None
        if in_file:
            if node is None:
                raise self._unknown("node", given, self.settings.nodes)
            text, file = _parts(node)
        if (text is None) == (file is None):
            raise ConfigurationError(
                f"the node {name!r} has one of url and url_file, not both", setting=f"nodes.{name}"
            )
        nodes = split_nodes(text if text is not None else read_secret(Path(file or ""), "url_file"))
        if not all("://" in one.url for one in nodes):
            setting = "URL" if text is not None else "URL_FILE"
            where = f"nodes.{name}.{setting.lower()} in {self.file}" if in_file else given.named(setting)
            raise ConfigurationError(
                f"{where} gives no URL of a node: write it with its scheme, {_FORMS['node']}", setting=f"nodes.{name}"
            )
        node = node or NodeSettings()
        nodes[-1] = _with_options(nodes[-1], node, after=in_file)
        return join_nodes(_with_token(nodes, node, given, in_file=in_file))

    def _mux(self, name: str, stream: StreamSettings, above: tuple[str, ...]) -> TransportUrl:
        if stream.url is not None or name in above:
            raise ConfigurationError(
                f"the stream {name!r} has members, so it has no url, and is no member of itself",
                setting=f"streams.{name}",
            )
        _refuse_for_several(stream, Variables(name, self.environ))
        members: list[tuple[int | None, TransportUrl]] = []
        for member in stream.members:
            found = _NUMBERED.fullmatch(member)
            number, other = found.groups() if found else (None, member)
            members.append((None if number is None else int(number), self.url(other, (*above, name))))
        return mux_of(members)

    def _unknown(self, what: str, given: Variables, names: Mapping[str, object]) -> ConfigurationError:
        if self.file is not None:
            sentence = f"no {what} is called {given.name!r} in {self.file}: {suggestion(given.name, names)}"
        else:
            sentence = (
                f"{given.name!r} is no URL, and no {what} of that name is set: write a URL with its scheme "
                f"({_FORMS[what]}), set {given.named('URL')}, or give the settings file that names it"
            )
        return ConfigurationError(sentence, setting=f"{what}s.{given.name}")


def _parsed(text: str, where: str) -> TransportUrl:
    """A URL; what is wrong with it begins with where it was written."""
    try:
        return parse_url(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}", setting=error.setting) from None


def _refuse_for_several(stream: StreamSettings, given: Variables) -> None:
    """ConfigurationError for what is said of a mux and would be nobody's: a login or options."""
    said = [name for name in ("user", "password", "password_file", "options") if getattr(stream, name)]
    said += [given.named(what) for what in ("USER", "PASSWORD", "PASSWORD_FILE") if given.get(what)]
    if said:
        raise ConfigurationError(
            f"the stream {given.name!r} is several, and each has a user, a password and options of its own: leave out "
            f"{', '.join(said)}, and say it of its members",
            setting=f"streams.{given.name}",
        )


def _merged(stream: StreamSettings, url: TransportUrl, given: Variables, *, environment: bool) -> TransportUrl:
    """A URL with what the settings say: the environment's URL goes before them, the file's URL behind."""
    if url.members:
        _refuse_for_several(stream, given)
    said = {name: _text(value) for name, value in stream.options.items()}
    options = {**said, **url.options} if environment else {**url.options, **said}
    in_url = (url.user, url.password, options.pop("password_file", None))
    in_file = (
        stream.user,
        None if stream.password is None else stream.password.get_secret_value(),
        None if stream.password_file is None else str(stream.password_file),
    )
    if environment and _of_other_transport(stream, url):
        in_file = (None, None, None)
    in_variables = (given.get("USER"), given.get("PASSWORD"), given.get("PASSWORD_FILE"))
    layers = (in_variables, in_url, in_file) if environment else (in_variables, in_file, in_url)
    user = next((user for user, _, _ in layers if user is not None), None)
    passwords = ((password, file) for _, password, file in layers if (password, file) != (None, None))
    password, file = next(passwords, (None, None))
    if password is not None and file is not None:
        raise ConfigurationError(
            f"the password of the stream {given.name!r} is given in two ways: as text or by a file", setting="password"
        )
    if file is not None:
        options["password_file"] = file
    return replace(url, user=user, password=password, options=MappingProxyType(options))


def _of_other_transport(stream: StreamSettings, url: TransportUrl) -> bool:
    """Whether the file speaks of another transport than the environment's URL: its login is not for that."""
    text = "" if stream.url is None else stream.url.get_secret_value()
    return "://" in text and text.partition("://")[0].lower() != url.scheme


def _with_options(url: NodeUrl, node: NodeSettings, *, after: bool) -> NodeUrl:
    """A node's URL with what the settings say behind its ``#``, where of an option the last counts.

    As for streams: ``after`` the options of a URL of the file, before those of one of the environment.
    """
    said = written({name: _said(value) for name, value in node.options.items()})
    return url.with_options(said) if after else NodeUrl(url.url, said).with_options(url.options)


def _with_token(nodes: list[NodeUrl], node: NodeSettings, given: Variables, *, in_file: bool) -> list[NodeUrl]:
    """Nodes with what is shown to them: as for streams, variables go before the settings and an environment's URL."""
    url = nodes[-1]
    variables = {"token": given.get("TOKEN"), "token_file": given.get("TOKEN_FILE"), "header": given.get("HEADER")}
    settings = {
        "token": None if node.token is None else node.token.get_secret_value(),
        "token_file": None if node.token_file is None else str(node.token_file),
        "header": node.header,
    }
    shown: dict[str, str] = {}
    options = url.options
    for names in (("token", "token_file"), ("header",)):
        layers = [
            {name: layer[name] or "" for name in names if layer[name] is not None} for layer in (variables, settings)
        ]
        in_url = without(options, names) != options
        found = layers[0] or ({} if in_url and not in_file else layers[1])
        if found:
            options = without(options, names)
        shown |= found
    if shown and len(nodes) > 1:
        raise ConfigurationError(
            f"the node {given.name!r} has several URLs, and a token is one node's: write it behind # of each, or give "
            "each a name",
            setting=f"nodes.{given.name}",
        )
    return [*nodes[:-1], NodeUrl(url.url, options).with_options(written(shown))]


def _beside(urls: Sequence[str], names: Sequence[str]) -> str:
    """URLs of several nodes as one, which has its options once, at the end, but for what each node is shown."""
    parts = [split_nodes(url) for url in urls]
    first = parts[0][-1].others
    other = next((name for nodes, name in zip(parts, names, strict=True) if nodes[-1].others != first), None)
    if other is not None:
        raise ConfigurationError(
            f"the nodes {names[0]!r} and {other!r} have different options: beside each other they have the same",
            setting=f"nodes.{other}",
        )
    nodes = [node if node is not part[-1] else NodeUrl(node.url, node.own) for part in parts for node in part]
    return join_nodes([*nodes[:-1], nodes[-1].with_options(first)])


def _said(value: str | float) -> str:
    """An option's value as a node's URL has it."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _parts(node: NodeSettings) -> tuple[str | None, str | None]:
    return (
        None if node.url is None else node.url.get_secret_value(),
        None if node.url_file is None else str(node.url_file),
    )


def _text(value: str | float) -> str:
    """An option's value as a URL has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
