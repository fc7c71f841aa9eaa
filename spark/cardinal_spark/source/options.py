"""Options of ``format("cardinal")``: names, meanings, values; and the stream that they name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cardinal import apps
from cardinal.config.settings import find_url
from cardinal.consumer import Consumer
from cardinal.consuming.options import ConsumerOptions
from cardinal.consuming.topics import wanted_topics
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.assembly.digests import Contents
from cardinal.protocols.streams.assembly.window import Bounds
from cardinal.protocols.streams.cursor import Cursor
from cardinal.protocols.streams.following.follower import assembler_of
from cardinal.protocols.streams.types import HASH_SIZE
from cardinal.transports import open_source
from cardinal_spark.options import INTEGERS, STORAGE, choice, flag, number, parse_options, parts
from cardinal_spark.rows import AppSpec

from .feed import ROWS_MAX
from .tables import DECODED_LOGS
from .withheld import LATEST, LEVELS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardinal.apps import Application
    from cardinal.consuming.loop import OnEvent
    from cardinal.protocols.streams.following.follower import FollowerSettings
    from cardinal.protocols.streams.quorum.reassembler import Assembler
    from cardinal.transports import Source, TransportUrl

ANY_APPLICATION: Final = ("payload", "events", "raw")
"""Tables of streams of any application."""

TABLES: Final = ("blocks", "transactions", "receipts", "logs", "withdrawals", DECODED_LOGS, *ANY_APPLICATION)
EARLIEST: Final = "earliest"

OPTIONS: Final = MappingProxyType(
    {
        "url": "the stream: `kafka://host:port`, or its name in `config`; required",
        "app": "the application: `evm` (default), `blob` or `items`; the typed tables are of `evm`",
        "chainId": "the chain's id; default: that of the only stream on the server",
        "topic": "the topic of the Batches; default: the application's",
        "reorgThreshold": "the reorg threshold in blocks; default: the application's",
        "table": f"the table to read: {', '.join(f'`{name}`' for name in TABLES)}; default: `blocks`",
        "columns": "comma-separated names of the columns to read; default: all",
        "startingOffsets": "`earliest` (default), `latest`, a block's number, a time with its zone "
        "(`2026-01-31T12:00:00Z`) or a cursor; only for a new checkpoint",
        "endingOffsets": "the end of a batch read: `latest` (default), the number of the last block, or a time with "
        "its zone: the rows end before the first block that was published later",
        "finality": "`latest` (default), `safe` or `finalized`: the finality that a block needs. With `safe` or "
        "`finalized` blocks come later, and are removed only if a finalized block is replaced",
        "restartFrom": "`sink`: a new checkpoint resumes after the last row of the lake at `sinkPath` (and "
        "`storage.*`)",
        "sinkPath": "the lake of `restartFrom`",
        "maxBlocksPerTrigger": "the most blocks of one batch, up to 20,000; an update is never split. Without a limit "
        "a batch has 4,000 blocks or 64 MiB",
        "maxBytesPerTrigger": "the most bytes of one batch, as on the topics",
        "tracked": "comma-separated names of the application's parts of a block to wait for; default: all",
        "whitelist": "comma-separated `number=hash`: the only hash accepted at that number",
        "blacklist": "comma-separated hashes of blocks that are never accepted",
        "skip": "comma-separated `topic/partition/offset` of records to ignore",
        "onIncomplete": "`skip` (default) continues without a block that is proven absent, `halt` waits for it",
        "onFinalityViolation": "`halt` (default) withholds a reorg below a finalized block, `follow` delivers it",
        "config": "the TOML file that names streams; it must have this path on every machine",
        "abi": "for `decoded_logs`: event signatures separated by `;`, a JSON ABI, or the path of its file on the "
        "driver's machine",
        "integers": "the type of 256-bit numbers: `string` (default), `decimal` or `binary`",
        "senders": "`true` (default): senders are recovered from signatures, which takes most of the time",
        "topicsTimeout": "seconds to wait for topics that do not exist yet; default: 60",
        "failOnDataLoss": "`true` only: a chain cannot continue after a gap",
    }
)
"""The meaning of each option, in Markdown."""

Start: TypeAlias = str | int | datetime | Cursor
"""Start of a consumer."""

_TOPICS_SECONDS: Final = 60.0


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options of a reader. Parsing needs no connection; ``__repr__`` leaves out values that may hold secrets."""

    url: str = field(repr=False)
    table: str
    columns: tuple[str, ...] = ()
    finality: str = LATEST
    abi: str = field(default="", repr=False)
    app: str = apps.DEFAULT
    presets: Mapping[str, Any] = field(default_factory=dict)
    starting: str = EARLIEST
    ending: str = LATEST
    sink: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_blocks: int | None = None
    max_bytes: int | None = None
    integers: str = "string"
    senders: bool = True
    topics_timeout: float = _TOPICS_SECONDS
    consuming: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options; names are case-insensitive. ConfigurationError for a value that cannot work."""
        parsed = parse_options(options, OPTIONS, "cardinal")
        if not parsed.get("url"):
            raise ConfigurationError(
                "format('cardinal') needs the option url, as in kafka://localhost:9092", setting="url"
            )
        named = {"chain_id": "chainId", "reorg_threshold": "reorgThreshold"}
        presets: dict[str, Any] = {preset: number(parsed, name) for preset, name in named.items()}
        presets["topic"] = parsed.get("topic")
        if not flag(parsed, "failOnDataLoss"):
            raise ConfigurationError(
                "failOnDataLoss=false is not supported, because a chain cannot continue after a gap: start with a new "
                "checkpoint instead, and with restartFrom=sink if there is a lake",
                setting="failOnDataLoss",
            )
        choice(parsed, "restartFrom", ("sink",))
        if ("restartfrom" in parsed) != ("sinkpath" in parsed):
            raise ConfigurationError("set restartFrom=sink and sinkPath, the lake, together", setting="restartFrom")
        table = choice(parsed, "table", TABLES)
        if (table == DECODED_LOGS) != ("abi" in parsed):
            raise ConfigurationError(f"set table={DECODED_LOGS} and abi together", setting="abi")
        if (app := parsed.get("app", apps.DEFAULT)) != "evm" and table not in ANY_APPLICATION:
            others = ", ".join(ANY_APPLICATION)
            raise ConfigurationError(f"the table {table} is of evm streams: of {app} read {others}", setting="table")
        timeout = number(parsed, "topicsTimeout")
        return cls(
            url=parsed["url"],
            table=table,
            columns=tuple(parts(parsed, "columns")),
            finality=choice(parsed, "finality", LEVELS),
            abi=_abi(parsed["abi"]) if "abi" in parsed else "",
            app=app,
            presets={name: value for name, value in presets.items() if value is not None},
            starting=_starting(parsed.get("startingoffsets", EARLIEST).strip()),
            ending=_ending(parsed.get("endingoffsets", LATEST).strip()),
            sink=parsed.get("sinkpath"),
            storage={name[len(STORAGE) :]: each for name, each in options.items() if name.lower().startswith(STORAGE)},
            max_blocks=_most(parsed, "maxBlocksPerTrigger", ROWS_MAX),
            max_bytes=_most(parsed, "maxBytesPerTrigger"),
            integers=choice(parsed, "integers", INTEGERS),
            senders=flag(parsed, "senders"),
            topics_timeout=_TOPICS_SECONDS if timeout is None else float(timeout),
            consuming=_consuming(parsed),
        )


def start_of(text: str) -> Start:
    """The start of a consumer, by the text of ``startingOffsets``.

    Raises:
        ConfigurationError: the text is no start.
        CursorInvalidError: a cursor that was truncated or altered.

    """
    if text in (EARLIEST, LATEST):
        return text
    if text.isdecimal():
        return int(text)
    if text.startswith("c1:"):
        return Cursor.parse(text)
    return _moment("startingOffsets", text, "earliest, latest, a block's number, a cursor or a time with its zone")


def _starting(text: str) -> str:
    start_of(text)
    return text


def _ending(text: str) -> str:
    if text != LATEST and not text.isdecimal():
        _moment("endingOffsets", text, "latest, the number of the last block or a time with its zone")
    return text


def _moment(name: str, text: str, wanted: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigurationError(f"{name} must be {wanted} (2026-01-31T12:00:00Z), not {text!r}", setting=name)
    return moment


def _consuming(parsed: Mapping[str, str]) -> dict[str, Any]:
    """The options that a consumer has too, by its names. ConfigurationError for an invalid value."""
    found: dict[str, Any] = {}
    for name, ours in (("onIncomplete", "on_incomplete"), ("onFinalityViolation", "on_finality_violation")):
        if name.lower() in parsed:
            found[ours] = parsed[name.lower()]
    if "config" in parsed:
        found["config"] = parsed["config"]
    if "tracked" in parsed:
        found["tracked"] = tuple(parts(parsed, "tracked"))
    if "blacklist" in parsed:
        found["blacklist"] = tuple(_hash("blacklist", text) for text in parts(parsed, "blacklist"))
    if "whitelist" in parsed:
        found["whitelist"] = dict(map(_pinned, parts(parsed, "whitelist")))
    if "skip" in parsed:
        found["skip"] = tuple(map(_position, parts(parsed, "skip")))
    ConsumerOptions(**found)
    return found


def _pinned(text: str) -> tuple[int, bytes]:
    height, _, block = text.partition("=")
    if not height.isdecimal():
        raise ConfigurationError(f"whitelist must hold number=hash, not {text!r}", setting="whitelist")
    return int(height), _hash("whitelist", block)


def _hash(name: str, text: str) -> bytes:
    try:
        found = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""
    if len(found) != HASH_SIZE:
        raise ConfigurationError(
            f"{name} must hold block hashes of {HASH_SIZE} bytes in hex, not {text!r}", setting=name
        )
    return found


def _abi(text: str) -> str:
    """The text of an ABI, or the content of its file. ConfigurationError where it cannot be read or parsed."""
    from .decoded import abi_of  # noqa: PLC0415 - the extra of one application

    if "(" not in text and not text.lstrip().startswith(("[", "{")):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"abi must be event signatures, a JSON ABI or the path of its file: {error}", setting="abi"
            ) from None
    abi_of(text)
    return text


def _position(text: str) -> tuple[str, int, int]:
    topic, *numbers = text.rsplit("/", 2)
    if len(numbers) != 2 or not all(map(str.isdecimal, numbers)):  # noqa: PLR2004 - partition and offset
        raise ConfigurationError(f"skip must hold records as topic/partition/offset, not {text!r}", setting="skip")
    return topic, int(numbers[0]), int(numbers[1])


def _most(parsed: Mapping[str, str], name: str, most: int | None = None) -> int | None:
    value = number(parsed, name)
    if value is not None and value < 1:
        raise ConfigurationError(f"{name} must be 1 or more", setting=name)
    if value is not None and most is not None and value > most:
        raise ConfigurationError(f"{name} must be {most:,} or fewer", setting=name)
    return value


_PARTS: Final = {
    "blocks": ("blocks", "transactions"),
    "transactions": ("headers", "transactions"),
    "receipts": ("headers", "transactions", "receipts"),
    "logs": ("headers", "transactions", "logs"),
    "withdrawals": ("headers", "withdrawals"),
    DECODED_LOGS: ("headers", "logs"),
}
"""The application's parts of a block that the columns of a typed table are made of."""

