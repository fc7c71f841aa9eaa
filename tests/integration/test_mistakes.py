"""Mistakes on the command line: each gets one sentence that says what to do, soon, and the right exit status.

No traceback, no credential. Most are refused before anything is started, so that they run in this process.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import COMMAND, DEADLINE, Processes, fresh_chain_id, limited, run_here

from cardinal import apps
from cardinal.producer import Producer
from serving import until

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

DEAF = "127.0.0.1:1"
"""Nobody listens there: the port is below those that users may take."""

STREAM = f"kafka://user:s3cr3t@{DEAF}"
NODE = f"http://user:s3cr3t@{DEAF}/s3cr3t"
SERVE = "serve --from null:// --chain-id 1"
RECORD = "record --from null:// --chain-id 1"
RANGE = "--start 1 --stop 2"


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


def refused(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """The status and the one sentence of a command that must fail."""
    status, out, said = run_here(capfd, *args)
    assert out == ""
    *logged, sentence, end = said.split("\n")
    assert sentence.startswith("error: ")
    assert end == ""
    assert not [line for line in logged if " info " not in line]
    assert "s3cr3t" not in said
    return status, said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"produce --from gopher://user:s3cr3t@{DEAF} --to {STREAM}", "write one of archive://, dev://, http://"),
        (
            f"produce --from user:s3cr3t@{DEAF} --to {STREAM}",
            "a node's URL begins with a scheme: write one of archive://, dev://",
        ),
        (f"produce --from http://user:s3cr3t@[bad --to {STREAM}", "write http://host:port"),
        (f"produce --from dev://user:s3cr3t@[bad --to {STREAM}", "cannot be read"),
        (
            f"produce --from http://user:s3cr3t@host:99999 --to {STREAM}",
            "the URL of the node cannot be read: write http://host:port",
        ),
        (f"produce --from dev://?colour=red --to {STREAM}", "colour"),
        (f"produce --from {NODE} --to redis://user:s3cr3t@{DEAF}", "write kafka://host:port"),
        (f"produce --from {NODE} --to kafka://user:s3cr3t@host:none", "with a port from 1 to 65535"),
        (f"produce --from dev:// --to {STREAM}?colour=red", "no option colour of kafka:// URLs"),
        (f"tail redis://user:s3cr3t@{DEAF}", "write kafka://host:port"),
        (f"tail user:s3cr3t@{DEAF}", "write kafka://host:port"),
        ("tail kafka://user:s3cr3t@[bad", "write kafka://host:port"),
        (f"{SERVE} --token-file away", "the file away of token-file cannot be read: No such file"),
        (f"{SERVE} --token-file nothing", "is empty or too large for a secret"),
        (f"{SERVE} --token-file noise", "is not UTF-8 text"),
        (f"{SERVE} --cert-file nopem", "they are no certificate and its key without a password, in PEM"),
        (f"{SERVE} --cert-file away", "No such file or directory"),
        (f"{SERVE} --key-file nopem", "a key is of no use without its certificate: give both"),
        (f"{SERVE} --listen somewhere:else:x", "write HOST:PORT"),
        (f"{SERVE} --listen 203.0.113.9:9999", "Cannot assign requested address; choose another address with --listen"),
        (f"tail ws://user:s3cr3t@{DEAF}", "set the server's token with token_file=PATH"),
        (f"tail ws://{DEAF}?token_file=away", "the file away of token_file cannot be read"),
        (f"tail ws://{DEAF}?tokn=s3cr3t", "there is no option tokn of ws:// URLs: did you mean token?"),
        (f"tail wss://{DEAF}?token=s3cr3t&ssl.ca.location=nopem", "it holds no PEM of that kind"),
        (f"tail kafka://u:s3cr3t@{DEAF}?compresion.type=s3cr3t", "did you mean compression.type?"),
        (f"tail kafka://{DEAF}?connect.timeout.ms=3", "did you mean cardinal.connect.timeout.ms?"),
        (f"tail kafka://{DEAF}?cardinal.colour=s3cr3t", "use a librdkafka property, or cardinal.connect."),
        (f"tail kafka://{DEAF}?cardinal.partition=3", "did you mean cardinal.partitions?"),
        (f"tail kafka://{DEAF}?tls=1&ssl.ca.location=away", "the file of ssl.ca.location cannot be used: check"),
        (f"tail kafka://{DEAF}?tls=1&ssl.certificate.location=nopem", "ssl.certificate.location cannot be used"),
        (f"tail kafka://u:s3cr3t@{DEAF}?sasl.mechanism=MAGIC", "Unsupported SASL mechanism: MAGIC; correct the"),
        ("tail file://file", "the folder file cannot be read: Not a directory"),
        (f"tail null:// --chain-id 1 --heal gopher://u:s3cr3t@{DEAF}", "write one of archive://"),
        (f"{RECORD} --to file:///proc/here", "name one that this user may write"),
        (f"{RECORD} --to file://file", "there is a file of that name; name one"),
        (f"{RECORD} --to file://file/below", "Not a directory; name one"),
        (f"{RECORD} --to file://out?fsync=maybe", "'always' or 'never'"),
        (f"{RECORD} --to file://out --app s", "choose one of: blob, evm"),
        ("tail file://away", "there is no folder away: check the path, or start `cardinal produce`"),
        ("status file://away", "there is no folder away: check the path"),
        ("status file://empty", "there is no known stream on file://empty"),
        (
            "topics file://empty --app blob --chain-id 7",
            "there is no topic of any blob stream of chain 7 on file://empty",
        ),
        ("topics file://empty", "there is no topic of any stream on file://empty"),
        ("replay --from file://empty", "empty holds no recording of an evm stream: name a folder that"),
        ("replay --from file://away", "there is no recording in away: name the folder of one"),
        ("replay --from file://file", "Not a directory"),
        (f"replay --from file://empty --chain-id 1 --to kafka://u:s3cr3t@{DEAF}", "check application and"),
        (f"repair --from dev:// --to ws://{DEAF}?token=s3cr3t {RANGE}", "correct the address"),
        (f"repair --from dev:// --to file://away {RANGE}", "check application and chain id"),
        (f"repair --from gopher://u:s3cr3t@{DEAF} --to null:// {RANGE}", "write one of archive://"),
        (f"repair --from http://u:s3cr3t@{DEAF}/s3cr3t --to null:// {RANGE}", "check that it runs"),
    ],
)
def test_invalid_input(folder: Path, capfd: pytest.CaptureFixture[str], line: str, says: str) -> None:
    del folder
    status, said = refused(capfd, *line.split())
    assert status == 1
    assert says in said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"tail {STREAM} --format yaml", "'yaml' is not one of 'table', 'json': see `cardinal tail --help`"),
        (f"tail {STREAM} --stop -1", "see `cardinal tail --help`"),
        (f"tail {STREAM} --xyz", "No such option '--xyz': see `cardinal tail --help`"),
        (f"tail {STREAM} --start c1:yesterday", "copy the cursor whole, or write another position"),
        ("tail", "Missing argument 'URL': see `cardinal tail --help`"),
        (f"produce --from {NODE}", "Missing option '--to': see `cardinal produce --help`"),
        ("broker up --port kafka", "see `cardinal broker up --help`"),
        ("broker up --port", "Option '--port' requires an argument: see `cardinal --help`"),
        ("brokr", "No such command 'brokr': did you mean broker?"),
        ("tial", "No such command 'tial': did you mean tail?"),
        ("TAIL", "No such command 'TAIL': did you mean tail?"),
        ("dev-nod", "No such command 'dev-nod': did you mean dev-node?"),
        ("wholly", "No such command 'wholly': see `cardinal --help`"),
        ("lake staus away", "No such command 'staus': did you mean status?"),
        ("cluster initt", "No such command 'initt': did you mean init?"),
        ("broker wholly", "No such command 'wholly': see `cardinal broker --help`"),
        ("--log-levl info tail", "No such option '--log-levl': did you mean --log-level?"),
        (f"tail {STREAM} --strat 3", "No such option '--strat': did you mean --start?"),
        (f"tail {STREAM} --log-level debug", "No such option '--log-level': it stands before the command: `cardinal -"),
        ("lake run --form a --to b", "No such option '--form': did you mean --from?"),
        (f"tail {STREAM} --start 30 --stop 20", "--stop 20 lies before --start 30: see `cardinal tail --h"),
        (f"tail {STREAM} --chain-id 0", "0 is not in the range x>=1: see `cardinal tail --help`"),
        (f"tail {STREAM} --topic ours", "add --chain-id: see `cardinal tail --help`"),
        (f"status {STREAM} --hash 0x12", "write a block's whole hash, 0x and 64 hex digits, not '0x12'"),
        (f"record {STREAM} file://out", "Missing option '--from': see `cardinal record --help`"),
        (f"record --from {STREAM} --to {STREAM} --exit-at never", "not one of 'end', 'idle'"),
        (f"--log-level loud tail {STREAM}", "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ],
)
def test_a_line_that_makes_no_sense(capfd: pytest.CaptureFixture[str], line: str, says: str) -> None:
    status, said = refused(capfd, *line.split())
    assert status == 2
    assert says in said


@pytest.mark.parametrize("command", [("tail", "null://"), ("record", "--from", "null://", "--to", "file://out")])
@pytest.mark.parametrize("start", ["yesterday", "-5", "5.5", "head", "d1:abc", ""])
def test_an_invalid_start_lists_the_valid_ones(
    capfd: pytest.CaptureFixture[str], command: tuple[str, ...], start: str
) -> None:
    status, said = refused(capfd, *command, "--start", start)
    assert status == 2
    assert f"such as 2026-01-13T22:00:00Z or a cursor, not {start!r}: see `cardinal {command[0]} --help`" in said


def test_an_address_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        status, said = refused(capfd, *SERVE.split(), "--listen", where)
    assert status == 1
    assert f"cannot listen on {where}: Address already in use; choose another address with --listen" in said


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream of a hundred blocks."""
    folder = tmp_path_factory.mktemp("stream") / "log"
    made = [*COMMAND, "produce", "--from", "dev://?blocks=100", "--to", f"file://{folder}"]
    subprocess.run(made, check=True, capture_output=True, timeout=DEADLINE)
    return folder


