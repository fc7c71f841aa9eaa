"""Planted leaks: a run in which a secret shows up somewhere fails, and says where without repeating it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from secrets_watch import leaking, marks_in

HEAD = """
import asyncio, base64, bz2, gzip, io, logging, lzma, os, subprocess, sys, zlib
import fastavro
import pytest
from secrets_watch import leaking
SECRET = "my-s3cr3t-word"
"""

LEAKS = {
    "Captured stdout call": """
def test_output():
    print(SECRET)

def test_header():
    print("Authorization: Basic", base64.b64encode(f"me:{SECRET}".encode()).decode())

def test_percent():
    print("".join(f"%{byte:02X}" for byte in SECRET.encode()))

def test_digits():
    print(SECRET.encode().hex().upper())
""",
    "the log some.room": """
def test_log():
    logging.getLogger("some.room").warning("refused %s", SECRET)

def test_traceback():
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("some.room").exception("oh")
""",
    "the log cardinal.room": """
@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_nobody_reads(level, caplog):
    logging.getLogger("cardinal.room").log(getattr(logging, level), "refused %s", SECRET)
    assert not caplog.records
""",
    "an error KeyError": """
def test_error():
    with pytest.raises(KeyError):
        raise KeyError(SECRET)

def test_cause():
    with pytest.raises(ValueError):
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError("no") from error

def test_attribute():
    error = KeyError("no")
    error.url = {"password": SECRET}
    with pytest.raises(KeyError):
        raise error
""",
    "stderr of a child process": """
def test_child():
    script = "import sys; sys.stderr.write(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, SECRET], capture_output=True, check=True)

def test_awaited_child():
    async def child():
        script = "import sys; sys.stderr.write(sys.argv[1])"
        done = await asyncio.create_subprocess_exec(sys.executable, "-c", script, SECRET, stderr=subprocess.PIPE)
        await done.communicate()
    asyncio.run(child())
""",
}
"""What is said, and the tests of which each is to be said."""

FILE = """
def test_file(tmp_path):
    with open(tmp_path / "cursor", "wb") as file:
        file.write(bytes(5_000_000) + SECRET.encode())
"""

PACKED = """
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zlib.compress])
def test_packed(pack, tmp_path):
    with open(tmp_path / "packed", "wb") as file:
        file.write(pack(bytes(5_000_000) + SECRET.encode()))

def test_avro(tmp_path):
    records = [{"a": bytes(1_000)}] * 2_000 + [{"a": SECRET.encode()}]
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "bytes"}]}
    with open(tmp_path / "avro", "wb") as file:
        fastavro.writer(file, schema, records, codec="snappy")

def test_cut_off(tmp_path):
    for at, pack in enumerate([gzip.compress, bz2.compress, lzma.compress, zlib.compress]):
        with open(tmp_path / str(at), "wb") as file:
            file.write(pack(b"nothing")[:-4])
    with open(tmp_path / "log", "wb") as file:
        file.write(b"xx" + b"Obj")
"""

TWICE = """
def test_written_again(tmp_path):
    file = tmp_path / "settings"
    file.write_text(f"password={SECRET}")
    with open(file, "a") as product:
        product.write(" # which is " + SECRET)
"""

KEPT = """
def test_where_secrets_belong(tmp_path):
    (tmp_path / "password").write_text(SECRET)
    (tmp_path / "fresh").write_text("new" + SECRET)
    (tmp_path / "fresh").replace(tmp_path / "password")
    owner = os.open(tmp_path / "server.properties", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(owner, SECRET.encode())
    os.close(owner)

def test_what_must_leak():
    with leaking(), pytest.raises(ValueError):
        raise ValueError(SECRET)
"""


PASSWORD = re.compile(r"[a-z]+://[^\s:/@]*:([^\s/@]+)@")
"""What stands between a user and a host."""

HIDDEN = "…"
"""What is shown in place of a password."""


def run(folder: Path, source: str) -> tuple[int, str]:
    """A run of pytest of its own: its status, and what it printed."""
    test = folder / "test_planted.py"
    test.write_text(HEAD + source)
    command = [sys.executable, "-m", "pytest", "-p", "secrets_watch", "-p", "no:cacheprovider", "-rfE"]
    command += ["--no-header", "--show-capture=no", "-c", os.devnull, "--basetemp", str(folder / "nested"), str(test)]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "CARDINAL_TESTS": str(test)}
    environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # which holds secrets
    with leaking():  # it shows what it captured
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environ, timeout=60)
    shutil.rmtree(folder / "nested", ignore_errors=True)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of a run in which everything leaks."""
    files = [
        FILE,
        PACKED,
        TWICE,
        *(KEPT.replace("0o600", mode).replace("_belong", mode) for mode in ("0o644", "0o640")),
    ]
    status, said = run(tmp_path_factory.mktemp("leaks"), "".join([*LEAKS.values(), *files]))
    assert status == 1
    return said


@pytest.mark.process
def test_every_planted_leak_fails_its_test(said: str) -> None:
    assert "13 failed" in said
    for where, tests in LEAKS.items():
        for name in re.findall(r"def (test_\w+)", tests):
            assert f"::{name}: {where} holds a secret" in said, (name, said)
    assert "s3cr3t" not in said


@pytest.mark.process
def test_a_file_that_holds_a_secret_fails_the_run(said: str) -> None:
    assert "test_file0/cursor holds a secret" in said


@pytest.mark.process
def test_a_file_in_which_a_secret_is_packed_fails_the_run(said: str) -> None:
    assert len(set(re.findall(r"the file \S+/packed holds a secret", said))) == 4, said
    assert "test_avro0/avro holds a secret" in said


@pytest.mark.process
def test_a_file_that_a_test_wrote_is_a_leak_when_it_holds_something_else(said: str) -> None:
    assert "test_written_again0/settings holds a secret" in said


@pytest.mark.process
def test_secrets_may_stand_where_they_belong(tmp_path: Path) -> None:
    status, said = run(tmp_path, KEPT)
    assert status == 0, said
    assert "2 passed" in said


@pytest.mark.process
@pytest.mark.parametrize("mode", ["0o644", "0o640"])
def test_a_broker_s_file_that_others_may_read_is_a_leak(said: str, mode: str) -> None:
    assert f"{mode}0/server.properties holds a secret" in said


@pytest.mark.slow
def test_every_password_that_a_test_writes_into_a_url_is_one_that_is_watched() -> None:
    """Another word, such as `hidden`, could be printed anywhere and nobody would see it."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in Path(__file__).parents[2].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for password in PASSWORD.findall(_text(node))
        if "{" not in password and password != HIDDEN and not marks_in(password)
    ]
    assert found == []


def _text(node: ast.AST) -> str:
    """What stands in a string; `{}` for what is put in when the test runs."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
