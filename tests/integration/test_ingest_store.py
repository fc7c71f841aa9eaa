"""Store of an ingest node: what a commit has reported is there after a kill, and a full disk loses nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from cardinal.errors import ConfigurationError, StoreError
from cardinal.server.ingest.store import BodyStore

DEADLINE = 30.0
STREAM = "items:1"


def add(store: BodyStore, number: int, body: bytes = b"body") -> None:
    store.add(number, b"", b"", body, first=0).result(DEADLINE)


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process with a store."""
    head = "import sys\nfrom pathlib import Path\nfrom cardinal.server.ingest.store import BodyStore\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_blocks_are_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    numbers = [3, 0, 2**63 + 5, 2**64 - 2]
    with closing(BodyStore(tmp_path, STREAM)) as store:
        assert store.first() is None
        for number in numbers:
            store.add(number, b"h" * 32, b"p" * 32, b"%d" % number, first=3).result(DEADLINE)
    with closing(BodyStore(tmp_path, STREAM)) as store:
        assert store.first() == 3
        assert [block.number for block in store.blocks()] == sorted(numbers)
        assert {block.number: block.ticket for block in store.blocks()} == dict(zip(numbers, range(1, 5), strict=True))
        assert all(store.body(number, b"h" * 32) == b"%d" % number for number in numbers)


def test_what_is_on_the_topics_loses_its_body_and_is_forgotten_when_no_fork_can_begin_there(tmp_path: Path) -> None:
    with closing(BodyStore(tmp_path, STREAM)) as store:
        for number in range(5):
            add(store, number)
        for number in range(4):
            store.promoted(number, b"").result(DEADLINE)
        with pytest.raises(StoreError, match="no body of block 1"):
            store.body(1, b"")
        store.forget(2).result(DEADLINE)
        assert [block.number for block in store.blocks()] == [2, 3, 4]
        store.forget(10).result(DEADLINE)
        assert [(block.number, block.promoted) for block in store.blocks()] == [(3, True), (4, False)], "the parent"


def test_bodies_are_retained_for_peers_until_they_are_old_and_not_pinned(tmp_path: Path) -> None:
    pinned = {(0, b"")}
    with closing(BodyStore(tmp_path, STREAM, retain=2)) as store:
        store.unpinned = lambda blocks: [block for block in blocks if block not in pinned]

        def retained() -> list[int]:
            return [number for number in range(6) if store.size(number, b"") is not None]

        for number in range(5):
            add(store, number)
            store.promoted(number, b"").result(DEADLINE)
        assert store.pool_bytes == 0
        assert retained() == [0, 3, 4]
        assert store.body(3, b"") == b"body"
        pinned.clear()
        add(store, 5)
        assert (store.pool_bytes, retained()) == (4, [0, 3, 4, 5])
        store.promoted(5, b"").result(DEADLINE)
        assert retained() == [4, 5]
    with closing(BodyStore(tmp_path, STREAM)) as store:
        assert [block.number for block in store.blocks() if block.retained] == [4, 5]
        add(store, 6)
        store.promoted(6, b"").result(DEADLINE)
        assert [block.number for block in store.blocks() if block.retained] == []


def test_a_block_that_its_chain_left_behind_is_removed_unless_it_is_on_the_topics(tmp_path: Path) -> None:
    with closing(BodyStore(tmp_path, STREAM)) as store:
        for number in range(3):
            add(store, number)
        store.promoted(0, b"").result(DEADLINE)
        for number in range(2):
            store.remove(number, b"").result(DEADLINE)
        assert [block.number for block in store.blocks()] == [0, 2]
        assert store.pool_bytes == 4


def test_a_block_that_is_stored_again_stays_as_it_was(tmp_path: Path) -> None:
    with closing(BodyStore(tmp_path, STREAM)) as store:
        add(store, 1, b"first")
        add(store, 1, b"second")
        assert store.body(1, b"") == b"first"


def test_a_process_that_is_killed_keeps_what_was_reported(tmp_path: Path) -> None:
    writer = run(
        """
        store = BodyStore(Path(sys.argv[1]), "items:1")
        for number in range(100_000):
            store.add(number, b"", b"", bytes(5_000), first=0).result()
            print(number, flush=True)
        """,
        tmp_path,
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 40:
            break
    writer.kill()
    reported = [40, *map(int, writer.communicate()[0].split())]
    with closing(BodyStore(tmp_path, STREAM)) as store:
        numbers = [block.number for block in store.blocks()]
        assert numbers[: reported[-1] + 1] == list(range(reported[-1] + 1))
        assert all(store.body(number, b"") == bytes(5_000) for number in numbers)


def test_a_full_disk_fails_what_waits_and_the_store_goes_on(tmp_path: Path) -> None:
    done = run(
        """
        import resource, signal
        from cardinal.errors import StoreError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = BodyStore(Path(sys.argv[1]), "items:1")
        store.add(0, b"", b"", bytes(10_000), first=0).result()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
        error = store.add(1, b"", b"", bytes(5_000_000), first=0).exception()
        assert isinstance(error, StoreError) and error.retriable, error
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.add(2, b"", b"", bytes(5_000_000), first=0).result()
        store.close()
        """,
        tmp_path,
    )
    assert done.communicate(timeout=DEADLINE) == ("", "")
    with closing(BodyStore(tmp_path, STREAM)) as store:
        assert [block.number for block in store.blocks()] == [0, 2]


def test_a_folder_that_somebody_has_is_refused(tmp_path: Path) -> None:
    holder = run(
        """
        store = BodyStore(Path(sys.argv[1]), "items:1")
        print("open", flush=True)
        sys.stdin.read()
        """,
        tmp_path,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    try:
        with pytest.raises(ConfigurationError, match="another process has the data folder"):
            BodyStore(tmp_path, STREAM)
    finally:
        holder.kill()
        holder.communicate()
    BodyStore(tmp_path, STREAM).close()


def test_the_folder_of_another_stream_is_refused(tmp_path: Path) -> None:
    BodyStore(tmp_path, STREAM).close()
    with pytest.raises(ConfigurationError, match="belongs to stream items:1, not evm:1"):
        BodyStore(tmp_path, "evm:1")
