"""Recording of the demo's panel for the README, from a real run: ``python docs/make_demo_svg.py``."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from cardinal import apps
from cardinal_devkit.cli.demo import Screen
from cardinal_devkit.demo.run import CHAIN_ID, Demo, DemoSettings

TARGET = Path(__file__).with_name("demo.svg")
COLUMNS = 88
BLOCKS = 48


def main() -> int:
    """Play the demo, and save its panel at the end; 1 where node, consumer and lake do not agree."""
    with TemporaryDirectory() as folder, Screen(Console(), apps.get("evm", chain_id=CHAIN_ID)) as screen:
        outcome = Demo(DemoSettings(Path(folder), 7, BLOCKS, 4.0), screen).play()
        recorded = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        recorded.print(screen.panel())
    if outcome.differences:
        return 1
    # without its fonts, which a page would fetch from another server
    picture = re.sub(r"\s*@font-face \{.*?\}", "", recorded.export_svg(title="cardinal demo"), flags=re.DOTALL)
    TARGET.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
