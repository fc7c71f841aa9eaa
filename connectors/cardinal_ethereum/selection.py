"""Selection of logs by contract and event, as in ``eth_getLogs``: one of the addresses, and one of the first topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cardinal.apps.selection import Row, Selection, SelectionOption
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal.texts import Count

__all__ = ["OPTIONS", "selection"]

OPTIONS: Final = (
    SelectionOption("address", "0x…", "Print the logs of this contract instead of blocks."),
    SelectionOption("topic0", "0x…", "Print the logs with this first topic, the hash of an event, instead of blocks."),
)
_SIZES: Final = {"address": 20, "topic0": 32}
_SHORT: Final = 12


def selection(values: Mapping[str, Sequence[str]]) -> Selection:
    """The logs that have one of the addresses and one of the first topics; an option without values admits any.

    Raises:
        ConfigurationError: a value is no address or no topic; ``setting`` names the option.

    """
    addresses, events = (frozenset(_bytes(name, text) for text in values[name]) for name in ("address", "topic0"))

    def rows(block: Payload) -> list[Row]:
        from cardinal_ethereum import decode  # noqa: PLC0415 - needs an extra, and the options do not

        return [
            {
                "transaction_index": log.transaction_index,
                "log_index": log.log_index,
                "address": f"0x{log.address.hex()}",
                "topics": [f"0x{topic.hex()}" for topic in log.topics],
                "data": f"0x{log.data.hex()}",
            }
            for log in decode(block).logs
            if (not addresses or log.address in addresses)
            and (not events or (log.topics[:1] and log.topics[0] in events))
        ]

    return Selection("logs", "logs", f"{'log':>5}  {'address':<42}  {'first topic':<13}  data", rows, _line)


def _line(row: Row) -> str:
    topics, data = row["topics"], str(row["data"])
    first = f"{topics[0][:_SHORT]}…" if isinstance(topics, list) and topics else "-"
    size = len(data) // 2 - 1
    return f"{row['log_index']!s:>5}  {row['address']!s:<42}  {first:<13}  {Count(size, 'byte')}"


def _bytes(name: str, text: str) -> bytes:
    try:
        value = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        value = b""
    if len(value) != _SIZES[name]:
        raise ConfigurationError(
            f"--{name} takes 0x and {2 * _SIZES[name]} hex digits, not {text[:80]!r}", setting=name
        )
    return value
