"""Tables that a driver keeps open from one batch to the next.

Opening a table reads its log since the last checkpoint, and so does the search for a transaction. In an object store
that is a request for each commit, twice and more. An open table needs one listing.

Rules:

1. They serve a batch only where ``canonical`` is as the last one left it, and ends where the batch's tasks saw it end.
   Otherwise, and after every failure, they are reopened.
2. Every other writer of a table ends with a commit to ``canonical``: it alone is checked. After a driver that did not
   commit to it, the next transaction on that table is refused.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from .decode import NONE
from .tables import CANONICAL, app_id

if TYPE_CHECKING:
    from collections.abc import Collection

    from deltalake import DeltaTable

    from .location import LakeLocation


class OpenTables:
    """Tables by name, each with the seq that its newest transaction has reached.

    Attributes:
        warned: a value that no column holds was logged; they live as long as a run.

    """

    def __init__(self) -> None:
        self.warned = False
        self._tables: dict[str, DeltaTable] = {}
        self._ends: dict[str, tuple[str, int, int]] = {}

    def find(self, location: LakeLocation, name: str) -> DeltaTable | None:
        """A table, None where there is no such table."""
        if name not in self._tables:
            found = location.find(name)
            if found is None:
                return None
            self._tables[name] = found
        return self._tables[name]

    def keep_for(self, lineage: str, bases: Collection[int]) -> None:
        """Reopen every table unless ``canonical`` is as it was left, at the one seq that a batch's tasks saw."""
        canonical = self._tables.get(CANONICAL)
        if canonical is not None:
            left = canonical.version()
            if {self._ends.get(CANONICAL)} == {(lineage, left, base) for base in bases}:
                with contextlib.suppress(DeltaError):  # the log no longer reaches back to this version
                    canonical.update_incremental()
                    if canonical.version() == left:
                        return
        self.clear()

    def seq(self, name: str, table: DeltaTable, lineage: str) -> int:
        """The last seq of a lineage that a table holds, 0 for none."""
        if self._ends.get(name, ())[:2] != (lineage, table.version()):
            version = table.transaction_version(app_id(lineage))
            self.reached(name, table, lineage, NONE if version is None else int(version))
        return self._ends[name][2]

    def reached(self, name: str, table: DeltaTable, lineage: str, seq: int) -> None:
        """Keep a table at its current version, which ends at ``seq``."""
        self._tables[name] = table
        self._ends[name] = (lineage, table.version(), seq)

    def clear(self) -> None:
        """Close every table; the next use reopens it."""
        self._tables.clear()
        self._ends.clear()
