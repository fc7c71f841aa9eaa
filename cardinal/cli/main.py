"""The command group: finds its commands, sets up the log, and prints every CardinalError as one sentence."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from typing import Final, Literal

import click

from cardinal.cli.logs import LEVELS, report_error, set_up
from cardinal.cli.stopping import fail_on_sigterm
from cardinal.errors import CardinalError

_SUMMARY_LENGTH: Final = 200
"""More than any first sentence has, so that `cardinal --help` does not truncate it."""

_COMMANDS = {
    "broker": "cardinal.cli.broker:broker",
    "cluster": "cardinal.cli.cluster:cluster",
    "demo": "cardinal.cli.demo:demo",
    "faults": "cardinal.cli.faults:faults",
    "ingest": "cardinal.cli.ingest:ingest",
    "produce": "cardinal.cli.produce:produce",
    "record": "cardinal.cli.record:record",
    "repair": "cardinal.cli.repair:repair",
    "replay": "cardinal.cli.replay:replay",
    "serve": "cardinal.cli.serve:serve",
    "status": "cardinal.cli.status:status",
    "tail": "cardinal.cli.tail:tail",
    "topics": "cardinal.cli.topics:topics",
}


class _Commands(click.Group):
    """Command group that imports a command's file only when it is used, so that `--help` needs no extra."""

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its complete first sentence."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_SUMMARY_LENGTH)) for name, one in named if one])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="cardinal-streams", prog_name="cardinal")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Lowest level of what is logged.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log on standard error.",
)
def cardinal(log_level: str, log_format: Literal["text", "json"]) -> None:
    """Block streaming: a node's blocks on Kafka, complete and reorg-aware for consumers and Spark.

    Results go to standard output, the log goes to standard error. Exit status: 0 clean, 1 error, 2 usage error, 130 or
    143 interrupted before the work was done. These options stand before the command.

    \b
    Example:
      cardinal --log-format json produce --from ws://localhost:8546 --to kafka://localhost:9092

    \b
    Completion of commands and options in bash (zsh and fish likewise):
      eval "$(_CARDINAL_COMPLETE=bash_source cardinal)"
    """
    set_up(log_level, log_format)


def main() -> None:
    """Entry point of the `cardinal` script: one sentence for every CardinalError (status 1) and wrong option (2)."""
    fail_on_sigterm()
    try:
        cardinal(prog_name="cardinal", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as no_arguments:
        no_arguments.show()
        sys.exit(no_arguments.exit_code)
    except click.ClickException as error:
        report_error(_sentence(error))
        sys.exit(error.exit_code)
    except CardinalError as error:
        report_error(str(error))
        sys.exit(1)


def _sentence(error: click.ClickException) -> str:
    """Click's usage error in one line, with the command for help."""
    wrong = " ".join(error.format_message().split()).rstrip(".")
    if not isinstance(error, click.UsageError):
        return wrong
    # click's own parser raises some of them without a context
    return f"{wrong}: see `{error.ctx.command_path if error.ctx else 'cardinal'} --help`"
