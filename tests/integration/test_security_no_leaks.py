"""Passwords are in no log, error, value, cursor or metric of clients that log in at a real broker."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cardinal.metrics import Endpoint, new_registry
from cardinal_devkit import ChainGenerator
from cardinal_relay.server.status import StatusCollector
from secured_brokers import ADMIN, MECHANISMS, SECRETS, WRONG, SecuredBroker
from serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DEADLINE = 60.0

TALK = """
import base64, json, logging, sys, traceback
from cardinal.consumer import Consumer
from cardinal.producer import Producer
from cardinal_devkit.testing.generator import ChainGenerator
from cardinal.transports import open_source, parse_url

logging.basicConfig(level=logging.DEBUG)
app = ChainGenerator(1).application
for url in json.load(sys.stdin):
    print(parse_url(url), repr(parse_url(url)))
    for attempt in (Producer, open_source, Consumer):
        try:
            opened = attempt(url, app, producer_id="one") if attempt is Producer else attempt(url, app)
            print(opened, vars(opened))
            if attempt is Producer:
                for payload in ChainGenerator(1).payloads(3):
                    opened.add(payload).result(60)
            if attempt is Consumer:
                cursor = next(iter(opened)).cursor
                print("cursor", str(cursor), repr(cursor))
                for part in str(cursor).split(":"):
                    print("cursor's bytes", base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
            opened.close()
        except Exception as error:
            traceback.print_exc()
            print(repr(error), vars(error), repr(error.__cause__), repr(error.__context__))
"""


def _metrics(url: str) -> str:
    """What a server that reads from this broker says of itself."""
    with serving(url, ChainGenerator(1).application, tokens=(WRONG,)) as served:
        registry = new_registry()
        registry.register(StatusCollector(lambda: served.status))
        endpoint = Endpoint("127.0.0.1:0", registry, lambda: served.service.waits_for)
        found = repr((served.service, served.status))
        for path in ("/readyz", "/metrics"):
            connection = http.client.HTTPConnection(endpoint.address, timeout=DEADLINE)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status in (200, 503), "it may not have caught up yet"
            found += f"{answer.headers.items()} {answer.read()!r}"
            connection.close()
        endpoint.close()
    assert "cardinal_serve_upstream_connected" in found
    return found


def test_nothing_that_was_written_holds_a_password(
    secured_broker: Callable[[str], SecuredBroker], folder: Path
) -> None:
    """Logs of the brokers and of a talkative client, errors with all that hangs on them, what our values print."""
    urls: list[str] = []
    at = secured_broker("login")
    told = repr((at, at.broker.security, vars(at.broker)))
    for mechanism in MECHANISMS:
        options = {"sasl__mechanism": mechanism, "log": "1", "debug": "security,broker,conf"}
        urls += [at.url(ADMIN, password, **options) for password in (None, WRONG)]
    done = subprocess.run(
        [sys.executable, "-c", TALK],
        input=json.dumps(urls),
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    assert done.stdout.count("RefusedError") >= 9
    assert "SASL" in done.stderr, "librdkafka was talkative"
    assert done.stdout.count("cursor's bytes") >= 2 * len(MECHANISMS)
    written = {"values": told, "stdout": done.stdout, "stderr": done.stderr, "metrics": _metrics(at.url(ADMIN))}
    for path in folder.rglob("*"):
        # the one file that has to hold PLAIN's users is its owner's alone
        if path.is_file() and path.name == "server.properties":
            assert path.stat().st_mode & 0o077 == 0
        elif path.is_file() and path.suffix in (".log", ".json", ".1", ".pid", ".list"):
            written[str(path)] = path.read_text(errors="replace")
    assert sum(name.endswith("server.log") for name in written) >= 1
    found = [(name, secret) for name, text in written.items() for secret in SECRETS if secret in text]
    assert found == []
