"""Levels of what an ingest node logs: a warning is what somebody may have to act on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import pytest

from cardinal_ingest.cluster.links import Links
from cardinal_ingest.node.events import end_name, end_of, event_of
from cardinal_ingest.node.log_limit import LogLimit
from cardinal_ingest.protocols.mesh.types import Changed, LinkState, Reason
from cardinal_ingest.protocols.publish import (
    BlockId,
    BranchRefused,
    CatchUp,
    CatchUpStuck,
    EndCode,
    EndOfStream,
    EndStream,
    NodeError,
    SourceError,
    Status,
)
from meshing import identity

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cardinal.ingest")


def test_healing_is_no_warning_and_every_event_names_its_block() -> None:
    block = BlockId(7, bytes(32))
    events = [event_of(one) for one in (CatchUp(3, 5), CatchUpStuck(5), BranchRefused(block, block))]
    assert [(one.kind, one.level, one.fields["block"]) for one in events] == [
        ("catch_up", logging.INFO, 3),
        ("catch_up_stuck", logging.WARNING, 5),
        ("branch_refused", logging.WARNING, 7),
    ]
    assert {event_of(one).level for one in (SourceError(), NodeError())} == {logging.WARNING}


def changes(now: list[float]) -> Callable[..., None]:
    links: Any = Links(identity("a"), cast("Any", None), "127.0.0.1:0", now=lambda: now[0])

    def changed(state: LinkState, reason: Reason | None = None, *, way: str = "to", peer: str = "b") -> None:
        links._changed(way, Changed(peer, state, reason, "refused" if reason else ""))

    return changed


def test_a_member_that_starts_later_is_no_warning_and_one_that_stays_away_is_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    changed = changes(now)
    for now[0] in (0.0, 1.0, 9.0, 10.0, 11.0, 60.0):
        changed(LinkState.DISCONNECTED, Reason.CONNECTION_LOST)
    changed(LinkState.CONNECTED)
    changed(LinkState.DISCONNECTED, Reason.CLOSED)
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "the link to b ended (ConnectionLost): refused"),
        ("WARNING", "the link to b is not connected for 10 s: refused"),
        ("INFO", "the link to b is connected"),
        ("INFO", "the link to b ended (Closed): refused"),
    ]


def test_a_peer_that_breaks_the_protocol_is_a_warning_and_strangers_that_leave_are_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    changed = changes(now)
    changed(LinkState.DISCONNECTED, Reason.BAD_SIGNATURE)
    for now[0] in (1.0, 30.0):
        changed(LinkState.DISCONNECTED, Reason.CONNECTION_LOST, way="of", peer="")
    assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]
    assert all(
        {"kind", "peer", "reason", "seconds"} <= cast("dict[str, object]", one.args).keys() for one in caplog.records
    )


def test_a_cause_has_ten_lines_a_minute_and_the_next_minute_their_number() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    assert [limit.take("refused", "a") for _ in range(12)] == [0] * 10 + [None] * 2
    assert limit.take("refused", "b") == 0
    now = 60.0
    assert [limit.take("refused", "a") for _ in range(2)] == [2, 0]
    assert limit.take("refused", "b") == 0


def test_causes_that_strangers_choose_are_bounded() -> None:
    limit = LogLimit(lambda: 0.0)
    lines = [limit.take("connected", str(address)) for address in range(5_000)]
    assert lines.count(0) == 1_024 + 10


def test_ends_of_streams_are_named_by_the_codes_of_the_protocol() -> None:
    assert end_of(EndOfStream(Status.TIMEOUT, 4, 5)) == (
        logging.WARNING,
        "the node ended its stream at block 5 (timeout)",
    )
    assert end_of(EndOfStream(Status.SUCCESS, 4)) == (logging.INFO, "the node ended its stream (success)")
    assert [end_name(EndStream(code, 0, 0)) for code in (EndCode.RESET, 99)] == ["reset", "code 99"]
