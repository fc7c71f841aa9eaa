"""The command group: finds its commands, and turns a CardinalError into one sentence on stderr."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import entry_points

import click

from cardinal.errors import CardinalError

_COMMANDS = {
    "broker": "cardinal.cli.broker:broker",
    "demo": "cardinal.cli.demo:demo",
    "produce": "cardinal.cli.produce:produce",
    "record": "cardinal.cli.record:record",
    "repair": "cardinal.cli.repair:repair",
    "replay": "cardinal.cli.replay:replay",
    "serve": "cardinal.cli.serve:serve",
    "tail": "cardinal.cli.tail:tail",
}


class _Commands(click.Group):
    """Imports a command's file only when it is asked for, so that `--help` needs no extra."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted({*_COMMANDS, *(point.name for point in entry_points(group="cardinal.commands"))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if target := _COMMANDS.get(cmd_name):
            module, _, name = target.partition(":")
            command = getattr(importlib.import_module(module), name)
        else:
            found = [point for point in entry_points(group="cardinal.commands") if point.name == cmd_name]
            if not found:
                return None
            command = found[0].load()
        return command if isinstance(command, click.Command) else None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cardinal-streams", prog_name="cardinal")
def cardinal() -> None:
    """Block streaming: a node's blocks on Kafka, complete and reorg-aware for consumers and Spark."""
    if any(name.startswith("CARDINAL_") for name in os.environ):
        from cardinal.transports.misspelt import unknown  # noqa: PLC0415 - takes longer than the rest of `--help`

        for sentence in unknown(os.environ):
            click.echo(f"warning: {sentence}", err=True)


def main() -> None:
    """Entry point of the `cardinal` script: one sentence for every CardinalError (status 1) and wrong option (2)."""
    try:
        cardinal(prog_name="cardinal", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as asked:
        asked.show()
        sys.exit(asked.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {_sentence(error)}", err=True)
        sys.exit(error.exit_code)
    except CardinalError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def _sentence(error: click.ClickException) -> str:
    """What click found wrong, in one line, and where to read how it is right."""
    wrong = " ".join(error.format_message().split()).rstrip(".")
    if not isinstance(error, click.UsageError):
        return wrong
    # click's own parser raises some of them without a context
    return f"{wrong}: see `{error.ctx.command_path if error.ctx else 'cardinal'} --help`"
