"""The options of ``format("cardinal")``.

====================  ============================================================================================
option                meaning
====================  ============================================================================================
url                   the transport: ``kafka://host:port``; required
app                   the application, ``evm``
chainId, topic,       presets of the application; without ``chainId`` the only stream that is there is taken
reorgThreshold
table                 ``blocks``, ``transactions``, ``receipts``, ``logs``, ``withdrawals``, ``payload``, ``events``
                      (no content), ``raw`` (whole blocks, what ``cardinal_lake`` takes)
startingOffsets       ``earliest`` (default), ``latest`` or a block's number; only for a new checkpoint
restartFrom           ``sink``: a new checkpoint goes on behind the end of the lake at ``sinkPath`` (and ``storage.*``)
maxBlocksPerTrigger,  how much one batch takes; an update is never split
maxBytesPerTrigger
integers, senders     of typed tables: how 256-bit numbers are kept; whether senders are recovered
topicsTimeout         seconds to wait for topics that do not exist yet
failOnDataLoss        ``true``: a chain cannot go on over a gap
====================  ============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from cardinal import apps
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.following.follower import FollowerSettings
from cardinal.protocols.streams.payload import PathMap, Payload
from cardinal.protocols.streams.types import path_bytes
from cardinal.transports import open_source
from cardinal_spark.rows import AppSpec

from .digested import Digester
from .state import PlanSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.apps import Application
    from cardinal.protocols.streams.events import Header
    from cardinal.protocols.streams.types import Finality
    from cardinal.transports import Source

TABLES: Final = ("blocks", "transactions", "receipts", "logs", "withdrawals", "payload", "events", "raw")
STORAGE: Final = "storage."
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_NAMES: Final = (
    *("url", "app", "chainId", "topic", "reorgThreshold", "table", "startingOffsets", "restartFrom", "sinkPath"),
    *("maxBlocksPerTrigger", "maxBytesPerTrigger", "integers", "senders", "topicsTimeout", "failOnDataLoss"),
)
_SPARKS: Final = frozenset({"path", "checkpointlocation"})
"""Options that Spark itself may add."""

_TOPICS_SECONDS: Final = 60.0


@dataclass(frozen=True)
class SourceOptions:
    """What a reader was told. Made without asking anybody; ``__repr__`` leaves out what may hold a password."""

    url: str = field(repr=False)
    table: str
    app: str = "evm"
    presets: Mapping[str, Any] = field(default_factory=dict)
    starting: str | int = EARLIEST
    sink: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_blocks: int | None = None
    max_bytes: int | None = None
    integers: str = "string"
    senders: bool = True
    topics_timeout: float = _TOPICS_SECONDS

    @property
    def sink_storage(self) -> dict[str, str]:
        """The settings of the lake's object store, without their prefix."""
        return {name[len(STORAGE) :]: value for name, value in self.storage.items()}

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read Spark's options, whose names have no case. ConfigurationError for what cannot work."""
        given = {name.lower(): value for name, value in options.items()}
        _need_known(given)
        if not given.get("url"):
            raise ConfigurationError(
                "format('cardinal') needs the option url, as in kafka://localhost:9092", setting="url"
            )
        presets: dict[str, Any] = {}
        for name, preset in (("chainid", "chain_id"), ("reorgthreshold", "reorg_threshold")):
            if name in given:
                presets[preset] = _number(name, given[name])
        if "topic" in given:
            presets["topic"] = given["topic"]
        if given.get("failondataloss", "true").lower() != "true":
            raise ConfigurationError(
                "failOnDataLoss=false cannot be: blocks after a gap have no place in the chain; start with a new "
                "checkpoint instead, with restartFrom=sink where there is a lake",
                setting="failOnDataLoss",
            )
        _choice("restartfrom", given.get("restartfrom", "sink"), ("sink",))
        if ("restartfrom" in given) != ("sinkpath" in given):
            raise ConfigurationError("restartFrom=sink and sinkPath, the lake, go together", setting="restartFrom")
        return cls(
            url=given["url"],
            table=_choice("table", given.get("table", "blocks"), TABLES),
            app=given.get("app", "evm"),
            presets=presets,
            starting=_starting(given.get("startingoffsets", EARLIEST)),
            sink=given.get("sinkpath"),
            storage={name: value for name, value in options.items() if name.lower().startswith(STORAGE)},
            max_blocks=_optional(given, "maxblockspertrigger"),
            max_bytes=_optional(given, "maxbytespertrigger"),
            integers=_choice("integers", given.get("integers", "string"), ("string", "decimal", "binary")),
            senders=_choice("senders", given.get("senders", "true").lower(), ("true", "false")) == "true",
            topics_timeout=float(_number("topicsTimeout", given.get("topicstimeout", str(int(_TOPICS_SECONDS))))),
        )


