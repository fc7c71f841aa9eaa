"""A ledger with an HTTP API, for the feed in `ledger_feed.py`: `python ledger.py` serves one that reorganises.

Its API is described there. A class for tests, and a program for a first try.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

CHAIN_ID: Final = 11
PORT: Final = 8000
SECONDS: Final = 1.0
EVERY: Final = 5


class Ledger:
    """A ledger of ten blocks behind its HTTP API; port 0 is a free one."""

    def __init__(self, port: int = 0) -> None:
        self.chain: list[dict[str, Any]] = []
        self._branch = 0
        ledger = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, _, number = self.path.rpartition("/")
                found: dict[str, Any] | None = {"id": CHAIN_ID} if number == "chain" else ledger.block(int(number))
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"ledger://127.0.0.1:{self._server.server_port}"
        self.add(10)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def block(self, number: int) -> dict[str, Any] | None:
        """The block of this number."""
        chain = self.chain
        return chain[number] if number < len(chain) else None

    def add(self, blocks: int, depth: int = 0) -> None:
        """Add blocks, in the place of the `depth` highest ones."""
        chain = self.chain[: len(self.chain) - depth]
        self._branch += 1
        for number in range(len(chain), len(chain) + blocks):
            name = sha256(f"{number} {self._branch}".encode()).hexdigest()
            parent = chain[-1]["hash"] if chain else "00" * 32
            values = {"account/ann": number.to_bytes(4).hex()}
            chain.append({"number": number, "hash": name, "parent": parent, "values": values})
        self.chain = chain


def main(port: int = PORT) -> None:
    """Serve a ledger that adds a block every second, and in every fifth second replaces two by three."""
    with Ledger(port) as ledger:
        print(f"ledger {CHAIN_ID} at {ledger.url}; Ctrl-C ends it", flush=True)  # noqa: T201 - a program
        for second in range(1, sys.maxsize):
            time.sleep(SECONDS)
            ledger.add(*((3, 2) if second % EVERY == 0 else (1, 0)))


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
