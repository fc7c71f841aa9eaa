"""What may be shown of a node's address, and how long is waited."""

from __future__ import annotations

import base64

import pytest

from cardinal_connectors.ethereum.settings import RpcSettings, public_address, quoted


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://localhost:8545", "http://localhost:8545"),
        ("https://user:sesame@node.example/v3/sesame?key=sesame#sesame", "https://node.example"),
        ("wss://sesame@node.example:443/ws", "wss://node.example:443"),
        ("ws://user:sesame@[::1]:8546/", "ws://[::1]:8546"),
        ("http://user:sesame@node.example:port/", "http://node.example"),
        ("http://", "http://"),
    ],
)
def test_address_is_shown_without_anything_secret(url: str, shown: str) -> None:
    assert public_address(url) == shown


def test_pauses_double_and_are_bounded() -> None:
    settings = RpcSettings(backoff=0.1)
    pauses = [settings.pause(attempt) for attempt in range(1, 12)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) == pytest.approx(2.0)


def _basic(login: str, encoding: str = "utf-8") -> str:
    return base64.b64encode(login.encode(encoding)).decode()


@pytest.mark.parametrize(
    ("url", "repeated"),
    [
        ("https://node.example/v3?key=s3sam%65open", ["s3sam%65open", "s3sameopen"]),
        ("https://node.example/v3?key=s3same+open%2B", ["s3same+open%2B", "s3same open+", "s3same+open+"]),
        ("https://node.example/v3?s3same-open", ["s3same-open"]),
        ("https://node.example/s3sam%65open", ["s3sam%65open", "s3sameopen"]),
        ("https://s3same-open@node.example", ["s3same-open", _basic("s3same-open:")]),
        ("https://s3sam%65open@node.example", ["s3sam%65open", "s3sameopen"]),
        ("https://al:a%40sesame@node.example", ["a%40sesame", "a@sesame", _basic("al:a@sesame")]),
        (
            "https://al:%C3%A9sesame@node.example",
            ["%C3%A9sesame", "\u00e9sesame", _basic("al:\u00e9sesame"), _basic("al:\u00e9sesame", "latin-1")],
        ),
        ("https://al:\u20acsesame@node.example", ["\u20acsesame", _basic("al:\u20acsesame")]),
    ],
)
def test_what_a_url_hides_is_hidden_in_every_form_that_a_node_may_repeat(url: str, repeated: list[str]) -> None:
    for one in repeated:
        assert quoted(url, f"not for you: {one}!") == "not for you: …!"


def test_a_short_user_and_what_is_no_secret_are_shown() -> None:
    assert quoted("https://al:sesame@node.example/rpc?v=1", "al is not in rpc v1") == "al is not in rpc v1"
