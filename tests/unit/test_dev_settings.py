"""What a ``dev://`` URL may say."""

from __future__ import annotations

import asyncio

import pytest

from cardinal.errors import ConfigurationError, WrongChainError
from cardinal.feeds import BlockFeed
from cardinal_connectors.dev import DevSettings, open_feed
from cardinal_connectors.dev.settings import settings_from_url


def test_every_option_has_a_default() -> None:
    assert settings_from_url("dev://") == (DevSettings(), 0.0)


def test_every_option_can_be_set() -> None:
    url = "dev://?seed=-7&blocks=9&reorg-rate=0.5&max-depth=3&transactions=0&chain-id=99&merged=1&rate=2.5"
    expected = DevSettings(seed=-7, blocks=9, reorg_rate=0.5, max_depth=3, transactions=0, chain_id=99, merged=True)
    assert settings_from_url(url) == (expected, 2.5)


@pytest.mark.parametrize(
    ("url", "setting"),
    [
        ("dev://localhost?seed=1", "from"),
        ("dev:///chain", "from"),
        ("dev://#lag=1", "lag"),
        ("dev://?seed=1&seed=2", "from"),
        ("dev://?sed=1", "sed"),
        ("dev://?seed=one", "seed"),
        ("dev://?seed=", "seed"),
        ("dev://?blocks=-1", "blocks"),
        ("dev://?blocks=4.5", "blocks"),
        ("dev://?reorg-rate=1.5", "reorg_rate"),
        ("dev://?reorg-rate=nan", "reorg_rate"),
        ("dev://?max-depth=0", "max_depth"),
        ("dev://?max-depth=65", "max_depth"),
        ("dev://?transactions=-1", "transactions"),
        ("dev://?chain-id=0", "chain-id"),
        ("dev://?merged=maybe", "merged"),
        ("dev://?merged=2", "merged"),
        ("dev://?rate=-1", "rate"),
        ("dev://?rate=inf", "rate"),
        ("dev://?rate=nan", "rate"),
        ("dev://?rate=fast", "rate"),
    ],
)
def test_what_cannot_work_is_refused_by_name(url: str, setting: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_feed(url)
    assert refused.value.setting == setting


def test_the_chain_id_that_is_asked_for_is_the_chains_unless_the_url_names_one() -> None:
    assert asyncio.run(open_feed("dev://", chain_id=5).chain_id()) == 5
    assert asyncio.run(open_feed("dev://?chain-id=5", chain_id=5).chain_id()) == 5
    assert asyncio.run(open_feed("dev://?chain-id=6").chain_id()) == 6
    with pytest.raises(WrongChainError):
        open_feed("dev://?chain-id=6", chain_id=5)


def test_the_feed_is_a_block_feed() -> None:
    assert isinstance(open_feed("dev://"), BlockFeed)
