"""Options of a consumer: one value, checked when it is made. A value that cannot be meant is refused by name."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from cardinal import apps
from cardinal.apps import Application
from cardinal.config.options import nearest
from cardinal.config.settings import find_url
from cardinal.consuming.topics import tracked_expressions
from cardinal.errors import ConfigurationError, CursorInvalidError, TopicError
from cardinal.protocols.streams.assembly.digests import Contents, HeaderOnly
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.following.follower import FollowerSettings, OnIncomplete
from cardinal.protocols.streams.ordering.finality import OnFinalityViolation
from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal.protocols.streams.types import HASH_SIZE, Position, path_bytes
from cardinal.texts import Readable
from cardinal.transports import list_topics

if TYPE_CHECKING:
    from cardinal.consuming.healing import Heal, HealingFailed
    from cardinal.protocols.streams.events import BlockHeader, Event
    from cardinal.protocols.streams.types import Finality
    from cardinal.transports import TransportUrl

_log = logging.getLogger("cardinal.consumer")
_BOUNDS: Final = Bounds()
_FIND_SECONDS: Final = 0.25
_CHAIN_ID: Final = re.compile(r"[1-9]\d*$")
_CURSOR: Final = re.compile(r"\s*c\d+:")
_ARGUMENTS: Final = frozenset({"url", "app", "start", "chain_id", "options"})
_CHOICES: Final[Mapping[str, tuple[str | None, ...]]] = {
    "on_incomplete": tuple(one.value for one in OnIncomplete),
    "on_finality_violation": tuple(one.value for one in OnFinalityViolation),
    "content": ("values", "ranges"),
}


class ConsumerKeywords(TypedDict, total=False):
    """The fields of :class:`ConsumerOptions` as keyword arguments."""

    on_event: Callable[[Event | HealingFailed], None] | None
    tracked: str | Sequence[str] | None
    whitelist: Mapping[int, bytes] | None
    blacklist: Collection[bytes]
    policy: str
    producers: Sequence[str]
    on_incomplete: Literal["skip", "halt"]
    on_finality_violation: Literal["halt", "follow"]
    max_open_bytes: int
    heal: Heal | None
    skip: Collection[Position]
    config: str | Path | None
    topics_timeout: float
    idle_timeout: float | None
    until: Literal["end"] | int | None
    content: Literal["values", "ranges"]
    max_update: int


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ConsumerOptions(Readable):
    """Settings of a consumer beyond the stream to read and the start position.

    Attributes:
        on_event: called with every report that is not an update (divergences, incomplete blocks, pings, …), before any
            update that came about later. It may call :meth:`Consumer.supply`. An exception that it raises ends the
            iteration; the next iteration resumes after that report.
        tracked: the part of each block to deliver: names of the application (``"logs"``, or ``["logs",
            "transactions"]``), or regular expressions that are searched in the entries of a block's Batch. Only these
            messages are waited for, and only the topics that can hold them are read. A name that does not exist, and an
            expression that can match none of the application's entries, is refused. Default: the whole block.
        whitelist: block number to the only hash accepted at that number; no chain through another block is taken.
        blacklist: hashes of blocks that are never accepted, nor their descendants.
        policy: ``first`` takes the first copy of every message; ``quorum:k`` takes a block when k of ``producers``
            sent the same one. Anybody who may write to a topic may write a producer's id: a quorum proves something
            only where the broker's access rules bind principals to topics.
        producers: the ids of the producers that count for a quorum.
        on_incomplete: ``skip`` delivers a :class:`~cardinal.MissingPayload` in place of a block that is proven to be
            unavailable; ``halt`` waits until it is supplied. With a quorum, ``skip`` passes a block on which too few
            producers agree once everything on the topics was read a reorg threshold of blocks later, even if a
            producer that lags farther might still decide it; ``halt`` waits for that producer.
        on_finality_violation: ``halt`` withholds a switch to a chain below a finalized block; ``follow`` delivers it.
        max_open_bytes: memory for blocks that are not complete yet, in bytes. Blocks beyond it are evicted, reported,
            and read again when the chain needs them. A block that is larger than this alone is never completed, and the
            stream stops below it.
        heal: requests the messages that an overdue block lacks from a node or an archive. It runs on a thread of its
            own. No block is abandoned while it runs, so it must end in time.
        skip: topic, partition and offset of records to ignore, such as a broken producer's. Each is reported as
            :class:`~cardinal.Rejected`.
        config: the TOML file that names streams, see :mod:`cardinal.config.settings`. Default: the file that
            ``CARDINAL_CONFIG`` names.
        topics_timeout: seconds to wait for the stream's topics to exist.
        idle_timeout: seconds without an update after which iteration ends. While the backlog is read, they count from
            the last record read, so a slow machine does not end it early. None: never.
        until: ``end`` ends the iteration when everything that was there at opening is delivered. Where something of it
            still waits for messages or parents, it ends after 10 seconds without progress. The number of a block ends
            it after the first update whose last added block has this number or a higher one: that block's own update,
            unless it comes in a reorg that leads beyond it, or the stream begins above it. A cursor at or above the
            number ends it at once. Blocks that are not there yet are waited for. None: never.
        content: ``values`` delivers blocks with their content, as :class:`~cardinal.Payload`. ``ranges`` leaves the
            content on the topics and delivers :class:`~cardinal.HeaderOnly`, which names its ranges: for a planner
            whose workers read it. Where Batches name the ranges of their blocks, nothing else is read. Not with a
            quorum, and not with messages that are supplied.
        max_update: blocks in one update at most, unless it is a reorg.

    Raises:
        ConfigurationError: a value cannot work; ``setting`` names the field.

    """

    on_event: Callable[[Event | HealingFailed], None] | None = None
    tracked: str | Sequence[str] | None = None
    whitelist: Mapping[int, bytes] | None = None
    blacklist: Collection[bytes] = ()
    policy: str = "first"
    producers: Sequence[str] = ()
    on_incomplete: Literal["skip", "halt"] = "skip"
    on_finality_violation: Literal["halt", "follow"] = "halt"
    max_open_bytes: int = _BOUNDS.open_bytes
    heal: Heal | None = None
    skip: Collection[Position] = ()
    config: str | Path | None = None
    topics_timeout: float = 10.0
    idle_timeout: float | None = None
    until: Literal["end"] | int | None = None
    content: Literal["values", "ranges"] = "values"
    max_update: int = 1_000

    def __post_init__(self) -> None:
        _check_hashes(self.whitelist or {}, self.blacklist)
        for position in self.skip:
            if not isinstance(position, tuple) or tuple(map(type, position)) != (str, int, int):
                raise ConfigurationError(
                    f"skip: {position!r} is no record; give its topic, partition and offset as a tuple", setting="skip"
                )
        _at_least(1, self.max_open_bytes, "max_open_bytes")
        _at_least(1, self.max_update, "max_update")
        _at_least(0, self.topics_timeout, "topics_timeout")
        _at_least(0, 0 if self.idle_timeout is None else self.idle_timeout, "idle_timeout")
        _several(() if isinstance(self.tracked, str) else self.tracked or (), "tracked")
        _several(self.producers, "producers")
        _function(self.heal, "heal")
        _function(self.on_event, "on_event")
        for setting, choices in _CHOICES.items():
            if (value := getattr(self, setting)) not in choices:
                named = " or ".join(map(repr, choices))
                raise ConfigurationError(f"{setting} must be {named}, not {value!r}", setting=setting)
        if isinstance(self.until, int):
            _at_least(0, self.until, "until")
        elif self.until not in ("end", None):
            raise ConfigurationError(f"until must be 'end' or a block's number, not {self.until!r}", setting="until")
        if self.content != "values" and self.policy != "first":
            raise ConfigurationError(
                "content='ranges' needs policy='first': a quorum compares values", setting="content"
            )
        if self.content != "values" and self.heal is not None:
            raise ConfigurationError("content='ranges' delivers content of topics alone: no heal", setting="content")

    def follower_settings(self, app: Application) -> FollowerSettings:
        """These options and what the application declares, for the follower.

        Raises as :func:`.topics.tracked_expressions`.
        """
        tracked = tracked_expressions(app, self.tracked)
        return FollowerSettings(
            app=app.name,
            chain=app.chain,
            # An application without counted prefixes has everything inside its Batches.
            tracked=(app.prefixes or None) if tracked is None else tracked,
            inline=tracked is None,
            prefixes=app.prefixes,
            reorg_threshold=app.reorg_threshold,
            whitelist=dict(self.whitelist or {}),
            blacklist=frozenset(self.blacklist),
            finality_of=partial(_finality, app),
            on_finality_violation=OnFinalityViolation(self.on_finality_violation),
            policy=self.policy,
            producers=tuple(self.producers),
            volatile=app.volatile_paths,
            on_incomplete=OnIncomplete(self.on_incomplete),
            default_topic=app.default_topic,
            contents=Contents.VALUES if self.content == "values" else Contents.DIGESTS,
            max_update=self.max_update,
            until=self.until if isinstance(self.until, int) else None,
            begin_anew=True,
            bounds=replace(_BOUNDS, open_bytes=self.max_open_bytes),
            max_bytes=max(_BOUNDS.open_bytes, self.max_open_bytes),
        )


def _finality(app: Application, block: BlockHeader) -> Finality | None:
    if isinstance(block, HeaderOnly):
        block = Payload(block.number, block.hash, block.parent, block.weight, PathMap(dict(block.values)))
    return app.finality(block) if isinstance(block, Payload) else None


def finality_paths(app: Application) -> frozenset[bytes]:
    """The paths of the values that say what is safe and finalized."""
    return frozenset(map(path_bytes, app.finality_paths or ()))


def cursor_of(start: object) -> Cursor | None:
    """The cursor to start at; None for any other start. ConfigurationError where it is none at all.

    CursorInvalidError for a text that is neither a cursor nor ``earliest`` or ``latest``.
    """
    if isinstance(start, Cursor):
        return start
    if start is not None and (isinstance(start, bool) or not isinstance(start, str | int | datetime)):
        raise ConfigurationError(
            f"start must be 'earliest', 'latest', a number, a time, a cursor or its text, not {type(start).__name__}",
            setting="start",
        )
    if not isinstance(start, str) or start in ("earliest", "latest"):
        return None
    if not _CURSOR.match(start):
        raise CursorInvalidError(
            "start must be 'earliest', 'latest', a number, a time, or the text of a cursor, which begins with 'c1:', "
            f"not {start[:40]!r}"
        )
    return Cursor.parse(start)


def block_hash_of(given: object, setting: str) -> bytes:
    """A block's hash: 32 bytes. ConfigurationError for anything else."""
    if not isinstance(given, bytes) or len(given) != HASH_SIZE:
        raise ConfigurationError(
            f"{setting}: {given!r} is no block hash; give {HASH_SIZE} bytes, bytes.fromhex(…) makes them of text",
            setting=setting,
        )
    return given


