"""The exception tree: every error keeps what it was given, says a sentence, and is one of ours."""

from __future__ import annotations

import inspect

import pytest

from cardinal import errors
from cardinal.errors import CardinalError

TREE = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    key=lambda kind: kind.__name__,
)
RENAMED = {"block_hash": "hash"}
"""Arguments that are attributes under another name."""


def made(kind: type[CardinalError]) -> tuple[CardinalError, dict[str, object]]:
    """An error of this kind, and what it was given beside its message."""
    if "__init__" not in {name for one in kind.__mro__ if issubclass(one, CardinalError) for name in vars(one)}:
        return kind("some message"), {}
    given: dict[str, object] = {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        text = parameter.name in ("message", "what", "extra", "reason")
        given[parameter.name] = f"some {parameter.name}" if text else (parameter.name,)
    return kind(**given), {name: value for name, value in given.items() if name not in ("message", "what")}


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_is_ours_has_its_message_and_retains_the_values(kind: type[CardinalError]) -> None:
    assert issubclass(kind, CardinalError)
    assert kind.__doc__
    assert isinstance(kind.retriable, bool)
    error, given = made(kind)
    assert "some" in str(error)
    for name, value in given.items():
        kept = getattr(error, RENAMED.get(name, name), None)
        assert kept == value, f"{kind.__name__} does not keep {name}"


def test_the_error_of_a_missing_extra_has_the_install_command() -> None:
    error = errors.MissingExtraError("the lake", "spark")
    assert "pip install 'cardinal-streams[spark]'" in str(error)
    assert error.extra == "spark"
