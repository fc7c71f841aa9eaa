"""Mesh links in a simulated network under seeded faults (tests/model), and faulty links that the simulation finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from click.testing import CliRunner

from cardinal.protocols.mesh import Acceptor, Ack, Effect, Identity, IncomingLink, OutgoingLink
from model.__main__ import main
from model.mesh_schedule import Faults, run_mesh


@pytest.mark.parametrize(
    "seeds",
    [
        range(25),
        pytest.param(range(25, 1_025), marks=pytest.mark.slow),
        *(pytest.param(range(at, at + 1_000), marks=pytest.mark.soak) for at in (1_025, 2_025)),
    ],
    ids=str,
)
def test_a_network_keeps_its_promises(seeds: range) -> None:
    assert [broken for seed in seeds if (broken := run_mesh(seed))] == []


def test_equal_seeds_run_equally() -> None:
    def run() -> list[Any]:
        faults = Faults(7)
        for _ in range(30):
            faults.step()
        return [(node.events, node.disk.facts, node.disk.views) for node in faults.world.nodes.values()]

    assert run() == run()


# --- faulty links ------------------------------------------------------------------------------------------

SNAPSHOT, SEND = OutgoingLink.snapshot, OutgoingLink.send


def acknowledges_what_it_received(link: IncomingLink, now: float) -> None:  # noqa: ARG001 - as the method
    if link.is_connected and link._received > link._acked:
        link._send(Ack(link._received), link._session)
        link._acked = link._received


def loses_the_snapshot(link: OutgoingLink, _messages: Iterable[tuple[int, bytes]], now: float) -> list[Effect]:
    return SNAPSHOT(link, [], now)


def sends_twice(link: OutgoingLink, kind: int, payload: bytes, now: float) -> list[Effect]:
    effects = SEND(link, kind, payload, now)
    if link._head is None and link._session:
        link._seq -= 1
    return effects


@pytest.mark.parametrize(
    ("kind", "method", "fault"),
    [
        (IncomingLink, "_acknowledge", acknowledges_what_it_received),
        (IncomingLink, "is_paused", property(lambda _: False)),
        (IncomingLink, "_hello", lambda *_: None),
        (OutgoingLink, "snapshot", loses_the_snapshot),
        (OutgoingLink, "send", sends_twice),
        (OutgoingLink, "_watch", lambda *_: None),
        (Identity, "check", lambda *_: None),
        (Acceptor, "session", lambda *_: None),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_a_faulty_link_is_found(
    kind: type, method: str, fault: Callable[..., object] | property, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, method, fault)
    assert any(run_mesh(seed) for seed in range(40))


def test_the_command_runs_schedules() -> None:
    result = CliRunner().invoke(main, ["--mesh", "--seeds", "3"])
    assert result.exit_code == 0
    assert result.output.startswith("3 schedules of mesh: 0 differ")


def test_the_command_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutgoingLink, "snapshot", loses_the_snapshot)
    result = CliRunner().invoke(main, ["--mesh", "--seeds", "3"])
    assert result.exit_code == 1
    assert "mesh seed " in result.output
