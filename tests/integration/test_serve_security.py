"""Authentication at a server, and its refusals."""

from __future__ import annotations

import logging
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cardinal.errors import (
    CardinalError,
    RefusedError,
    UnreachableError,
)
from cardinal.protocols.streams.types import Routed
from cardinal.transports import list_topics, open_source, parse_url
from cardinal_devkit import MemoryBroker
from cardinal_devkit.testing.proxy import TcpProxy
from cardinal_relay.transport.protocol import SUBPROTOCOL
from certificates import Authority
from serving import APP, DEADLINE, from_start, read, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TOKEN = "correct-horse-battery"  # noqa: S105 - made up, to look for it in what is printed


OTHER = "staple-horse-battery"


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        broker.sink(APP, producer_id="a").close()
        yield broker


def _file(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content)
    return path


def test_a_token_opens_the_stream_and_a_wrong_one_gives_one_sentence(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    right, wrong = _file(tmp_path, "right", f"{TOKEN}\n"), _file(tmp_path, "wrong", OTHER)
    shown = []
    with serving(broker.url, APP, tokens=("another", TOKEN)) as served:
        source = from_start(open_source(f"{served.url}?token_file={right}", APP))
        assert len(read(source, len(broker.records()))) == len(broker.records())
        shown += [repr(source), repr(vars(source)), repr(served.service._settings), str(parse_url(served.url))]
        source.close()
        for url, says in (
            (f"{served.url}?token_file={wrong}", "does not accept the token"),
            (f"{served.url}?token={OTHER}", "does not accept the token"),
            (served.url, "requires a token"),
        ):
            for attempt in (lambda url=url: open_source(url, APP), lambda url=url: list_topics(url)):
                with pytest.raises(RefusedError, match=says) as caught:
                    attempt()
                assert str(caught.value).count(". ") == 0
                shown += [str(caught.value), repr(caught.value), repr(parse_url(url))]
    printed = " ".join([*shown, caplog.text])
    assert TOKEN not in printed
    assert OTHER not in printed


@pytest.mark.parametrize(
    "header", ["", TOKEN, f"Basic {TOKEN}", f"bearer{TOKEN}", f"Bearer  {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"]
)
def test_only_the_whole_token_is_taken(broker: MemoryBroker, header: str) -> None:
    with serving(broker.url, APP, tokens=(TOKEN,)) as served:
        with pytest.raises(InvalidStatus) as caught:
            connect(
                served.url, subprotocols=[SUBPROTOCOL], proxy=None, additional_headers={"Authorization": header}
            ).__enter__()
        assert caught.value.response.status_code == 401
        assert served.status.clients == 0


def test_browsers_are_refused_and_so_is_who_speaks_another_protocol(broker: MemoryBroker) -> None:
    with serving(broker.url, APP) as served:
        for options in (
            {"origin": "http://evil.example", "subprotocols": [SUBPROTOCOL]},
            {"subprotocols": ["cardinal.streams.v1"]},
            {},
        ):
            with pytest.raises(InvalidStatus) as caught:
                connect(served.url, proxy=None, **options).__enter__()
            assert caught.value.response.status_code in (400, 403)


def test_clients_above_the_capacity_are_notified(broker: MemoryBroker) -> None:
    with serving(broker.url, APP, clients_max=2) as served:
        sources = [open_source(served.url, APP) for _ in range(2)]
        with pytest.raises(UnreachableError, match=r"no capacity .* raise its --max-clients or use another one"):
            open_source(served.url, APP)
        for source in sources:
            source.close()


@pytest.mark.slow
def test_wss_with_a_private_authority(broker: MemoryBroker, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "ca"), Authority(tmp_path, "stranger")
    leaf = authority.sign("server", hosts=["127.0.0.1"])
    elsewhere = authority.sign("elsewhere", hosts=["example.org"])
    with serving(broker.url, APP, certificate=leaf.certificate, key=leaf.key, tokens=(TOKEN,)) as served:
        url = f"wss://127.0.0.1:{served.port}?token={TOKEN}"
        source = from_start(open_source(f"{url}&ssl.ca.location={authority.certificate}", APP))
        assert len(read(source, len(broker.records()))) == len(broker.records())
        source.close()
        with pytest.raises(RefusedError, match="is not trusted"):
            open_source(f"{url}&ssl.ca.location={stranger.certificate}", APP)
        with pytest.raises(RefusedError, match="is not trusted"):
            open_source(url, APP)
        with pytest.raises(CardinalError) as caught:
            open_source(f"ws://127.0.0.1:{served.port}", APP)
        assert isinstance(caught.value, RefusedError | UnreachableError)
    with (
        serving(broker.url, APP, certificate=elsewhere.certificate, key=elsewhere.key) as served,
        pytest.raises(RefusedError, match="host name"),
    ):
        open_source(f"wss://127.0.0.1:{served.port}?ssl.ca.location={authority.certificate}", APP)
    with serving(broker.url, APP) as served, pytest.raises(RefusedError, match="without TLS"):
        open_source(f"wss://127.0.0.1:{served.port}?ssl.ca.location={authority.certificate}", APP)


@pytest.mark.slow
def test_a_named_authority_without_identifiers_of_keys_is_trusted_on_every_python(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "ca", plain=True)
    leaf = authority.sign("server", hosts=["127.0.0.1"])
    with serving(broker.url, APP, certificate=leaf.certificate, key=leaf.key) as served:
        source = open_source(f"wss://127.0.0.1:{served.port}?ssl.ca.location={authority.certificate}", APP)
        assert len(read(from_start(source), len(broker.records()))) == len(broker.records())
        source.close()


@pytest.mark.process
@pytest.mark.parametrize("module", ["cardinal_relay.transport.client", "cardinal_relay.server.service"])
def test_without_the_library_the_extra_is_named(module: str) -> None:
    program = f"import sys; sys.modules['websockets'] = None; import {module}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert run.stderr.rstrip().endswith("pip install 'cardinal-streams[server]'")


def test_records_are_compressed_once_for_all_clients_unless_that_is_switched_off(broker: MemoryBroker) -> None:
    sink = broker.sink(APP, producer_id="a")
    keys = (b"\x03" + number.to_bytes(32, "big") for number in range(300))
    sink.send([Routed(APP.default_topic, key, b"block" * 100) for key in keys], None).result(DEADLINE)
    sink.close()
    sent = {}
    for compression in ("snappy", "none"):
        with serving(broker.url, APP, compression=compression) as served:
            source = from_start(open_source(served.url, APP))
            assert sorted(read(source, len(broker.records()))) == broker.records()
            sent[compression] = served.status.sent_bytes_total
            source.close()
    assert sent["none"] > 300 * 500 > 4 * sent["snappy"]


def test_a_client_whose_token_is_taken_away_reads_on_until_it_has_to_come_again(broker: MemoryBroker) -> None:
    """Tokens are looked at when a connection is made. Then: one sentence, and no knocking again and again."""
    with serving(broker.url, APP, tokens=(TOKEN,)) as served, TcpProxy(f"127.0.0.1:{served.port}") as proxy:
        source = from_start(open_source(f"ws://{proxy.address}?token={TOKEN}", APP))
        read(source, len(broker.records()))
        port = served.port
        served.stop()
        with serving(broker.url, APP, tokens=(OTHER,), port=port) as changed:
            with pytest.raises(RefusedError, match="does not accept the token: set the right one with") as caught:
                source.poll(1, DEADLINE)
            assert TOKEN not in str(caught.value)
            knocked = changed.status.unauthorized_total
            accepted = proxy.stats.accepted
            for attempt in (
                lambda: source.poll(1, 0.5),
                source.watermarks,
                lambda: source.assign({(APP.default_topic, 0): 0}),
            ):
                with pytest.raises(RefusedError, match="does not accept the token"):
                    attempt()  # the same sentence at once, without a request
            assert changed.status.unauthorized_total == knocked == 1
            assert proxy.stats.accepted == accepted
            source.close()


def test_the_server_reads_its_token_file_at_every_connection(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is connected stays; while the file cannot be used nobody is admitted, and that is temporary."""
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n\n  {OTHER} \n")
    with serving(broker.url, APP, token_file=file) as served:
        source = from_start(open_source(f"{served.url}?token={TOKEN}", APP))
        file.write_text(f"{OTHER}\n")
        assert list_topics(f"{served.url}?token={OTHER}")
        with pytest.raises(RefusedError, match="does not accept the token"):
            list_topics(f"{served.url}?token={TOKEN}")
        for spoil in (file.unlink, lambda: file.write_text("\n"), lambda: file.write_bytes(b"\xff")):
            spoil()
            with pytest.raises(UnreachableError, match="HTTP status 500"):
                list_topics(f"{served.url}?token={OTHER}")
        assert len(read(source, len(broker.records()))) == len(broker.records())
        assert served.status.unauthorized_total == 1
        source.close()
    assert str(file) in caplog.text
    assert OTHER not in caplog.text
