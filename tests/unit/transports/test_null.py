from __future__ import annotations

import time

import pytest

from cardinal.errors import ConfigurationError, TopicError
from cardinal.protocols.streams import Record
from cardinal.transports import list_topics, open_sink, open_source
from file_logs import APP, DEADLINE, block


def test_a_null_sink_acknowledges_and_discards() -> None:
    sink = open_sink("null://", APP, producer_id="a")
    content, seal = block(1, messages=4)
    sink.send(content, None).result(DEADLINE)
    sink.send(content, seal).result(DEADLINE)
    sink.replay([Record("logs", 0, 0, b"key", b"value")]).result(DEADLINE)
    assert sink.recent(10) == []


def test_a_null_source_has_nothing_and_takes_its_time() -> None:
    source = open_source("null://", APP)
    assert (source.partitions(), source.watermarks(), source.offsets_for_time(0)) == ((), {}, {})
    assert list_topics("null://") == frozenset()
    source.assign({})
    began = time.monotonic()
    assert source.poll(10, 0.1) == []
    assert time.monotonic() - began > 0.09
    with pytest.raises(TopicError, match="null:// has none"):
        source.assign({("block", 0): 0})
    source.close()


def test_an_option_of_a_null_url_is_refused() -> None:
    for open_it in (
        lambda: open_sink("null://?x=1", APP, producer_id="a"),
        lambda: open_source("null://?x=1", APP),
        lambda: list_topics("null://?x=1"),
    ):
        with pytest.raises(ConfigurationError, match="no option x"):
            open_it()
