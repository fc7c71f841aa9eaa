"""State of the lake: the one that the newest commit of ``canonical`` carries.

Rules:

1. The state is in the commit's own metadata, so that rows of ``canonical`` and versions of the other tables change in
   one atomic step.
2. The driver's commits carry it, and maintenance's last one. Those in between do not change what rows mean. It is
   read from the commit's own file: a history call could return a commit newer than the table that was opened.
3. It belongs to the commit that carries it: a commit that was rebased over another one must not carry any.

This file never writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltalake import CommitProperties, Transaction

from cardinal_spark.errors import LakeError

from .tables import CANONICAL, app_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .location import LakeLocation

_METADATA: Final = "cardinal.state"
_UNFIT: Final = "cardinal.unfit"


@dataclass(frozen=True, slots=True)
class LakeState:
    """State of a lake for its readers.

    Attributes:
        lineage: the stream's lineage.
        app: the application's specification, JSON.
        seq: the last row of the ledger that is visible.
        number: height of the head.
        hash: hash of the head, 32 bytes.
        versions: table to the Delta version that belongs to this state.
        canonical: version of ``canonical`` itself, None until it is committed.
        unfit: the newest batch's blocks with a null for a number that no column holds.

    """

    lineage: str
    app: str
    seq: int
    number: int
    hash: bytes
    versions: Mapping[str, int]
    canonical: int | None = None
    unfit: int = 0

    def properties(self, *, with_seq: bool = False, retries: int | None = None) -> CommitProperties:
        """Commit properties that carry this state; with the transaction's seq where the commit reaches it."""
        text = json.dumps(
            {
                "lineage": self.lineage,
                "app": self.app,
                "seq": self.seq,
                "number": self.number,
                "hash": self.hash.hex(),
                "versions": dict(self.versions),
            },
            sort_keys=True,
        )
        transactions = [Transaction(app_id(self.lineage), self.seq)] if with_seq else None
        # beside the state: earlier releases refuse a state with a name that they do not know
        unfit = {_UNFIT: str(self.unfit)} if self.unfit else {}
        return CommitProperties({_METADATA: text, **unfit}, retries, transactions)


def read_state(location: LakeLocation) -> LakeState:
    """The state that the newest commit of ``canonical`` names. LakeError where there is no lake."""
    state = find_state(location)
    if state is None:
        raise LakeError(f"there is no lake at {location.root}, or nothing has been committed to it yet")
    return state


def find_state(location: LakeLocation) -> LakeState | None:
    """As :func:`read_state`; None where nothing has been committed."""
    try:
        return _newest_state(location)
    except FileNotFoundError:
        raise LakeError(
            f"the log of canonical in {location.root} no longer reaches back to a commit of Cardinal: "
            "run the query, whose next batch restores it"
        ) from None


def shown_seq(location: LakeLocation, lineage: str) -> int | None:
    """The last visible seq of a lineage, None where the lake has no row of it."""
    try:
        state = _newest_state(location)
    except FileNotFoundError:
        version = location.open(CANONICAL).transaction_version(app_id(lineage))
        return None if version is None else int(version)
    return state.seq if state is not None and state.lineage == lineage else None


def state_at(location: LakeLocation, seq: int) -> LakeState | None:
    """The state whose last row is ``seq``; None where there is none, or the log no longer reaches back to it."""
    try:
        found = next((state for state in _states(location) if state.seq <= seq), None)
    except FileNotFoundError:
        return None
    return found if found is not None and found.seq == seq else None


def _newest_state(location: LakeLocation) -> LakeState | None:
    """The newest state; FileNotFoundError where the log begins after the commit that carries it."""
    return next(_states(location), None)


def _states(location: LakeLocation) -> Iterator[LakeState]:
    """The states, newest first; FileNotFoundError where the log begins."""
    newest = location.newest(CANONICAL)
    if newest is None:
        return
    files = location.files(CANONICAL)
    for version in range(newest, -1, -1):
        with files.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
            found = _state_of(stream.read(), newest)
        if found is not None:
            yield found
            newest = version - 1


def _state_of(log: bytes, canonical: int) -> LakeState | None:
    for line in log.splitlines():
        commit = json.loads(line).get("commitInfo", {})
        if (text := commit.get(_METADATA)) is not None:
            held = json.loads(text) | {"unfit": int(commit.get(_UNFIT, 0))}
            block_hash = bytes.fromhex(held.pop("hash"))
            return LakeState(**held, hash=block_hash, canonical=canonical)
    return None
