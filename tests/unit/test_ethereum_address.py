"""A feed's URL: nodes, and options that no node sees."""

from __future__ import annotations

import pytest

from cardinal.errors import ConfigurationError
from cardinal_connectors.ethereum import open_feed
from cardinal_connectors.ethereum.settings import FeedSettings, RpcSettings
from cardinal_connectors.ethereum.url import NodeOptions, read_url


def test_nodes_and_options_are_read() -> None:
    nodes, settings = read_url("ws://a:1/k,ey,http://b:2?x=1#lag=3&rate=2.5&finality=safe&batch=9&state=yes&workers=0")
    assert [node.url for node in nodes] == ["ws://a:1/k,ey", "http://b:2?x=1"]
    assert settings == FeedSettings(
        lag=3, finality="safe", state=True, workers=0, worker_bytes=0, rpc=RpcSettings(rate=2.5, batch=9)
    )


def test_options_go_before_settings_and_leave_the_others() -> None:
    given = FeedSettings(lag=7, poll=9.0, rpc=RpcSettings(timeout=3.0, batch=4))
    assert read_url("http://a#lag=1&batch=8", given)[1] == FeedSettings(
        lag=1, poll=9.0, rpc=RpcSettings(timeout=3.0, batch=8)
    )
    assert read_url("http://a", given)[1] == given


def test_checks_that_a_chain_does_not_satisfy_are_named() -> None:
    assert read_url("http://a#unchecked=gas,bloom")[1].unchecked == {"gas", "bloom"}
    assert read_url("http://a#unchecked=receipts+root")[1].unchecked == {"receipts root"}
    for text in ("hash", "speed"):
        with pytest.raises(ConfigurationError, match=f"no check that can be left out is named '{text}'"):
            read_url(f"http://a#unchecked={text}")


@pytest.mark.parametrize(
    "option", ["speed=1", "lag=-1", "lag=x", "rate=0", "rate=nan", "finality=soon", "batch=0", "timeout=0", "workers="]
)
def test_wrong_option_is_one_sentence_without_the_urls_secrets(option: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_feed(f"http://user:s3cr3t@a/key#{option}")
    assert refused.value.setting == option.partition("=")[0]
    assert "s3cr3t" not in str(refused.value)
    assert "key" not in str(refused.value)


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match=r"there is no option lags of a node's URL: did you mean lag\?"):
        open_feed("http://a#lags=4")


def test_every_option_is_a_setting() -> None:
    for name in NodeOptions.model_fields:
        assert hasattr(FeedSettings(), name) or hasattr(RpcSettings(), name)


@pytest.mark.parametrize("url", ["ipc://run/geth.ipc", "ipc://", "ftp://a", "http://a,ftp://b"])
def test_address_that_no_node_has_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_feed(url)
