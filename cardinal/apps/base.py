"""Application model: the layout of a chain's payloads on topics.

Rules:

1. An application holds expressions and names only; its own package defines the values. What the core asks of a block's
   content (its time, numbers to show, a check) is a method that the package's subclass overrides.
2. A key of ``topics`` is anchored at the start of a path, and the text that it matches is the counted prefix
   (``schemas/SPEC.md``, section 3). So it must match the prefix, not the complete path: ``c/1/n/`` counts every path
   below it under one entry.
3. Values are validated on construction.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality, path_expression

_KAFKA_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

REORG_THRESHOLD = 128
"""Blocks below the head that a reorg may reach without a channel of its own; the reference's for EVM chains."""


class Application(BaseModel):
    """Layout of one chain's payloads on topics.

    Attributes:
        name: the application's name, as ``cardinal.apps.get`` knows it.
        chain: the chain as text, such as ``evm:1``; part of every cursor.
        default_topic: topic of the Batches, which also carry the paths that no expression matches.
        topics: expression to topic, each anchored at the start of a path and matching the counted prefix.
        reorg_threshold: blocks below the head that a reorg may reach, 1 or more.
        prefixes: expressions that match this application's entries; a consumer tracks them all by default. Empty means
            the expressions of ``topics``.
        sub_batches: expressions that match the complete path of every sub batch; empty without sub batches. A consumer
            of a part skips the other topics; None: sub batches may be anywhere.
        volatile_paths: expressions of paths whose values may differ between honest producers; searched in the path.
        names: aliases for ``tracked``, each with its expressions. An application with names has only the entries that
            ``topics``, ``prefixes`` and ``sub_batches`` match: a consumer's expression that can match none of them is
            refused. Default: no names, and any entry is possible.
        finality_paths: the paths of the highest safe and the highest finalized block number, None without such.
        counted: names of the numbers that :meth:`counts` returns, the one that matters most first.

    Raises:
        ConfigurationError: a value cannot work; ``setting`` names the attribute.

    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    counted: ClassVar[tuple[str, ...]] = ()

    name: Annotated[str, Field(min_length=1)]
    chain: Annotated[str, Field(min_length=1)]
    default_topic: str
    topics: dict[str, str] = Field(default_factory=dict)
    reorg_threshold: Annotated[int, Field(ge=1)] = REORG_THRESHOLD
    prefixes: tuple[str, ...] = ()
    sub_batches: tuple[str, ...] | None = None
    volatile_paths: tuple[str, ...] = ()
    finality_paths: tuple[str, str] | None = None
    names: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401 -- pydantic's signature
        """Validate the values together and map errors to ConfigurationError."""
        try:
            made = handler(data)
        except ValidationError as error:
            raise refusal(error, "application") from None
        for topic in made.all_topics:
            _check_topic(topic)
        for setting, expressions in (
            ("topics", made.topics),
            ("prefixes", made.prefixes),
            ("sub_batches", made.sub_batches or ()),
            ("volatile_paths", made.volatile_paths),
            ("names", [expression for named in made.names.values() for expression in named]),
        ):
            for expression in expressions:
                _check_expression(expression, setting)
        if not made.prefixes and made.topics:
            object.__setattr__(made, "prefixes", tuple(made.topics))  # frozen, but not yet shared
        return made

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Every topic once: the default first, then the others sorted."""
        return (self.default_topic, *sorted(set(self.topics.values()) - {self.default_topic}))

    def finality(self, payload: Payload) -> Finality | None:
        """Finality of a payload; None without finality paths or where the payload has neither.

        A number is big-endian minimal bytes; an empty value: unknown.
        """
        if self.finality_paths is None:
            return None
        safe, finalized = (payload.updates.get(path) for path in self.finality_paths)
        if safe is None and finalized is None:
            return None
        return Finality(
            safe=int.from_bytes(safe) if safe else None,
            finalized=int.from_bytes(finalized) if finalized else None,
        )

    def time_of(self, payload: Payload) -> float | None:
        """Time of a block by its own content, in seconds since 1970, whole ones as ``int``.

        None where the application or the payload has none, or one that no calendar has.
        """
        del payload
        return None

    def counts(self, payload: Payload) -> Mapping[str, int]:
        """Numbers that are shown beside a block, by their names in :attr:`counted`."""
        del payload
        return {}

    def verifier(self, chain: Path | None = None) -> Callable[[Payload], None] | None:
        """Check of a payload that a stranger published; None: its content proves nothing.

        The check can be pickled, and raises ApplicationError.

        Arguments:
            chain: file with parameters of the chain; None: those that are known.

        Raises:
            ConfigurationError: the file cannot be used, or the application takes none.

        """
        if chain is not None:
            raise ConfigurationError(
                f"the application {self.name} takes no file of a chain: remove it", setting="chain"
            )
        return None

    @classmethod
    def load(cls, file: Path | str) -> Self:
        """Read an application from a TOML file whose keys are the attributes.

        Raises:
            ConfigurationError: the file cannot be read, is not TOML, or has an invalid value.

        """
        return cls.model_validate(read_toml(Path(file)))


def refusal(error: ValidationError, what: str) -> ConfigurationError:
    """ConfigurationError for the first invalid value of ``what``; ``setting`` names it."""
    first = error.errors()[0]
    setting = ".".join(str(part) for part in first["loc"]) or what
    return ConfigurationError(f"the {what}'s {setting} cannot be used: {first['msg']}", setting=setting)


def read_toml(file: Path, what: str = "application") -> dict[str, Any]:
    """Read a TOML file; ConfigurationError where it cannot be read or parsed."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"the {what} file {file} cannot be read: {error}", setting=what) from error


def _check_topic(topic: str) -> None:
    if not _KAFKA_NAME.fullmatch(topic) or topic in {".", ".."}:
        raise ConfigurationError(
            f"{topic!r} cannot be a topic: 1 to 249 letters, digits, dots, underscores and hyphens are allowed",
            setting="topics",
        )


def _check_expression(expression: str, setting: str) -> None:
    try:
        path_expression(expression)
    except re.error as error:
        raise ConfigurationError(
            f"{setting} holds an expression that does not compile: {expression!r} ({error.msg})", setting=setting
        ) from None
