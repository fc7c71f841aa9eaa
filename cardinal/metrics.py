"""What a running command says of itself over HTTP: ``/metrics`` for Prometheus, ``/healthz``, ``/readyz``.

``/healthz`` answers 200 as long as the process lives, ``/readyz`` only while it does its work, and 503 else, with a
sentence that says what it waits for.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cardinal.errors import ConfigurationError, MissingExtraError

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.platform_collector import PlatformCollector
    from prometheus_client.process_collector import ProcessCollector
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Metrics", "server") from absent

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

__all__ = ["Endpoint", "new_registry"]

_PORT_MAX: Final = 65_535


def new_registry() -> CollectorRegistry:
    """A registry that tells of the process already."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


class Endpoint:
    """Answers on a thread of its own until it is closed.

    Arguments:
        address: ``host:port``; port 0 takes a free one.
        registry: what ``/metrics`` shows.
        waits_for: what the work waits for, in a sentence; empty while it goes on.

    Raises:
        ConfigurationError: the address is none, or is taken.

    """

    def __init__(self, address: str, registry: CollectorRegistry, waits_for: Callable[[], str]) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _PORT_MAX:
            raise ConfigurationError(
                f"--metrics takes host:port, as in 127.0.0.1:9090, not {address!r}", setting="metrics"
            )
        self._metrics = make_wsgi_app(registry)
        self._waits_for = waits_for
        try:
            server = _SixServer if ":" in host else _Server
            self._server = make_server(host.strip("[]"), int(port), self._answer, server, _Silent)
        except OSError as error:
            raise ConfigurationError(f"metrics cannot be served at {address}: {error}", setting="metrics") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="cardinal-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it answers, ``host:port``."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = request["PATH_INFO"]
        if path == "/metrics":
            return self._metrics(request, start)  # type: ignore[no-any-return] # prometheus-client leaves it untyped
        waits_for = self._waits_for() if path == "/readyz" else ""
        known = path in ("/healthz", "/readyz")
        status = "404 Not Found" if not known else "503 Service Unavailable" if waits_for else "200 OK"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        said = waits_for or ("ok" if known else "there are /metrics, /healthz and /readyz")
        return [f"{said}\n".encode()]


class _Server(ThreadingMixIn, WSGIServer):
    """A client that sends nothing holds nobody up."""

    daemon_threads = True
    block_on_close = False


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the library's names
        """Requests are no news."""
