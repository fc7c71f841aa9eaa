"""The demo's panel: what takes long is drawn with its seconds until it is over."""

from __future__ import annotations

import io

from rich.console import Console

from cardinal import apps
from cardinal_devkit.cli.demo import Screen


def drawn(screen: Screen) -> str:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(screen.panel())
    return console.export_text()


def test_a_wait_is_drawn_with_its_seconds_until_it_ends() -> None:
    with Screen(Console(file=io.StringIO(), force_terminal=True), apps.get("evm", chain_id=1337)) as screen:
        screen.wait("Spark starts")
        assert "Spark starts 0:00:0" in drawn(screen)
        screen.note("a note")
        assert "Spark starts 0:00:0" in drawn(screen), "notes come meanwhile"
        screen.batch(1, 7, 6, 1.0)
        screen.wait("")
        assert "Spark starts" not in drawn(screen)
        assert "lake: batch 1, 7 rows in 1.0 s, head 6" in drawn(screen)
        screen.wait("")