_FETCHES_LITTLE: Final = {"queued.max.messages.kbytes": "4096", "max.partition.fetch.bytes": "524288"}
"""Measured on messages of 3 kB: 190,000 to 240,000 per processor second, 165,000 with a reader's usual settings."""

_ASKS_SELDOM: Final = {"fetch.wait.max.ms": "500"}
"""Wait of a fetch without records. Records are delivered at once; 100, a consumer's usual setting, gains nothing here.
"""

_ONE_BLOCK: Final = Bounds(open_bytes=1 << 62, open_blocks=1 << 62)


@dataclass(frozen=True)
class StreamSpec:
    """One application's stream, for driver and tasks.

    ``consuming``: options of the consumer, by its names.
    """

    url: str = field(repr=False)
    spec: str
    topics_timeout: float = _TOPICS_SECONDS
    consuming: Mapping[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[StreamSpec], tuple[str, str, float, Mapping[str, Any]]]:
        """Pickle without the cached values."""
        return StreamSpec, (self.url, self.spec, self.topics_timeout, dict(self.consuming))

    @classmethod
    def find(cls, options: SourceOptions) -> StreamSpec:
        """The stream that the options name; without a chain id it is looked up on the broker."""
        presets = dict(options.presets)
        if "chain_id" not in presets:
            from cardinal.consumer import find_application  # noqa: PLC0415 - opens clients

            url = find_url(options.url, options.consuming.get("config"))
            found = find_application(url, options.app, wait=options.topics_timeout)
            presets["chain_id"] = int(found.chain.partition(":")[2])
        return cls(options.url, AppSpec(options.app, presets).text(), options.topics_timeout, options.consuming)

    @property
    def transport(self) -> TransportUrl:
        """The URL, looked up by its name where it has one."""
        return find_url(self.url, self.consuming.get("config"))

    @cached_property
    def app(self) -> Application:
        """The application."""
        spec = AppSpec.parse(self.spec)
        return apps.get(spec.name, **spec.options)

    @cached_property
    def settings(self) -> FollowerSettings:
        """The settings of the stream's consumer."""
        return ConsumerOptions(**self.consuming).follower_settings(self.app)

    @property
    def fingerprint(self) -> bytes:
        """The first bytes of a lineage: the options' fingerprint."""
        return self.settings.fingerprint()

    def consumer(self, start: Start, on_event: OnEvent | None, *, until_end: bool, max_update: int = 1) -> Consumer:
        """A consumer that leaves the content on the topics; it raises as :class:`~cardinal.consumer.Consumer`."""
        url = self.transport
        return Consumer(
            url.with_defaults(_ASKS_SELDOM) if url.scheme == "kafka" else url,
            self.app,
            start=start,
            options=ConsumerOptions(**self.consuming),
            on_event=on_event,
            topics_timeout=self.topics_timeout,
            until="end" if until_end else None,
            content="ranges",
            max_update=max_update,
        )

    def reassembler(self, contents: Contents) -> Assembler:
        """The assembler of one block, whose messages were bounded when it was planned."""
        return assembler_of(replace(self.settings, contents=contents, bounds=_ONE_BLOCK))

    def parts_of(self, table: str) -> StreamSpec:
        """The same stream, limited to the parts of blocks that a table is made of; itself where that is all."""
        parts = _PARTS.get(table)
        if parts is None or "tracked" in self.consuming:
            return self
        return replace(self, consuming={**self.consuming, "tracked": parts})

    @property
    def topics(self) -> tuple[str, ...]:
        """The application's topics that can hold the followed parts of a block."""
        return wanted_topics(self.app, self.settings.tracked if "tracked" in self.consuming else None)

    def open(self, topics: Sequence[str] | None = None, *, pieces: bool = False) -> Source:
        """A source of these topics, reorg channels among them, or of all topics of the application; of no group.

        ``pieces``: it is reassigned often, which discards the records fetched ahead.
        """
        url = self.transport.without_group()
        if pieces and url.scheme == "kafka":
            url = url.with_defaults(_FETCHES_LITTLE)
        return open_source(url, self.app, topics=topics, wait=self.topics_timeout)
