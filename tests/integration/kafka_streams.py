"""Helpers of the Kafka producer tests: a small stream of its own, its blocks, and a reader."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import reading
from cardinal.apps import Application
from cardinal.protocols.streams import Payload, Record
from cardinal.transports import open_source

DEADLINE = 60.0


def small_stream(stem: str | None = None, *, threshold: int = 16) -> Application:
    """A small stream on topics of its own."""
    stem = stem or uuid.uuid4().hex[:12]
    return Application(
        name="blocks",
        chain="blocks:1",
        default_topic=f"{stem}-block",
        topics={"a/": f"{stem}-a"},
        prefixes=("a/",),
        reorg_threshold=threshold,
    )


def named(name: str) -> bytes:
    """The hash of a block called `3a`."""
    return name.encode().rjust(32, b"\0")


def a_block(name: str, parent: str, values: int = 5, size: int = 100) -> Payload:
    """Block `3a`: number 3, some counted values, one inside its Batch."""
    number = int("".join(char for char in name if char.isdigit()))
    updates = {f"a/{index}": f"{name}-{index}".encode().ljust(size, b".") for index in range(values)}
    return Payload(number, named(name), named(parent), number, {**updates, "inside": name.encode()})


def a_chain(spec: str, root: str = "0g", values: int = 5) -> list[Payload]:
    """`"1a 2a 3a"`: each the parent of the next."""
    names = spec.split()
    return [a_block(name, parent, values) for parent, name in zip((root, *names), names, strict=False)]


def everything_on(url: str, app: Application, topics: list[str] | None = None) -> list[Record]:
    """All committed records with a key, up to the end of each partition as it is now."""
    with closing(open_source(url, app, topics=topics)) as source:
        return [record for record in reading.everything(source) if record.key]


@contextmanager
def child(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs a script beside these tests, killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *args],
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
