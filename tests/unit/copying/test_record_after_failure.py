"""A recording whose disk was full for a moment: what could not be written then is recorded by the next run."""

from __future__ import annotations

import resource
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from blocks import DEADLINE, Blocks, line, publish
from cardinal.copying.merging import Merge
from cardinal.copying.recording import Recorder
from cardinal.errors import RefusedError, TransportError
from cardinal_devkit.testing._memory_source import MemorySource
from cardinal_devkit.testing.memory import MemoryBroker
from recordings import records_of
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path


def test_records_that_could_not_be_written_are_written_by_the_next_run(tmp_path: Path) -> None:
    """The folder takes nothing while the records come, and everything again when the recorder says where it stands."""
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, line(1, 3))
        _record(broker, tmp_path)
        publish(broker, line(4, 9))
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
        with _files_no_larger_than(10), pytest.raises(TransportError, match="it resumes where it ended"):
            _step_for_ever(recorder)
        recorder.close()
        _record(broker, tmp_path)
        assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


def test_a_recorder_that_failed_to_write_does_not_continue_beyond_the_loss(tmp_path: Path) -> None:
    """There is room again, and the program goes on with the same recorder."""
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, line(1, 9))
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
        with _files_no_larger_than(10), pytest.raises(TransportError, match="it resumes where it ended"):
            _step_for_ever(recorder)
        publish(broker, line(10, 12))
        with pytest.raises(TransportError, match="open another"):
            _step_for_ever(recorder)
        recorder.close()
        _record(broker, tmp_path)
        assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


def test_a_source_that_fails_once_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, line(1, 9))
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
        with monkeypatch.context() as patched:
            patched.setattr(MemorySource, "poll", _refuse)
            with pytest.raises(RefusedError):
                recorder.step(0.05)
        until(lambda: recorder.at_end, step=lambda: recorder.step(0.05))
        recorder.close()
        assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


@pytest.mark.parametrize(("room", "call"), [(MemorySource, "poll"), (Merge, "add"), (Merge, "take")])
def test_an_interrupt_at_any_moment_of_a_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: type, call: str
) -> None:
    """It comes when the call is done, and what it gave is in nobody's hands."""
    done = getattr(room, call)

    def interrupted(*args: object) -> None:
        if done(*args) or call == "add":
            raise KeyboardInterrupt

    with MemoryBroker(uuid.uuid4().hex, partitions=2) as broker:
        publish(broker, line(1, 3))
        _record(broker, tmp_path)
        publish(broker, line(4, 9))
        recorder = Recorder(broker.url, f"file://{tmp_path}", Blocks())
        with monkeypatch.context() as patched:
            patched.setattr(room, call, interrupted)
            with pytest.raises(KeyboardInterrupt):
                _step_for_ever(recorder)
        recorder.close()
        _record(broker, tmp_path)
        assert sorted(records_of(f"file://{tmp_path}")) == broker.records()


def _refuse(*_: object) -> None:
    raise RefusedError("no ACL")


@contextmanager
def _files_no_larger_than(size: int) -> Iterator[None]:
    """What a full disk is to who writes; the limit of the process, so nothing else is to be written meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _step_for_ever(recorder: Recorder) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        recorder.step(0.05)


def _record(broker: MemoryBroker, folder: Path) -> None:
    recorder = Recorder(broker.url, f"file://{folder}", Blocks())
    until(lambda: recorder.at_end, step=lambda: recorder.step(0.05))
    recorder.close()
