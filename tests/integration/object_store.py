"""An S3 server of moto in a process of its own, which notes every request.

In a process of its own, because delta-rs holds the interpreter's lock while it opens a file: a server in a thread would
never answer.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType

BUCKET = "bucket"
SIGNED = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=any"
SECONDS = 10


class Noted(NamedTuple):
    """A request: its method, path and query, its condition (``If-None-Match``, ``-`` for none), and the status."""

    method: str
    path: str
    condition: str
    status: int


class ObjectStore:
    """A bucket on a loopback port. ``folder``: where requests are noted."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._notes = folder / "requests"
        self._race = folder / "race"
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(self._notes), str(self._race)], stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._server.stdout.readline())}"
        self.put(BUCKET)

    @property
    def storage(self) -> dict[str, str]:
        """The settings of a store with this server."""
        return {
            "endpoint": self.endpoint,
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": "any",
            "secret_access_key": "any",
        }

    def put(self, path: str, content: bytes = b"", **headers: str) -> None:
        """Store an object. HTTPError where the server refuses."""
        sent = {"Authorization": SIGNED, "Content-Type": "any", **headers}
        urlopen(Request(f"{self.endpoint}/{path}", content, sent, method="PUT"), timeout=SECONDS).close()  # noqa: S310 - ours

    def race(self) -> None:
        """Hold the next commit to any Delta log until another one to the same version has arrived."""
        self._race.touch()

    @property
    def requests(self) -> list[Noted]:
        """Every request until now."""
        noted = (line.split(" ") for line in self._notes.read_text().splitlines())
        return [Noted(method, path, condition, int(status)) for method, path, condition, status in noted]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.communicate()


def serve(notes: Path, race: Path) -> None:
    """Serve on a free port, whose number is printed."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415 - optional
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415 - the same

    class Kept(WSGIRequestHandler):
        """Connections stay open."""

        protocol_version = "HTTP/1.1"

        def log(self, *_: object) -> None:
            pass

    application = DomainDispatcherApplication(create_backend_app)
    both = threading.Barrier(2, action=lambda: race.unlink())  # noqa: PLW0108 - the path is bound late
    one_by_one = threading.Lock()

    def noting(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method == "PUT" and path.endswith(".json") and "/_delta_log/" in path and race.exists():
            both.wait(SECONDS)
        statuses: list[str] = []

        def started(status: str, headers: list[tuple[str, str]], error: object = None) -> object:
            statuses.append(status[:3])
            return start(status, headers, error)

        with one_by_one:
            answer = application(environ, started)
            with notes.open("a") as file:
                query = environ.get("QUERY_STRING")
                condition = environ.get("HTTP_IF_NONE_MATCH", "-")
                file.write(f"{method} {path}{query and f'?{query}'} {condition} {statuses[-1]}\n")
        return answer

    server = make_server("127.0.0.1", 0, noting, threaded=True, request_handler=Kept)
    print(server.port, flush=True)  # noqa: T201 - to whoever started it
    server.serve_forever()


if __name__ == "__main__":
    from pathlib import Path

    serve(Path(sys.argv[1]), Path(sys.argv[2]))
