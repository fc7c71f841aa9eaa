"""What an application is: data that says how a chain's payloads are laid out on topics.

Rules:

1. An application holds expressions and names only; what the values mean is the business of its own room
   (:mod:`cardinal.apps.evm`).
2. A key of ``topics`` is anchored as a whole at the start of a path, and the text that it matches is the prefix that
   is counted (specification, Producers). So it must match the prefix, not the whole path: ``c/1/n/`` counts every
   path below it under one entry.
3. It is checked when it is made; one that was made can be used everywhere.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality, path_expression

_KAFKA_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

REORG_THRESHOLD = 128
"""Blocks below the head that a reorg may reach without a channel of its own (facts, EVM application layer)."""


class Application(BaseModel):
    """How one chain's payloads travel.

    Attributes:
        name: the application's name, as ``cardinal.apps.get`` knows it.
        chain: the chain as text, such as ``evm:1``; part of every cursor.
        default_topic: where Batches go, and what no expression matches goes inside them.
        topics: expression to topic, each anchored at the start of a path and matching the counted prefix.
        reorg_threshold: blocks below the head that a reorg may reach, 1 or more.
        prefixes: expressions that match the entries under which this application counts; a consumer tracks them
            all by default. Empty means the expressions of ``topics``.
        sub_batches: expressions that match the whole path of every sub batch, none where there are no sub batches. By
            them a consumer of a part knows which topics it can leave out; None: they may lie anywhere.
        volatile_paths: expressions of paths whose values may differ between honest producers; searched in the path.
        names: a plain word to the expressions of the entries that it stands for, for ``tracked``. An application with
            names has no entries but those that ``topics``, ``prefixes`` and ``sub_batches`` match: a consumer's
            expression that can match none of them is refused. Default: no names, and any entry may come.
        finality_paths: the paths of the highest safe and the highest finalized block number, None without such.

    Raises:
        ConfigurationError: a value cannot work; ``setting`` names the attribute.

    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

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
        """Check the values against each other and raise our own error for whatever is wrong."""
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
            object.__setattr__(made, "prefixes", tuple(made.topics))  # frozen from here on; nobody has seen it yet
        return made

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Every topic once: the default first, the others sorted."""
        return (self.default_topic, *sorted(set(self.topics.values()) - {self.default_topic}))

    def finality(self, payload: Payload) -> Finality | None:
        """The marks that a payload carries: None without finality paths or where the payload has neither of them.

        A number is written as big-endian minimal bytes; an empty value means that the node had not said.
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

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read an application from a TOML file whose keys are the attributes.

        Raises:
            ConfigurationError: the file cannot be read, is no TOML, or holds what cannot work.

        """
        return cls.model_validate(read_toml(file))


def refusal(error: ValidationError, what: str) -> ConfigurationError:
    """Our own error for the first thing that is wrong with the values of ``what``; ``setting`` names it."""
    first = error.errors()[0]
    setting = ".".join(str(part) for part in first["loc"]) or what
    return ConfigurationError(f"the {what}'s {setting} cannot be used: {first['msg']}", setting=setting)


def read_toml(file: Path, what: str = "application") -> dict[str, Any]:
    """What a file of settings holds. ConfigurationError where it cannot be read or is no TOML."""
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
