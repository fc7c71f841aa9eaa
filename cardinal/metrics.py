"""Metrics endpoint of a running command: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz``.

``/healthz`` answers 200 while the process lives; ``/readyz`` answers 200 while the process does its work, and otherwise
503 with the reason.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cardinal.errors import ConfigurationError, MissingExtraError

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.platform_collector import PlatformCollector
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import Collector
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Metrics", "server") from absent

if TYPE_CHECKING:
    from types import TracebackType
    from wsgiref.types import StartResponse, WSGIEnvironment

__all__ = [
    "Collector",
    "CollectorRegistry",
    "Counter",
    "CounterMetricFamily",
    "Endpoint",
    "GaugeMetricFamily",
    "Histogram",
    "Metric",
    "new_registry",
]

_PORT_MAX: Final = 65_535
_LOG: Final = logging.getLogger("cardinal.metrics")


def new_registry() -> CollectorRegistry:
    """A registry with the metrics of the process: memory, CPU time, open files."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


class Endpoint:
    """HTTP server on a thread of its own; a context manager.

    Arguments:
        address: ``host:port``; port 0 uses a free one.
        registry: the metrics of ``/metrics``.
        waits_for: returns a sentence with the reason for waiting; empty while the work is done.

    Raises:
        ConfigurationError: the address is not ``host:port``, or is in use.

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
        """The address of the server, ``host:port``."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = request["PATH_INFO"]
        if path == "/metrics":
            try:
                return self._metrics(request, start)  # type: ignore[no-any-return] # prometheus-client is untyped here
            except Exception:  # noqa: BLE001 - a collector of a user may raise anything; other requests are answered
                _LOG.exception("the metrics cannot be collected")
                start("500 Internal Server Error", [("Content-Type", "text/plain; charset=utf-8")])
                return [b"the metrics cannot be collected: see the log\n"]
        waits_for = self._waits_for() if path == "/readyz" else ""
        known = path in ("/healthz", "/readyz")
        status = "404 Not Found" if not known else "503 Service Unavailable" if waits_for else "200 OK"
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        text = waits_for or ("ok" if known else "there are /metrics, /healthz and /readyz")
        return [f"{text}\n".encode()]


class _Server(ThreadingMixIn, WSGIServer):
    """Server with a thread for each client: an idle one delays no other."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the library's types
        """Log a broken or silent connection at debug level."""
        del request
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _LOG.log(level, "a request from %s failed", client_address, exc_info=True)


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the library's names
        """Requests are not logged."""