def _need_known(given: Mapping[str, str]) -> None:
    known = {name.lower() for name in _NAMES} | _SPARKS
    for name in given:
        if name not in known and not name.startswith(STORAGE):
            raise ConfigurationError(
                f"format('cardinal') has no option {name!r}; it has {', '.join(_NAMES)}", setting=name
            )


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, not {value!r}", setting=name)
    return value


def _starting(value: str) -> str | int:
    if value in (EARLIEST, LATEST):
        return value
    if value.isdecimal():
        return int(value)
    raise ConfigurationError(
        f"startingOffsets must be earliest, latest or a block's number, not {value!r}", setting="startingOffsets"
    )


def _number(name: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigurationError(f"{name} must be a number of 0 or more, not {value!r}", setting=name)
    return int(value)


def _optional(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    value = _number(name, given[name])
    if value < 1:
        raise ConfigurationError(f"{name} must be 1 or more", setting=name)
    return value


@dataclass(frozen=True)
class Stream:
    """One application's stream: what driver and tasks need of it. Travels to tasks as ``url`` and ``spec``."""

    url: str = field(repr=False)
    spec: str
    topics_timeout: float = _TOPICS_SECONDS

    def __reduce__(self) -> tuple[type[Stream], tuple[str, str, float]]:
        """Travel without what is made on demand."""
        return Stream, (self.url, self.spec, self.topics_timeout)

    @classmethod
    def find(cls, options: SourceOptions) -> Stream:
        """The stream that the options name; without a chain id it asks the broker which one is there."""
        presets = dict(options.presets)
        if "chain_id" not in presets and options.app == "evm":
            from cardinal.consumer import find_application  # noqa: PLC0415 - opens clients

            found = find_application(options.url, options.app, wait=options.topics_timeout)
            presets["chain_id"] = int(found.chain.partition(":")[2])
        return cls(options.url, AppSpec(options.app, presets).text(), options.topics_timeout)

    @cached_property
    def app(self) -> Application:
        """The application."""
        spec = AppSpec.parse(self.spec)
        return apps.get(spec.name, **spec.options)

    @cached_property
    def settings(self) -> PlanSettings:
        """What planning depends on: the same choices as those of a Consumer."""
        app = self.app
        keep = frozenset(map(path_bytes, app.finality_paths or ()))

        def finality_of(header: Header) -> Finality | None:
            marks: Mapping[bytes, bytes] = getattr(header, "marks", {})
            kept = PathMap({path: marks[path] for path in keep if path in marks})
            return app.finality(Payload(header.number, header.hash, header.parent, header.weight, kept))

        return PlanSettings(
            FollowerSettings(
                app=app.name,
                chain=app.chain,
                prefixes=tuple(app.topics),
                reorg_threshold=app.reorg_threshold,
                finality_of=finality_of if keep else None,
            ),
            keep,
        )

    def digester(self) -> Digester:
        """What takes the content out of records for the planner."""
        return Digester(self.settings.follower.tracked, self.settings.keep)

    def open(self) -> Source:
        """A source of all topics of the stream."""
        return open_source(self.url, self.app, wait=self.topics_timeout)
