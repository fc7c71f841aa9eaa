"""Generated parts of the pages in this folder: ``python docs/reference.py`` writes them.

A generated part stands between a marker ``<!-- name -->`` and the next ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cardinal.cli.main import cardinal
from cardinal.config.options import Options
from cardinal.transports.file.settings import FileSettings
from cardinal.transports.kafka.settings import KafkaSettings
from cardinal_devkit.devchain.settings import DevOptions
from cardinal_ethereum.feed.url import NodeOptions
from cardinal_ethereum.tables.decoded import SCHEMAS
from cardinal_ingest.publisher.settings import IngestOptions
from cardinal_relay.transport.settings import WebsocketOptions
from cardinal_spark.lake.options import READ_OPTIONS, SINK_OPTIONS, STREAM_OPTIONS
from cardinal_spark.lake.tables import CANONICAL_SCHEMA, EVENTS_SCHEMA, KEYS
from cardinal_spark.rows import KEY_ARROW
from cardinal_spark.source.options import OPTIONS
from cardinal_spark.source.tables import EVENTS_ARROW, PAYLOAD_ARROW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

DOCS: Final = Path(__file__).parent

_WIDTH: Final = 100
"""Columns of a help text."""

_TYPED: Final = DOCS.parent / "schemas/evm-tables.json"
_MEANINGS: Final = {
    "_seq": "number of the change, from 1, without a gap",
    "_change": "+1: its block joins the chain, −1: it leaves",
    "_update_id": "the `_seq` with which its update begins; a reorg is one update",
    "_block_number": "the block's number",
    "_block_hash": "the block's hash",
    "_block_time": "the block's own time; null in `events`",
    "_published_at": "the time at which its Batch was published",
    "_lineage": "identifies the numbering of `_seq`: chain, options and first block; others number differently",
    "lineage": "as `_lineage`",
    "parent": "the parent's hash; null where the block's content is missing",
    "weight": "of the chain up to the block, big-endian",
    "path": "the value's path as text; null where it is not UTF-8",
    "raw_path": "the path's bytes where it is not UTF-8",
    "value": "the value; null: the path is deleted",
    "seq": "as `_seq`",
    "change": "as `_change`",
    "update_id": "as `_update_id`",
    "number": "the block's number",
    "hash": "the block's hash",
    "block_time": "as `_block_time`",
    "published_at": "as `_published_at`",
    "bucket": "10,000 heights: the partition",
    "transaction_index": "the index of its transaction",
    "log_index": "its index in the block",
    "address": "the contract that emitted it",
    "name": "the event's name; null where no signature of `abi` matches",
    "signature": "the signature that matches",
    "arguments": "JSON: an array of `{name, type, value}`, numbers as text",
    "reason": "the reason why it could not be decoded",
    "strict": "false where the encoding is not canonical but has one meaning; null without a name",
    "topics": "as in `logs`",
    "data": "the arguments that are not indexed",
}


_NOT_SHOWN: Final = frozenset({"block_number", "block_hash", "block_timestamp", "block_date"})
"""Of a typed table: they are described once."""


def pages() -> dict[Path, str]:
    """Every page with generated parts, and its text as it should be."""
    made = {"spark.md": _spark(), "commands.md": {"commands": _commands()}, "urls.md": _urls()}
    return {DOCS / name: _filled(name, parts) for name, parts in made.items()}


def _filled(name: str, parts: Mapping[str, str]) -> str:
    text = (DOCS / name).read_text(encoding="utf-8")
    for mark, part in parts.items():
        marked = re.compile(rf"<!-- {mark} -->\n.*?<!-- end -->", re.DOTALL)
        whole = f"<!-- {mark} -->\n\n{part}\n<!-- end -->"
        text, count = marked.subn(lambda _, whole=whole: whole, text)
        if count != 1:
            raise SystemExit(f"{name} has {count} marks <!-- {mark} -->, not one")
    return text


def _spark() -> dict[str, str]:
    typed = json.loads(_TYPED.read_text())["tables"]
    decoded = [column for column in SCHEMAS["decoded_logs"] if column.name not in _NOT_SHOWN]
    return {
        "source options": _options(OPTIONS),
        "sink options": _options(SINK_OPTIONS),
        "read options": _options(READ_OPTIONS),
        "stream options": _options(STREAM_OPTIONS),
        "source keys": _columns(KEY_ARROW),
        "source events": _columns(EVENTS_ARROW, KEY_ARROW.names),
        "payload": _columns(PAYLOAD_ARROW, KEY_ARROW.names),
        "decoded_logs": _columns(decoded),
        "lake keys": _columns(KEYS),
        "lake events": _columns(EVENTS_SCHEMA),
        "canonical": _columns(CANONICAL_SCHEMA),
        "every typed table": _described(one for one in typed["logs"] if one["name"] in _NOT_SHOWN),
        **{table: _described(one for one in typed[table] if one["name"] not in _NOT_SHOWN) for table in typed},
    }


def _urls() -> dict[str, str]:
    models: dict[str, type[Options]] = {
        "kafka": KafkaSettings,
        "file": FileSettings,
        "websocket": WebsocketOptions,
        "ingest": IngestOptions,
        "nodes": NodeOptions,
        "dev": DevOptions,
    }
    return {scheme: _fields(model) for scheme, model in models.items()}


def _fields(model: type[Options]) -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, field in sorted(model.model_fields.items(), key=lambda one: one[1].alias or one[0]):
            default = field.get_default(call_default_factory=True)
            shown = "required" if field.is_required() else _value(default)
            yield f"`{field.alias or name}`", shown, _line(field.description)

    return _table(("option", "default", "meaning"), rows())


def _value(default: object) -> str:
    value = default.value if isinstance(default, Enum) else default
    if isinstance(value, bool):
        return "`yes`" if value else "`no`"
    return "" if value in (None, "", ()) else f"`{value}`"


def _line(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split()).rstrip(".").replace("|", "\\|")


def _commands() -> str:
    settings = {**cardinal.context_settings, "max_content_width": _WIDTH}
    context = click.Context(cardinal, info_name="cardinal", terminal_width=_WIDTH, **settings)
    whole = f"## cardinal\n\n```text\n{cardinal.get_help(context)}\n```\n"
    return "\n".join([whole, *_group(cardinal, context)])


def _group(group: click.Group, context: click.Context) -> Iterator[str]:
    """Every command of a group: its help as one block of text, as the terminal shows it at 100 columns."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        inner = click.Context(command, info_name=name, parent=context, terminal_width=_WIDTH, max_content_width=_WIDTH)
        if isinstance(command, click.Group):
            yield from _group(command, inner)
        else:
            yield f"## {inner.command_path}\n\n```text\n{command.get_help(inner)}\n```\n"


def _options(meanings: Mapping[str, str]) -> str:
    return _table(("option", "meaning"), ((f"`{name}`", meaning) for name, meaning in meanings.items()))


def _columns(columns: Iterable[pa.Field], without: Iterable[str] = ()) -> str:
    shown = [column for column in columns if column.name not in set(without)]
    return _table(
        ("column", "type", "meaning"), ((f"`{one.name}`", str(one.type), _MEANINGS[one.name]) for one in shown)
    )


def _described(columns: Iterable[Mapping[str, str]]) -> str:
    return _table(("column", "type", "meaning"), ((f"`{one['name']}`", one["type"], one["about"]) for one in columns))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
