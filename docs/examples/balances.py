"""Balances: the ether that every account has received, kept in SQLite. Follows the chain through reorgs and crashes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from cardinal import ChainUpdate, MissingPayload, Payload
from cardinal_ethereum import decode


class Balances:
    """Handler for the fault kit: `cardinal faults --handler docs/examples/balances.py:Balances --app evm`."""

    def __init__(self, directory: Path) -> None:
        self.db = sqlite3.connect(directory / "balances.sqlite")
        with self.db:
            self.db.execute("create table if not exists balance (account text primary key, gwei integer not null)")
            self.db.execute("create table if not exists position (one integer primary key, cursor text not null)")

    def handle(self, update: ChainUpdate) -> None:
        """Undo the removed blocks, apply the added ones, and store the cursor: all in one transaction."""
        with self.db:
            for block in update.removed:
                self._credit(block, -1)
            for block in update.added:
                self._credit(block, +1)
            self.db.execute("insert or replace into position values (1, ?)", (str(update.cursor),))

    def cursor(self) -> str | None:
        """The cursor of the last update, None before the first."""
        row = self.db.execute("select cursor from position").fetchone()
        return row[0] if row else None

    def state(self) -> object:
        """What this application's users see."""
        return dict(self.db.execute("select account, gwei from balance where gwei != 0"))

    def _credit(self, block: Payload | MissingPayload, sign: int) -> None:
        if isinstance(block, MissingPayload):
            return  # its content can no longer be had: nothing was credited, so nothing is taken back
        for transaction in decode(block).transactions:
            if transaction.to is not None and transaction.value:
                self.db.execute(
                    "insert into balance values (?, ?) on conflict (account) do update set gwei = gwei + excluded.gwei",
                    (transaction.to.hex(), sign * (transaction.value // 10**9)),
                )
