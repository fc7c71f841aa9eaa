"""Where a follower begins that has no cursor."""

from __future__ import annotations

from cardinal.protocols.streams import ChainUpdate, Follower, FollowerSettings, Record
from streams import SCHEMA, Log, chain, messages, name

SETTINGS = FollowerSettings("test", "test:1", prefixes=tuple(SCHEMA))


def test_a_reader_from_the_end_starts_with_the_first_block_that_it_sees_whole() -> None:
    log = Log()
    first, second, third = chain("1a 2a 3a")
    halves = messages(first)
    log.append(halves[:2])
    ends = log.ends()
    follower = Follower(SETTINGS)
    assert follower.progress(ends, ends) == []

    def read(records: list[Record]) -> list[str]:
        out = follower.receive(records)
        out += follower.progress(log.ends(), ends)
        return [name(block.hash) for update in out if isinstance(update, ChainUpdate) for block in update.added]

    assert read(log.append(halves[2:])) == []
    assert read(log.append(messages(second))) == ["2a"]
    assert read(log.append(messages(third))) == ["3a"]
