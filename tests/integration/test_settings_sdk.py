"""The SDK takes what the commands take: names, a settings file, the environment, secrets from files."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from cardinal import Consumer, Producer
from cardinal.errors import CardinalError, ConfigurationError
from cardinal.testing import ChainGenerator, MemoryBroker
from cardinal.transports import list_topics, open_sink, open_source, parse_url
from serving import DEADLINE, serving

MAKER = ChainGenerator(seed=3)
APP = MAKER.application
SECRET = "s3cr3t-Pa$$"  # noqa: S105 - made up, to look for it in what is printed


def test_a_stream_is_written_and_read_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = MAKER.payloads(10)
    (tmp_path / "token").write_text(f"{SECRET}\n")
    with MemoryBroker(uuid.uuid4().hex) as broker:
        broker.sink(APP, producer_id="a").close()
        with serving(broker.url, APP, tokens=(SECRET,)) as served:
            config = tmp_path / "cardinal.toml"
            config.write_text(
                f"""
                streams.main = "{broker.url}"
                [streams.served]
                url = "{served.url}"
                options.token_file = "{tmp_path}/token"
                """
            )
            with Producer("main", APP, producer_id="a", config=config) as producer:
                for payload in payloads:
                    producer.add(payload)
                producer.flush(DEADLINE)
            heads = []
            monkeypatch.setenv("CARDINAL_ALONE_URL", broker.url)
            for name, file in (("main", config), ("served", str(config)), ("alone", None)):
                with Consumer(name, APP, config=file, idle_timeout=1.0) as consumer:
                    assert [block for update in consumer for block in update.added]
                    heads.append(consumer.head)
            assert heads[0] == heads[1] == heads[2] is not None
            monkeypatch.setenv("CARDINAL_CONFIG", str(config))
            assert list_topics("served") == list_topics("main") == set(APP.all_topics)
            open_source("served", APP).close()
            open_sink("main", APP, producer_id="b").close()


@pytest.mark.parametrize("sdk", [Producer, Consumer])
def test_what_is_wrong_is_said_in_one_sentence(sdk: type, tmp_path: Path) -> None:
    path = tmp_path / "cardinal.toml"
    options = {"producer_id": "a"} if sdk is Producer else {}
    for text, says in (
        (f"streams.main.pasword = '{SECRET}'", "did you mean password?"),
        (f"streams.main.url = ['{SECRET}']", "input should be a valid string"),
        (f"streams.main = {SECRET}", "correct them at line 1, column 16"),
        ("[streams.main]\nurl = 'kafka://u@h'\npassword_file = '/nowhere'", "/nowhere of password_file cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=says) as caught:
            sdk("main", APP, config=path, **options)
        assert SECRET not in str(caught.value)
    with pytest.raises(CardinalError, match="CARDINAL_MAIN_URL"):
        sdk("main", APP, **options)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (Path("/log"), "a URL is text, not a path: write f'file://{path}'"),
        (b"kafka://host", "a URL, or a name of the settings, is text, not bytes"),
        (None, "a URL, or a name of the settings, is text, not NoneType"),
    ],
)
def test_stream_that_is_named_by_no_text_is_refused(url: Any, says: str) -> None:  # noqa: ANN401 - anything
    for call in (
        lambda: Consumer(url, APP),
        lambda: Producer(url, APP, producer_id="a"),
        lambda: open_source(url, APP),
        lambda: list_topics(url),
        lambda: parse_url(url),
    ):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert str(caught.value) == says


def test_name_of_an_application_is_not_enough_to_write_a_stream() -> None:
    evm: Any = "evm"
    for call in (
        lambda: Producer("null://", evm, producer_id="a"),
        lambda: open_sink("null://", evm, producer_id="a"),
        lambda: open_source("null://", evm),
    ):
        with pytest.raises(ConfigurationError, match=r"write cardinal\.apps\.get\('evm', chain_id=…\)") as caught:
            call()
        assert caught.value.setting == "app"
    with pytest.raises(ConfigurationError, match="app must be an application, not <class 'dict'>"):
        Producer("null://", {}, producer_id="a")  # type: ignore[arg-type]
