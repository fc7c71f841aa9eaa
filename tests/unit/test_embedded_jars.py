import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cardinal.embedded.jars import Jar, ensure_jars, locked_jars, parse_lock
from cardinal.errors import JarError


def jar_of(name: str, content: bytes) -> Jar:
    return Jar("group", name, "1.0", hashlib.sha256(content).hexdigest(), len(content))


class Repository:
    """Serves jars from memory and counts how often each is asked for."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = contents
        self.asked: dict[str, int] = {}
        self.failures = 0

    def fetch(self, jar: Jar, place: Path, add: Callable[[int], None]) -> Path:
        self.asked[jar.artifact] = self.asked.get(jar.artifact, 0) + 1
        if self.failures:
            self.failures -= 1
            raise ConnectionResetError("the line went dead")
        path = place / "fetched"
        path.write_bytes(self.contents[jar.artifact])
        add(len(self.contents[jar.artifact]))
        return path


def never(jar: Jar, _place: Path, _add: Callable[[int], None]) -> Path:
    raise AssertionError(f"{jar.name} was asked of the network")


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
    assert repository.asked == {"one": 1, "two": 2}


def test_a_fetched_jar_that_is_not_the_locked_one_is_refused_and_not_kept(tmp_path: Path) -> None:
    repository = Repository(one=b"something else")
    with pytest.raises(JarError, match="SHA-256") as caught:
        ensure_jars(tmp_path, [jar_of("one", b"1")], fetch=repository.fetch)
    assert caught.value.jar == "one-1.0.jar"
    assert not list(tmp_path.rglob("*.jar"))
    assert repository.asked == {"one": 1}, "a wrong jar is not asked for again"


def test_a_network_that_fails_twice_is_tried_a_third_time(tmp_path: Path) -> None:
    repository = Repository(one=b"1")
    repository.failures = 2
    assert ensure_jars(tmp_path, [jar_of("one", b"1")], fetch=repository.fetch)[0].read_bytes() == b"1"


def test_a_network_that_keeps_failing_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    repository = Repository(one=b"1")
    repository.failures = 100
    with pytest.raises(JarError, match="check the network"):
        ensure_jars(tmp_path, [jar_of("one", b"1")], fetch=repository.fetch)
    assert not list(tmp_path.glob(".fetch-*"))


def test_two_who_need_the_same_jars_at_once_fetch_them_once(tmp_path: Path) -> None:
    repository = Repository(one=b"1" * 100)
    jars = [jar_of("one", b"1" * 100)]
    both = threading.Barrier(2, timeout=10)

    def need() -> None:
        both.wait()
        ensure_jars(tmp_path, jars, fetch=repository.fetch)

    threads = [threading.Thread(target=need) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert repository.asked == {"one": 1}
