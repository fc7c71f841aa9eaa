"""Help of the commands: complete summaries, a help text for each option, an example for each command."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from cardinal import plugins
from cardinal.cli.deferred import Deferred
from cardinal.cli.main import cardinal
from cardinal.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

main = sys.modules["cardinal.cli.main"]  # the package's name of the same is the function
NAMES = cardinal.list_commands(click.Context(cardinal))


def commands(name: str, group: click.Group = cardinal, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """A command and those below it."""
    command = group.get_command(click.Context(group), name)
    assert command is not None
    yield f"{above}{name}", command
    if isinstance(command, click.Group):
        for below in command.list_commands(click.Context(command)):
            yield from commands(below, command, f"{above}{name} ")


def test_the_commands_are_those_of_the_package_and_of_its_entry_points() -> None:
    assert {"demo", "faults", "produce", "repair", "serve", "tail"} < set(NAMES)
    assert {"dev-node", "lake"} < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_help_text_and_every_command_an_example(name: str) -> None:
    for path, command in commands(name):
        options = [one for one in command.params if isinstance(one, click.Option)]
        assert [one.name for one in options if not one.help] == []
        assert re.search(rf"Examples?:\n(.*\n)* +(\S+=\S+ )*cardinal (.* )?{path}\b", command.help or ""), path
        assert all(len(line) <= 120 for line in (command.help or "").splitlines())


def test_the_list_of_commands_has_whole_summaries_and_names_completion() -> None:
    shown = CliRunner().invoke(cardinal, ["--help"]).stdout
    assert "..." not in shown.partition("Commands:")[2]
    assert 'eval "$(_CARDINAL_COMPLETE=bash_source cardinal)"' in shown
    assert all(f"  {name} " in shown for name in NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(main._offered(name), Deferred)])
def test_the_table_has_the_first_sentence_of_each_command(name: str) -> None:
    command = cardinal.get_command(click.Context(cardinal), name)
    assert command is not None
    assert command.get_short_help_str(200) == main._offered(name).summary


@pytest.mark.process
def test_help_and_the_completion_of_names_load_no_command() -> None:
    script = (
        "import sys\nfrom click.testing import CliRunner\nfrom cardinal.cli.main import cardinal\n"
        "assert CliRunner().invoke(cardinal, ['--help']).exit_code == 0\n"
        "words = {'_CARDINAL_COMPLETE': 'bash_complete', 'COMP_WORDS': 'cardinal ', 'COMP_CWORD': '1'}\n"
        "assert 'serve' in CliRunner(env=words).invoke(cardinal, prog_name='cardinal').stdout\n"
        "print([name for name in sys.modules if name.startswith(('cardinal.cli.', 'cardinal.server', 'pyspark'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (
        done.stdout.strip()
        == "['cardinal.cli.deferred', 'cardinal.cli.logs', 'cardinal.cli.stopping', 'cardinal.cli.main']"
    )


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (MissingExtraError("Flying", "wings"), "(needs the extra 'wings')"),
        (ImportError("No module named 'feathers'"), "(cannot be imported: No module named 'feathers')"),
    ],
)
def test_a_command_that_cannot_be_loaded_is_listed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str
) -> None:
    def load(*_: str) -> None:
        raise error

    monkeypatch.setattr(plugins, "names", lambda group: ("fly",) if group == plugins.COMMANDS else ())
    monkeypatch.setattr(plugins, "load", load)
    done = CliRunner().invoke(cardinal, ["--help"])
    assert done.exit_code == 0
    assert re.search(rf"fly +{re.escape(shown)}", done.stdout)


def test_completion_offers_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, offered in (("cardinal to", "topics"), ("cardinal tail --exit", "--exit-at-end")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        done = CliRunner(env={"_CARDINAL_COMPLETE": "bash_complete"}).invoke(cardinal, prog_name="cardinal")
        assert offered in done.stdout
