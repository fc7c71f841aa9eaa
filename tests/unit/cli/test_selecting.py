"""Options of applications at commands: who has them, and what is refused."""

from __future__ import annotations

import click
import pytest

from cardinal import apps
from cardinal.cli.selecting import selected_part

ADDRESS = f"0x{'ab' * 20}"


def test_only_an_application_that_brings_options_has_some() -> None:
    assert {name: [one.name for one in apps.selection_options(name)] for name in (*apps.names(), "other")} == {
        "blob": [],
        "evm": ["address", "topic0"],
        "items": [],
        "other": [],
    }


def test_without_an_option_nothing_is_selected() -> None:
    assert selected_part("evm", {"address": (), "topic0": ()}) is None
    made = selected_part("evm", {"address": (ADDRESS,), "topic0": ()})
    assert made is not None
    assert (made.noun, made.tracked) == ("logs", "logs")


@pytest.mark.parametrize(
    ("app", "values", "text"),
    [
        ("evm", {"address": ("0x12",), "topic0": ()}, "--address takes 0x and 40 hex digits, not '0x12'"),
        ("evm", {"address": (), "topic0": (ADDRESS,)}, "--topic0 takes 0x and 64 hex digits"),
        ("evm", {"address": ("Transfer",), "topic0": ()}, "--address takes 0x and 40 hex digits, not 'Transfer'"),
        ("blob", {"address": (ADDRESS,), "topic0": ()}, "--address is no option of the application blob"),
    ],
)
def test_a_value_or_an_option_that_is_not_the_applications_is_refused(
    app: str, values: dict[str, tuple[str, ...]], text: str
) -> None:
    with pytest.raises(click.UsageError) as refused:
        selected_part(app, values)
    assert text in str(refused.value)