def find_streams(url: str | TransportUrl, name: str) -> dict[int, Application]:
    """The streams of an application on a server, by chain id; those on topics of their own name are not found."""
    names = list_topics(url)
    found = {}
    for topic in names:
        if match := _CHAIN_ID.search(topic):
            app = apps.get(name, chain_id=int(match.group()))
            if app.default_topic == topic and names.issuperset(app.all_topics):
                found[int(match.group())] = app
    return dict(sorted(found.items()))


def find_application(
    url: str | TransportUrl, name: str, *, chain_id: int | None = None, wait: float = 0.0
) -> Application:
    """The application of a stream on the server: the only one, or that of a chain.

    Arguments:
        url: the transport.
        name: the application's name, ``evm``.
        chain_id: the chain; None: the only one. On a server without any stream it is not resolved.
        wait: seconds to wait for the stream to appear; what is waited for is logged.

    Raises:
        TopicError: there is no such stream; the message lists those that exist.
        ConfigurationError: there are several; the message lists their chain ids.

    """
    url = find_url(url)
    deadline = time.monotonic() + wait
    waits = False
    while True:
        found = find_streams(url, name)
        ids = ", ".join(map(str, found))
        if chain_id is not None and (chain_id in found or not found):
            return apps.get(name, chain_id=chain_id)
        if chain_id is None and len(found) == 1:
            return next(iter(found.values()))
        if chain_id is None and found:
            raise ConfigurationError(
                f"there are several {name} streams on {url}, of the chain ids {ids}: choose one by chain_id "
                "(--chain-id of a command, chainId in Spark)",
                setting="chain_id",
            )
        if chain_id is not None:
            lacking = f"there is no {name} stream of chain {chain_id} on {url}, only of {ids}"
            advice = "correct the chain id, or start its producer"
        else:
            lacking = f"there is no {name} stream on {url} yet"
            advice = "start `cardinal produce` first, or name the stream's application and chain id"
        if time.monotonic() >= deadline:
            topic = apps.get(name, chain_id=1 if chain_id is None else chain_id).default_topic
            raise TopicError(f"{lacking}: {advice}", topic=topic)
        if not waits:
            waits = True
            _log.info("%s: waiting for it for %.0f seconds", lacking, wait)
        time.sleep(_FIND_SECONDS)


