"""`cardinal record` and `cardinal replay`, and Kafka recorded and played again."""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import Processes, fresh_chain_id, replayed, run_here

from blocks import hash_of
from cardinal import apps
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.wire.ranges import RANGES_HEADER
from recordings import records_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cardinal_devkit.kafka import EmbeddedKafka


def evm_blocks(chain_id: int, first: int, last: int, tag: str = "a", below: str = "") -> list[Payload]:
    stem = f"c/{chain_id:x}/b"
    found, parent = [], hash_of(below or f"{first - 1}{tag}")
    for number in range(first, last + 1):
        block_hash = hash_of(f"{number}{tag}")
        updates = {f"{stem}/{number}{tag}/{kind}": b"%d" % number for kind in ("h", "t/0", "t/1", "r/0", "l/0/0")}
        found.append(Payload(number, block_hash, parent, number, updates))
        parent = block_hash
    return found


def publish_to(url: str, chain_id: int, payloads: list[Payload]) -> None:
    with Producer(url, apps.get("evm", chain_id=chain_id), producer_id="one") as producer:
        for payload in payloads:
            producer.add(payload)
        producer.flush(60)


def publish_until(stopped: threading.Event, url: str, chain_id: int, first: int) -> int:
    """Publish block after block, each when the one before is acknowledged; the last one."""
    with Producer(url, apps.get("evm", chain_id=chain_id), producer_id="one") as producer:
        for payload in evm_blocks(chain_id, first, first + 5_000):
            producer.add(payload).result(60)
            if stopped.is_set():
                return payload.number
    raise AssertionError("nobody stopped it")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    (tmp_path / "err").mkdir()
    with Processes(tmp_path / "err") as processes:
        yield processes


def chain_of(processes: Processes, url: str, until_block: int) -> list[str]:
    status, out, said = processes.run("tail", url, "--format", "json", "--stop", str(until_block))
    assert status == 0, said
    return replayed(json.loads(line) for line in out.splitlines())