@pytest.mark.process
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
def test_a_disk_that_is_full(folder: Path, log: Path, args: tuple[str, ...], says: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*limited(30_000), *(arg.replace("LOG", f"file://{log}") for arg in args)],
            cwd=folder,
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE,
        )
    *before, last = done.stderr.splitlines()
    assert done.returncode == 1, done.stderr
    assert last.startswith("error: ")
    assert says in last
    assert "Traceback" not in done.stderr
    assert len(before) <= 2


class Page(BaseHTTPRequestHandler):
    """A web server that is no node."""

    def do_GET(self) -> None:
        page = b"<html><body>Welcome</body></html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_POST = do_GET  # noqa: N815 - the names that http.server looks for

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as processes:
        yield processes


@pytest.fixture
def page() -> Iterator[str]:
    """The address of a web server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"user:s3cr3t@127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def ended(processes: Processes, process: subprocess.Popen[str], status: int = 1) -> str:
    """The one sentence of a command that must fail, soon and without a word of the credentials."""
    found, out, said = processes.end(process)
    assert (found, out) == (status, ""), said
    *waits, last = said.splitlines()
    assert last.startswith("error: ")
    assert all(": waiting for it for 10 seconds" in line for line in waits)
    assert "s3cr3t" not in said
    return last


def test_a_web_server_that_is_no_broker(capfd: pytest.CaptureFixture[str], page: str) -> None:
    status, said = refused(capfd, "tail", f"kafka://{page.partition('@')[2]}", "--chain-id", "1")
    assert status == 1
    assert "it is no Kafka broker: check host and port" in said


def test_a_demo_in_place_of_a_file_is_refused(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    status, said = refused(capfd, "demo", "--dir", "file")
    assert status in (1, 2)
    assert "name another folder by --dir" in said
    assert (folder / "file").read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "says"), [("http", "check that the URL is a node's"), ("ws", "check the URL's WebSocket port")]
)
def test_a_web_server_that_is_no_node(capfd: pytest.CaptureFixture[str], page: str, scheme: str, says: str) -> None:
    status, said = refused(capfd, "produce", "--from", f"{scheme}://{page}/s3cr3t", "--to", STREAM)
    assert status == 1
    assert says in said


@pytest.mark.slow
@pytest.mark.broker
def test_what_may_still_appear_is_waited_for_a_short_time(
    cardinal_killable_broker: EmbeddedKafka, processes: Processes
) -> None:
    """No broker, a port that says nothing, a broker without a stream: all at once, since each is waited for."""
    bare = f"kafka://{cardinal_killable_broker.bootstrap}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = f"kafka://user:s3cr3t@127.0.0.1:{silent.getsockname()[1]}"
        started = {
            processes.start(*args): says
            for args, says in (
                (("tail", STREAM), "start one (cardinal broker up), correct the address"),
                (("tail", mute), "start one (cardinal broker up), correct the address"),
                (("tail", bare), "start `cardinal produce` first"),
                (("tail", bare, "--chain-id", "7"), "start a producer first, or check application and chain id"),
            )
        }
        for process, says in started.items():
            assert says in ended(processes, process)


@pytest.mark.process
@pytest.mark.parametrize(
    ("node", "says"),
    [
        (NODE, "check that it runs and the URL is right; the service waits"),
        (f"ws://user:s3cr3t@{DEAF}", "check that it runs and the URL is right; the service waits"),
        ("dev://", "start one (cardinal broker up), correct the address"),
    ],
)
def test_a_producer_waits_for_a_node_or_a_broker_and_says_for_which(
    processes: Processes, tmp_path: Path, node: str, says: str
) -> None:
    process, log = processes.start("produce", "--from", node, "--to", STREAM), tmp_path / "0.err"
    until(lambda: says in log.read_text())
    process.terminate()
    status, out, said = processes.end(process)
    assert (status, out) == (0, "")
    assert "s3cr3t" not in said


@pytest.mark.broker
def test_a_login_where_none_is_wanted(cardinal_broker: EmbeddedKafka, capfd: pytest.CaptureFixture[str]) -> None:
    status, said = refused(capfd, "tail", f"kafka://user:s3cr3t@{cardinal_broker.bootstrap}")
    assert status == 1
    assert "accepts no login: leave user, password" in said


@pytest.mark.broker
def test_a_chain_that_is_not_named_or_not_there(
    cardinal_broker: EmbeddedKafka, capfd: pytest.CaptureFixture[str]
) -> None:
    """The streams that exist are listed; what is not waited for is refused at once."""
    stream, (first, second) = f"kafka://{cardinal_broker.bootstrap}", sorted(fresh_chain_id() for _ in range(2))
    for chain in (first, second):
        Producer(stream, apps.get("evm", chain_id=chain), producer_id="one").close()
    status, said = refused(capfd, "tail", stream)
    assert status == 1
    assert "several evm streams" in said
    assert f"{first}" in said
    assert "--chain-id" in said
    absent = str(fresh_chain_id())
    for command in ("status", "topics"):
        status, said = refused(capfd, command, stream, "--chain-id", absent)
        assert status == 1
        assert f"stream of chain {absent}" in said
        assert f"{first}" in said
