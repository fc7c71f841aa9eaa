"""Handlers for the tests of the fault kit: one that is right, and one for each usual mistake."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from cardinal import ChainUpdate


class Rows:
    """Keeps a row for each block and the cursor in one file, which is replaced atomically."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "rows.json"
        stored = json.loads(self.file.read_text()) if self.file.exists() else {"rows": {}, "cursor": None}
        self.rows, self.position = stored["rows"], stored["cursor"]

    def handle(self, update: ChainUpdate) -> None:
        for block in update.removed:
            del self.rows[str(block.number)]
        for block in update.added:
            self.rows[str(block.number)] = block.hash.hex()
        self.position = str(update.cursor)
        self.save()

    def save(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"rows": self.rows, "cursor": self.position}))
        new.replace(self.file)

    def cursor(self) -> str | None:
        return self.position

    def state(self) -> object:
        return self.rows


class OnlyInMemory(Rows):
    """Begins again after every restart, which is slow and right."""

    def save(self) -> None:
        return


class CountsInMemory(Rows):
    """Stores nothing, and leaves what a reorg removes: only the running handler shows it."""

    def handle(self, update: ChainUpdate) -> None:
        for block in update.added:
            self.rows[str(block.number)] = self.rows.get(str(block.number), "") + "x"

    def save(self) -> None:
        return


class IgnoresRemoved(Rows):
    def handle(self, update: ChainUpdate) -> None:
        for block in update.added:
            self.rows[str(block.number)] = block.hash.hex()
        self.position = str(update.cursor)
        self.save()


class CursorFirst(Rows):
    def handle(self, update: ChainUpdate) -> None:
        self.position = str(update.cursor)
        self.save()
        super().handle(update)


class CursorLast(Rows):
    """Counts blocks, so that a block that is delivered again counts twice."""

    def handle(self, update: ChainUpdate) -> None:
        count = len(update.added) - len(update.removed)
        self.rows["blocks"] = self.rows.get("blocks", 0) + count
        self.save()
        self.position = str(update.cursor)
        self.save()


class KeepsNothing(Rows):
    def state(self) -> object:
        return {}


class WritesInPlace(Rows):
    def save(self) -> None:
        with self.file.open("w") as file:
            file.write('{"rows": ')
            json.dump(self.rows, file)
            file.flush()
            file.write(f', "cursor": {json.dumps(self.position)}}}')


class ReadsMissing(Rows):
    def handle(self, update: ChainUpdate) -> None:
        for block in update.added:
            len(block.updates)  # type: ignore[union-attr] # the mistake
        super().handle(update)


class Hangs(Rows):
    def handle(self, update: ChainUpdate) -> None:
        if update.removed:
            time.sleep(600)
        super().handle(update)


class Exits(Rows):
    def handle(self, update: ChainUpdate) -> None:
        if update.removed:
            os._exit(7)
        super().handle(update)


class Clock(Rows):
    def state(self) -> object:
        return time.time_ns()


class ShowsAddresses(Rows):
    def state(self) -> object:
        return [object()]


class StoresNoCursor(Rows):
    def cursor(self) -> str | None:
        return "cursor" if self.position else None


def no_store(directory: Path) -> Rows:
    raise RuntimeError(f"no store in {directory.name}")