def test_a_second_chain_in_a_folder_is_logged(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for chain in (5, 6):
        publish_to(f"file://{tmp_path}/{chain}", chain, evm_blocks(chain, 1, 3))
        status, _, said = run_here(
            capfd,
            "record",
            "--from",
            f"file://{tmp_path}/{chain}",
            "--to",
            f"file://{tmp_path}/both",
            "--exit-at",
            "end",
        )
        assert status == 0, said
        assert ("also holds a recording of evm:5" in said) == (chain == 6)


@pytest.mark.process
def test_record_and_replay_copy_a_folder_and_print_a_summary(
    processes: Processes, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    publish_to(f"file://{tmp_path}/one", 5, evm_blocks(5, 1, 20))
    status, out, said = run_here(
        capfd, "record", "--from", f"file://{tmp_path}/one", "--to", f"file://{tmp_path}/two", "--exit-at", "end"
    )
    assert (status, out) == (0, ""), said
    assert "begins the recording" in said
    status, _, said = run_here(
        capfd, "record", "--from", f"file://{tmp_path}/one", "--to", f"file://{tmp_path}/two", "--exit-at", "end"
    )
    assert status == 0
    assert "continues the recording" in said
    assert " info    0 records" in said
    status, out, said = run_here(
        capfd, "replay", "--from", f"file://{tmp_path}/two", "--to", f"file://{tmp_path}/three"
    )
    assert (status, out) == (0, ""), said
    assert "20 blocks sealed" in said
    chains = [chain_of(processes, f"file://{tmp_path}/{name}", 20) for name in ("one", "two", "three")]
    assert chains[0] == chains[1] == chains[2]
    assert len(chains[0]) == 20
    status, out, said = run_here(capfd, "replay", "--from", f"file://{tmp_path}/two")
    assert status == 0, said
    assert sum("  Batch  " in line for line in out.splitlines()) == 20
    assert len(out.splitlines()) == len(records_of(f"file://{tmp_path}/two", apps.get("evm", chain_id=5)))


def test_a_folder_may_be_named_with_a_tilde(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    publish_to("file://~/one", 5, evm_blocks(5, 1, 3))
    status, _, said = run_here(capfd, "record", "--from", "file://~/one", "--to", "file://~/two", "--exit-at", "end")
    assert status == 0, said
    status, out, said = run_here(capfd, "replay", "--from", "file://~/two")
    assert (status, len(out.splitlines())) == (
        0,
        len(records_of(f"file://{tmp_path}/two", apps.get("evm", chain_id=5))),
    )


def test_record_and_replay_take_names_from_a_settings_file(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    publish_to(f"file://{tmp_path}/one", 5, evm_blocks(5, 1, 3))
    config = tmp_path / "cardinal.toml"
    config.write_text(f'[streams.here]\nurl = "file://{tmp_path}/one"\n[streams.copy]\nurl = "file://{tmp_path}/two"\n')
    status, _, said = run_here(
        capfd,
        "record",
        "--from",
        "here",
        "--to",
        "copy",
        "--exit-at",
        "idle",
        "--idle-timeout",
        "0.5",
        "--config",
        str(config),
    )
    assert status == 0, said
    status, out, said = run_here(capfd, "replay", "--from", "copy", "--config", str(config))
    assert status == 0, said
    assert "Batch" in out


@pytest.mark.parametrize(
    "target", ["file://{}/one", "file://{}/other/../one?fsync=never", "mux:null://,file://{}/link"]
)
def test_replaying_a_recording_into_itself_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, target: str
) -> None:
    publish_to(f"file://{tmp_path}/one", 5, evm_blocks(5, 1, 3))
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    before = len(records_of(f"file://{tmp_path}/one", apps.get("evm", chain_id=5)))
    status, out, said = run_here(capfd, "replay", "--from", f"file://{tmp_path}/one", "--to", target.format(tmp_path))
    assert (status, out) == (1, "")
    assert "which would then hold everything twice" in said
    assert len(records_of(f"file://{tmp_path}/one", apps.get("evm", chain_id=5))) == before


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("record", "--from", "kafka://u:s3cr3t@h", "--to", "kafka://u:s3cr3t@h"), "write file://DIR"),
        (("replay", "--from", "kafka://u:s3cr3t@h"), "write file://DIR"),
        (("replay", "--from", "file:///nowhere/at/all"), "there is no recording in"),
        (("replay", "--from", "file://~nobody-of-that-name/at/all"), "no user's home is known"),
        (("replay", "--from", "file:///nowhere/at/all", "--speed", "-1"), "write max"),
        (("replay", "--from", "file:///nowhere/at/all", "--speed", "nan"), "write max"),
        (
            ("record", "--from", "memory://none", "--to", "file:///tmp/x", "--chain-id", "1"),
            "there is no memory broker",
        ),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(
    capfd: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    status, out, said = run_here(capfd, *args)
    assert status != 0
    assert out == ""
    assert says in said
    assert said.count("\n") == 1
    assert "s3cr3t" not in said


@pytest.mark.broker
@pytest.mark.parametrize("options", ["", pytest.param("?transactional=update", marks=pytest.mark.slow)])
def test_a_recording_of_kafka_survives_kills_and_replays_equal(
    processes: Processes, tmp_path: Path, cardinal_broker: EmbeddedKafka, options: str
) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only this case needs it

    chain_id = fresh_chain_id()
    app = apps.get("evm", chain_id=chain_id)
    url = f"kafka://{cardinal_broker.bootstrap}{options}"
    folder = f"file://{tmp_path}/log"
    publish_to(url, chain_id, evm_blocks(chain_id, 1, 20))
    killed = processes.start("record", "--from", url, "--to", folder, "--chain-id", str(chain_id))
    stopped = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish_until, stopped, url, chain_id, 21)
        deadline = time.monotonic() + 60
        while not any((tmp_path / "log").glob("*.avro")) or len(records_of(folder, app)) < 200:
            assert time.monotonic() < deadline
            assert not publishing.done()
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)  # in the middle: the producer goes on all the while
        killed.wait()
        stopped.set()
        last = publishing.result(60)
    assert len(records_of(folder, app)) < len(records_of(url, app))
    with Consumer(url, app, start="earliest") as consumer:
        for update in consumer:
            if update.added and update.added[-1].number == last:
                break
    publish_to(url, chain_id, evm_blocks(chain_id, last + 1, last + 10))
    last += 10
    args = ("record", "--from", url, "--to", folder, "--chain-id", str(chain_id), "--exit-at", "end")
    status, _, said = processes.run(*args)
    assert status == 0, said
    assert "continues the recording" in said
    kept = [record for record in records_of(folder, app) if record.key]
    live = [record for record in records_of(url, app) if record.key]
    assert sorted(kept) == sorted(live)
    # A cursor of the live stream goes on with the recording, control records of transactions or not.
    with Consumer(url, app, start="earliest") as consumer:
        cursor = next(u.cursor for u in consumer if u.added and u.added[-1].number == last)
    with Consumer(folder, app, start=cursor, idle_timeout=1.0) as consumer:
        assert list(consumer) == []
    # Played again where the topics are gone: producers and headers as they were, but for the one that names offsets.
    admin = AdminClient({"bootstrap.servers": cardinal_broker.bootstrap})
    for done in admin.delete_topics(list(app.all_topics)).values():
        done.result(60)
    status, _, said = processes.run("replay", "--from", folder, "--to", f"kafka://{cardinal_broker.bootstrap}")
    assert status == 0, said
    # Both as one: the recording has every block, and so has Kafka; what is delivered is the chain, once.
    numbers: list[int] = []
    with Consumer(f"mux:{folder},kafka://{cardinal_broker.bootstrap}", app) as consumer:
        for update in consumer:
            numbers += [one.number for one in update.added]
            if numbers[-1] == last:
                break
    assert numbers == list(range(1, last + 1))
    again = [record for record in records_of(f"kafka://{cardinal_broker.bootstrap}", app) if record.key]
    assert sorted((r.topic, r.key, r.value, r.headers) for r in again) == sorted(
        (r.topic, r.key, r.value, tuple(each for each in r.headers if each[0] != RANGES_HEADER)) for r in live
    )
