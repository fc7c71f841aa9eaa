"""Help of the commands: whole summaries, a help text for each option, an example for each command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from cardinal.cli.main import cardinal

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("broker", "dev-node", "lake", "record", "replay", "status", "tail", "topics")


def commands(name: str) -> Iterator[tuple[str, click.Command]]:
    """A command and those below it."""
    context = click.Context(cardinal)
    command = cardinal.get_command(context, name)
    assert command is not None
    yield name, command
    if isinstance(command, click.Group):
        yield from ((f"{name} {below}", one) for below, one in command.commands.items())


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_help_text_and_every_command_an_example(name: str) -> None:
    for path, command in commands(name):
        options = [one for one in command.params if isinstance(one, click.Option)]
        assert [one.name for one in options if not one.help] == []
        assert f"cardinal {path.split()[0]}" in (command.help or "")
        assert "Example" in (command.help or "")
        assert all(len(line) <= 120 for line in (command.help or "").splitlines())


def test_the_list_of_commands_has_whole_summaries_and_names_completion() -> None:
    shown = CliRunner().invoke(cardinal, ["--help"]).stdout
    assert "..." not in shown.partition("Commands:")[2]
    assert 'eval "$(_CARDINAL_COMPLETE=bash_source cardinal)"' in shown
    assert all(f"  {name} " in shown for name in NAMES)


def test_completion_offers_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, offered in (("cardinal to", "topics"), ("cardinal tail --exit", "--exit-at-end")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        done = CliRunner(env={"_CARDINAL_COMPLETE": "bash_complete"}).invoke(cardinal, prog_name="cardinal")
        assert offered in done.stdout