def chain_id_of(cursor: Cursor | None) -> int | None:
    """The chain id that a cursor names; None without one, or where its application has chains of other names."""
    named = None if cursor is None else _CHAIN_ID.fullmatch(cursor.chain.rpartition(":")[2])
    return None if named is None else int(named.group())


def application_of(
    url: str | TransportUrl, app: str | Application, chain_id: int | None, wait: float, cursor: Cursor | None = None
) -> Application:
    """The given application, or the one of this name and chain id; without an id, of the chain of the cursor.

    So a program that resumes reads on, whatever other chains have appeared on the server. Raises as
    :func:`find_application`.
    """
    if isinstance(app, Application):
        return app
    if not isinstance(app, str):
        raise ConfigurationError(f"app must be an application or its name, not {app!r}", setting="app")
    if chain_id is None and (chain_id := chain_id_of(cursor)) is None:
        return find_application(url, app, wait=wait)
    return apps.get(app, chain_id=chain_id)


def _several(texts: object, setting: str) -> None:
    if isinstance(texts, bytes | str):
        raise ConfigurationError(f"{setting} must be several texts, not one: [{texts!r}]", setting=setting)
    if not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(f"{setting} must be a list of texts, not {texts!r}", setting=setting)


def _function(value: object, setting: str) -> None:
    if value is not None and not callable(value):
        raise ConfigurationError(f"{setting} must be a function, not {value!r}", setting=setting)


