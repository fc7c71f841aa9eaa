"""`serve`, `tail`, `record`, `replay` and `repair` where they cannot work: one sentence that says what to do, no more.

Most are refused before anything is started, so that they run in this process; what writes to a full disk runs alone.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commands import COMMAND, DEADLINE

from cardinal.cli.main import main

DEAF = "127.0.0.1:1"
SERVE = ("serve", "--from", "null://", "--chain-id", "1")
RANGE = ("--first", "1", "--last", "2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where things lie that are none."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "nothing").write_text("")
    (tmp_path / "noise").write_bytes(b"\xff s3cr3t")
    (tmp_path / "nopem").write_text("s3cr3t")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """The status and the one sentence of a command that must fail."""
    monkeypatch.setattr(sys, "argv", ["cardinal", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    out, said = capfd.readouterr()
    assert out == ""
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "s3cr3t" not in said
    return int(str(ended.value.code)), said


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((*SERVE, "--token-file", "away"), "the file away of token-file cannot be read: No such file"),
        ((*SERVE, "--token-file", "nothing"), "is empty, or too large for a secret"),
        ((*SERVE, "--token-file", "noise"), "does not hold text"),
        ((*SERVE, "--cert-file", "nopem"), "they are no certificate and its key without a password, in PEM"),
        ((*SERVE, "--cert-file", "away"), "No such file or directory"),
        ((*SERVE, "--key-file", "nopem"), "a key is of no use without its certificate: give both"),
        ((*SERVE, "--listen", "somewhere:else:x"), "write HOST:PORT"),
        ((*SERVE, "--listen", "203.0.113.9:9999"), "Cannot assign requested address; give another address by --listen"),
        (("serve", "--from", f"ws://{DEAF}?token=s3cr3t"), "start `cardinal serve` there or correct the address"),
        (("serve", "--from", "file://empty"), "start `cardinal produce` first"),
        (("tail", f"ws://user:s3cr3t@{DEAF}"), "give the server's token by token_file=PATH"),
        (("tail", f"ws://{DEAF}?token_file=away"), "the file away of token_file cannot be read"),
        (("tail", f"ws://{DEAF}?tokn=s3cr3t"), "there is no option tokn of ws:// URLs: use "),
        (("tail", f"wss://{DEAF}?token=s3cr3t&ssl.ca.location=nopem"), "there is nothing in PEM in it"),
        (("tail", f"kafka://u:s3cr3t@{DEAF}?compresion.type=s3cr3t"), "did you mean compression.type?"),
        (("tail", f"kafka://{DEAF}?connect.timeout.ms=3"), "did you mean cardinal.connect.timeout.ms?"),
        (("tail", f"kafka://{DEAF}?cardinal.colour=s3cr3t"), "it takes librdkafka's properties, and cardinal.connect."),
        (("tail", f"kafka://{DEAF}?cardinal.partition=3"), "did you mean cardinal.partitions?"),
        (("tail", f"kafka://{DEAF}?tls=1&ssl.ca.location=away"), "the file of ssl.ca.location cannot be used: check"),
        (("tail", f"kafka://{DEAF}?tls=1&ssl.certificate.location=nopem"), "ssl.certificate.location cannot be used"),
        (("tail", f"kafka://u:s3cr3t@{DEAF}?sasl.mechanism=MAGIC"), "Unsupported SASL mechanism: MAGIC; correct the"),
        (("tail", "file://file"), "the folder file cannot be read: Not a directory"),
        (("tail", f"kafka://{DEAF}", "--chain-id", "1", "--heal", f"gopher://u:s3cr3t@{DEAF}"), "begins with one of"),
        (
            ("record", "--from", "null://", "--to", "file:///proc/here", "--chain-id", "1"),
            "name one that this user may write",
        ),
        (
            ("record", "--from", "null://", "--to", "file://file", "--chain-id", "1"),
            "there is a file of that name; name one",
        ),
        (("record", "--from", "null://", "--to", "file://file/below", "--chain-id", "1"), "Not a directory; name one"),
        (
            ("record", "--from", "null://", "--to", "file://out?fsync=maybe", "--chain-id", "1"),
            "'always', 'interval' or 'never'",
        ),
        (
            ("record", "--from", "null://", "--to", "file://out", "--chain-id", "1", "--app", "s"),
            "choose one of: blob, evm",
        ),
        (("replay", "--from", "file://away"), "there is no recording in away: name the folder of one"),
        (("replay", "--from", "file://file"), "Not a directory"),
        (
            ("replay", "--from", "file://empty", "--chain-id", "1", "--to", f"kafka://u:s3cr3t@{DEAF}"),
            "check application and",
        ),
        (("repair", "--from", "dev://", "--to", f"ws://{DEAF}?token=s3cr3t", *RANGE), "correct the address"),
        (("repair", "--from", "dev://", "--to", "file://away", *RANGE), "check application and chain id"),
        (("repair", "--from", f"gopher://u:s3cr3t@{DEAF}", "--to", "null://", *RANGE), "begins with one of"),
        (("repair", "--from", f"http://u:s3cr3t@{DEAF}/s3cr3t", "--to", "null://", *RANGE), "check that it runs"),
    ],
)
def test_what_cannot_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    del folder
    status, said = refused(monkeypatch, capfd, *args)
    assert status == 1
    assert says in said


@pytest.mark.parametrize("command", [("tail", "null://"), ("record", "--from", "null://", "--to", "file://out")])
@pytest.mark.parametrize("start", ["yesterday", "-5", "5.5", "head", "d1:abc", ""])
def test_a_beginning_that_is_none_is_told_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: tuple[str, ...], start: str
) -> None:
    status, said = refused(monkeypatch, capfd, *command, "--start", start)
    assert status == 2
    assert f"such as 2026-01-13T22:00:00Z or a cursor, not {start!r}: see `cardinal {command[0]} --help`" in said


def test_an_address_that_is_taken(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        status, said = refused(monkeypatch, capfd, *SERVE, "--listen", where)
    assert status == 1
    assert f"cannot listen on {where}: Address already in use; give another address by --listen" in said


def _full() -> None:
    """What a disk is that has room for 30,000 more bytes of every file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full here")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("tail", "LOG", "--stop", "100"), "nothing more can be written to the standard output: No space left"),
        (("tail", "LOG", "--format", "json", "--start", "50"), "nothing more can be written to the standard output"),
        (
            ("replay", "--from", "LOG"),
            "nothing more can be written to the standard output: No space left on device; make room",
        ),
        (("replay", "--from", "LOG", "--to", "file://copy"), "could not be written to copy: File too large; make room"),
        (
            ("record", "--from", "LOG", "--to", "file://copy", "--exit-at", "end"),
            "free space on the disk and restart, it resumes where it ended",
        ),
    ],
)
def test_a_disk_that_is_full(folder: Path, args: tuple[str, ...], says: str) -> None:
    made = [*COMMAND, "produce", "--from", "dev://?blocks=100", "--to", "file://log"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True, timeout=DEADLINE)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *(arg.replace("LOG", "file://log") for arg in args)],
            cwd=folder,
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE,
            preexec_fn=_full,
        )
    *before, last = done.stderr.splitlines()
    assert done.returncode == 1, done.stderr
    assert last.startswith("error: ")
    assert says in last
    assert "Traceback" not in done.stderr
    assert len(before) <= 2
