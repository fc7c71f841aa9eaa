"""Texts of the streams' values."""

from __future__ import annotations

from cardinal.protocols.streams.types import Record, Routed


def test_records_and_messages_print_with_their_bytes_in_hexadecimal_and_cut() -> None:
    record = Record("chain", 1, 7, b"\x00" + bytes(range(32)), bytes(1000), 5, (("cardinal-producer", b"one"),))
    assert repr(record).startswith("Record(topic='chain', partition=1, offset=7, key=0x0000010203… (33 bytes)")
    assert "value=0x0000000000… (1000 bytes)" in repr(record)
    assert repr(Routed("chain", b"\x01\x02", b"")) == "Routed(topic='chain', key=0x0102, value=0x)"
