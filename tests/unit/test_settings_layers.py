"""Which of two places that name a user, a password or an option counts; and which options are never shown."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from cardinal.transports.secrets import with_secrets
from cardinal.transports.settings import find_url
from cardinal.transports.url import parse_url

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed
SECRETS = (
    *("token", "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem"),
    *("sasl.oauthbearer.config", "sasl.oauthbearer.client.secret"),
    *("sasl.oauthbearer.assertion.private.key.passphrase", "sasl.oauthbearer.assertion.private.key.pem"),
)
"""librdkafka's sensitive properties, and ours."""

LAYERS = ("URL in the file", "file", "URL in the environment", "environment")


def _found(given: frozenset[str], folder: Path, *, by_file: bool) -> tuple[str | None, str | None, str | None]:
    """User, password and an option, where each of these layers names its own."""
    environ, lines = {}, []
    words = {layer: layer.replace(" ", "-") for layer in LAYERS}

    def password(layer: str) -> str:
        if not by_file:
            return words[layer]
        (folder / words[layer]).write_text(words[layer])
        return str(folder / words[layer])

    name = "password_file" if by_file else "password"

    def url(layer: str) -> str:
        if layer not in given:
            return "kafka://host"
        secret = f"?password_file={password(layer)}&" if by_file else "?"
        who = words[layer] if by_file else f"{words[layer]}:{words[layer]}"
        return f"kafka://{who}@host{secret}linger.ms={LAYERS.index(layer)}"

    lines.append(f'url = "{url(LAYERS[0])}"')
    if LAYERS[1] in given:
        lines += [f'user = "{words[LAYERS[1]]}"', f'{name} = "{password(LAYERS[1])}"', "options.linger.ms = 1"]
    if LAYERS[2] in given:
        environ["CARDINAL_MAIN_URL"] = url(LAYERS[2])
    if LAYERS[3] in given:
        environ |= {
            "CARDINAL_MAIN_USER": words[LAYERS[3]],
            f"CARDINAL_MAIN_{name.upper()}": password(LAYERS[3]),
        }
    config = folder / "cardinal.toml"
    config.write_text("\n".join(["[streams.main]", *lines]))
    found = with_secrets(find_url("main", config, environ))
    return found.user, found.password, found.options.get("linger.ms")


@pytest.mark.parametrize("by_file", [False, True], ids=["as text", "in a file"])
def test_the_environment_goes_before_the_file_and_what_has_a_name_before_the_url(
    tmp_path: Path, *, by_file: bool
) -> None:
    """Every choice of places: variables, then the environment's URL, then the file's settings, then the file's URL."""
    order = (3, 2, 1, 0)
    for chosen in product((False, True), repeat=4):
        given = frozenset(layer for layer, is_there in zip(LAYERS, chosen, strict=True) if is_there)
        first = next((LAYERS[at].replace(" ", "-") for at in order if LAYERS[at] in given), None)
        option = next((str(at) for at in order if LAYERS[at] in given and at != 3), None)
        assert _found(given, tmp_path, by_file=by_file) == (first, first, option), sorted(given)


@pytest.mark.parametrize("name", SECRETS)
def test_the_value_of_a_secret_option_is_never_shown(name: str) -> None:
    for scheme in ("kafka://host", "ws://host:1"):
        url = parse_url(f"{scheme}?{name}={SECRET.replace('$', '%24')}&shown=1")
        assert url.options[name] == SECRET
        mux = parse_url(f"mux:{scheme}?{name}={SECRET.replace('$', '%24')},null://")
        for text in (str(url), repr(url), str(mux), repr(mux)):
            assert SECRET not in text
            assert "s3cr3t" not in text
        assert "shown=1" in str(url)


def test_a_login_of_the_file_is_not_for_another_transport_that_the_environment_names(tmp_path: Path) -> None:
    config = tmp_path / "cardinal.toml"
    config.write_text(f"[streams.main]\nurl = 'kafka://host'\nuser = 'alice'\npassword = '{SECRET}'")
    url = find_url("main", config, {"CARDINAL_MAIN_URL": f"file://{tmp_path}/log"})
    assert (url.scheme, url.user, url.password) == ("file", None, None)
    url = find_url("main", config, {"CARDINAL_MAIN_URL": "kafka://other"})
    assert (url.user, url.password) == ("alice", SECRET)
