"""The core knows no word of its guests: names, texts and docstrings, which no rule for imports sees."""

from __future__ import annotations

import io
import re
import token
import tokenize
from pathlib import Path

CORE = Path(__file__).parents[2] / "cardinal"
WORDS = re.compile(
    r"(?i)(?<![a-z])(abi|anvil|delta[-_ ]?lake|duckdb|erc20|eth|ethereum|evm|geth|hiero|ingest|lake|reth|websocket|wss)"
    r"(?![a-z])"
)
ALLOWED = {
    "apps/__init__.py": "the application that is taken where none is named, and examples",
    "apps/base.py": "an example of a chain's name, and the source of a figure",
    "apps/blob.py": "what it is an alternative to",
    "cli/produce.py": "help: where blocks can be sent",
    "cli/topics.py": "help: topics of a cluster are listed and deleted with their stream's",
    "config/settings.py": "an example",
    "consumer.py": "examples",
    "consuming/metrics.py": "why the buckets are as they are",
    "consuming/options.py": "an example",
    "protocols/streams/cursor.py": "an example",
    "server/produce/service.py": "two rules of a destination that keeps no blocks",
    "server/status.py": "an example",
    "server/topics.py": "names of a cluster's topics, which are listed and deleted with their stream's",
}


def words(source: str) -> set[str]:
    """Guests' words in names and texts; comments may compare."""
    found: set[str] = set()
    for one in tokenize.generate_tokens(io.StringIO(source).readline):
        if one.type in (token.NAME, token.STRING, getattr(token, "FSTRING_MIDDLE", -1)):
            found |= {word.lower() for word in WORDS.findall(one.string)}
    return found


def test_the_core_knows_no_word_of_its_guests() -> None:
    found = {str(path.relative_to(CORE)) for path in CORE.rglob("*.py") if words(path.read_text())}
    assert found == ALLOWED.keys()


def test_the_look_finds_what_it_looks_for() -> None:
    assert words('lake = f"{x} of Ethereum"\n# ingest\nmode = "lakeside"') == {"lake", "ethereum"}
