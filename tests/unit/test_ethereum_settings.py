"""What may be shown of a node's address, and how long is waited."""

from __future__ import annotations

import pytest

from cardinal_connectors.ethereum.settings import RpcSettings, public_address


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