def _check_hashes(whitelist: Mapping[int, bytes], blacklist: Iterable[bytes]) -> None:
    if not isinstance(whitelist, Mapping):
        raise ConfigurationError("whitelist maps numbers to hashes: {number: hash}", setting="whitelist")
    for number, pinned in whitelist.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise ConfigurationError(f"whitelist: {number!r} is no block number; give an int", setting="whitelist")
        block_hash_of(pinned, "whitelist")
    if isinstance(blacklist, bytes | str):
        raise ConfigurationError("blacklist must be several hashes, not one: [hash]", setting="blacklist")
    for named in blacklist:
        block_hash_of(named, "blacklist")


def changed(options: ConsumerOptions, keywords: ConsumerKeywords) -> ConsumerOptions:
    """Options with other values for some; TypeError for a name that is none of a consumer's arguments."""
    names = {one.name for one in fields(ConsumerOptions)}
    if wrong := next((name for name in keywords if name not in names), None):
        raise TypeError(f"Consumer() has no argument {wrong!r}: {nearest(wrong, names | _ARGUMENTS)}")
    return replace(options, **keywords)


def _at_least(least: float, value: float, setting: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{setting} must be a number, not {type(value).__name__}", setting=setting)
    if not value >= least:
        raise ConfigurationError(f"{setting} must be {least:g} or more, not {value:g}", setting=setting)
