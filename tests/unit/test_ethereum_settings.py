"""Pauses between attempts, and a node's own words in errors."""

from __future__ import annotations

import pytest

from cardinal.config.url import Endpoint
from cardinal_connectors.ethereum.settings import RpcSettings, quoted


def test_pauses_double_and_are_bounded() -> None:
    settings = RpcSettings(backoff=0.1)
    pauses = [settings.pause(attempt) for attempt in range(1, 12)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) == pytest.approx(2.0)


def test_a_nodes_words_are_quoted_without_what_its_url_hides() -> None:
    endpoint = Endpoint.parse("https://al:a%40sesame@node.example/v3/s3same-open")
    said = "not for\x1b[2Jal:\n a@sesame, s3same-open, t0ken of v3"
    assert quoted(endpoint, said, ["t0ken", ""]) == "not for [2Jal: …, …, … of v3"
    assert len(quoted(endpoint, "x" * 5_000)) < 500


def test_a_short_user_and_what_is_no_secret_are_shown() -> None:
    assert (
        quoted(Endpoint.parse("https://al:sesame@node.example/rpc?v=1"), "al is not in rpc v1") == "al is not in rpc v1"
    )
