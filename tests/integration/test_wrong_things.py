"""What cannot work, asked of the commands: one sentence that says what to do, soon, without a secret or a traceback."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from commands import Processes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from cardinal.embedded import EmbeddedKafka

SOON = 20.0
DEAF = "127.0.0.1:1"
"""Nobody listens there: the port is below those that users may take."""


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
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"user:s3cr3t@127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def refused(processes: Processes, process: subprocess.Popen[str], status: int = 1) -> str:
    """The one sentence of a command that must fail, soon and without a word of the credentials."""
    found, out, said = processes.end(process, SOON)
    assert (found, out) == (status, ""), said
    *waits, last = said.splitlines()
    assert last.startswith("error: ")
    assert all(": waiting for it for 10 seconds" in line for line in waits)
    assert "s3cr3t" not in said
    return last


STREAM = f"kafka://user:s3cr3t@{DEAF}"
NODE = f"http://user:s3cr3t@{DEAF}/s3cr3t"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ("produce", "--from", f"gopher://user:s3cr3t@{DEAF}", "--to", STREAM),
            "it begins with one of archive://, dev://, http://",
        ),
        (
            ("produce", "--from", f"user:s3cr3t@{DEAF}", "--to", STREAM),
            "it begins with one of archive://, dev://, http://",
        ),
        (("produce", "--from", "http://user:s3cr3t@[bad", "--to", STREAM), "write http://host:port"),
        (("produce", "--from", "dev://user:s3cr3t@[bad", "--to", STREAM), "cannot be read"),
        (("produce", "--from", "http://user:s3cr3t@host:99999", "--to", STREAM), "check the URL"),
        (("produce", "--from", "dev://?colour=red", "--to", STREAM), "colour"),
        (("produce", "--from", NODE, "--to", f"redis://user:s3cr3t@{DEAF}"), "write kafka://host:port"),
        (("produce", "--from", NODE, "--to", "kafka://user:s3cr3t@host:none"), "write a number from 1 to 65535"),
        (("produce", "--from", "dev://", "--to", f"{STREAM}?colour=red"), "no option colour of kafka:// URLs"),
        (("produce", "--from", NODE, "--to", STREAM), "check that it runs and the URL is right"),
        (("produce", "--from", f"ws://user:s3cr3t@{DEAF}", "--to", STREAM), "check that it runs and the URL is right"),
        (("tail", f"redis://user:s3cr3t@{DEAF}"), "write kafka://host:port"),
        (("tail", f"user:s3cr3t@{DEAF}"), "write kafka://host:port"),
        (("tail", "kafka://user:s3cr3t@[bad"), "write kafka://host:port"),
    ],
)
def test_an_address_that_cannot_work(processes: Processes, args: tuple[str, ...], says: str) -> None:
    assert says in refused(processes, processes.start(*args))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("tail", STREAM, "--format", "yaml"), "'yaml' is not one of 'table', 'json': see `cardinal tail --help`"),
        (("tail", STREAM, "--stop", "-1"), "see `cardinal tail --help`"),
        (("tail", STREAM, "--xyz"), "No such option '--xyz': see `cardinal tail --help`"),
        (("tail", STREAM, "--start", "c1:yesterday"), "copy the cursor whole, or write another position"),
        (("tail",), "Missing argument 'URL': see `cardinal tail --help`"),
        (("produce", "--from", NODE), "Missing option '--to': see `cardinal produce --help`"),
        (("broker", "up", "--port", "kafka"), "see `cardinal broker up --help`"),
        (("broker", "up", "--port"), "Option '--port' requires an argument: see `cardinal --help`"),
        (("brokr",), "No such command 'brokr'"),
    ],
)
def test_an_option_that_cannot_work(processes: Processes, args: tuple[str, ...], says: str) -> None:
    assert says in refused(processes, processes.start(*args), status=2)


@pytest.mark.parametrize(
    ("scheme", "says"), [("http", "check that the URL is a node's"), ("ws", "is it its WebSocket")]
)
def test_a_web_server_that_is_no_node(processes: Processes, page: str, scheme: str, says: str) -> None:
    process = processes.start("produce", "--from", f"{scheme}://{page}/s3cr3t", "--to", STREAM)
    assert says in refused(processes, process)


@pytest.mark.broker
def test_what_may_still_come_is_waited_for_but_not_for_long(
    cardinal_killable_broker: EmbeddedKafka, processes: Processes
) -> None:
    """No broker, a port that says nothing, a broker without a stream: all at once, since each is waited for."""
    bare = f"kafka://{cardinal_killable_broker.bootstrap}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = f"kafka://user:s3cr3t@127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        started = {
            processes.start(*args): says
            for args, says in (
                (
                    ("produce", "--from", "dev://", "--to", STREAM),
                    "start one (cardinal broker up), correct the address",
                ),
                (("tail", STREAM), "start one (cardinal broker up), correct the address"),
                (("tail", mute), "start one (cardinal broker up), correct the address"),
                (("tail", bare), "start `cardinal produce` first"),
                (("tail", bare, "--chain-id", "7"), "start a producer first, or check application and chain id"),
            )
        }
        for process, says in started.items():
            assert says in refused(processes, process)
        assert time.monotonic() - begun < SOON


@pytest.mark.broker
def test_a_login_where_none_is_wanted(cardinal_broker: EmbeddedKafka, processes: Processes) -> None:
    stream = f"kafka://user:s3cr3t@{cardinal_broker.bootstrap}"
    assert "wants no login: leave user, password" in refused(processes, processes.start("tail", stream))
