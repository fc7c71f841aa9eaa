"""The command group: finds its commands, sets up the log, and prints every CardinalError as one sentence."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import entry_points
from typing import Final, Literal

import click
from click.shell_completion import CompletionItem

from cardinal.cli.logs import LEVELS, report_error, set_up
from cardinal.cli.stopping import fail_on_sigterm
from cardinal.errors import CardinalError, MissingExtraError

_SUMMARY_LENGTH: Final = 200
"""More than any first sentence has, so that `cardinal --help` does not truncate it."""

_COMPLETION: Final = "_CARDINAL_COMPLETE"
_GROUP: Final = "cardinal.commands"
"""Entry points of the commands that other packages add."""

_SUMMARIES: Final = {
    "broker": "A real Kafka broker on this machine, without Docker and without a system Java.",
    "cluster": "Ingest nodes that agree on every block: keys, the first epoch, the state, and changes of the members.",
    "demo": "Node, two producers, Kafka, a consumer and Spark on this machine, until the lake equals the chain.",
    "faults": "Run a handler on chains with forks while its process is killed, and compare its state with the chain's.",
    "ingest": "Accept blocks from publishers, acknowledge them when they are verified and durable, and publish them.",
    "produce": "Publish a node's blocks: from where the topics end, then the head as it moves.",
    "record": "Record a stream in a folder, with positions, times and headers.",
    "repair": "Send the blocks of a range that the node has and that are missing or incomplete on the stream.",
    "replay": "Play a recording into a stream, in the recorded order.",
    "run": "Run a handler on a stream, from the cursor that it stored.",
    "serve": "Send a stream to many clients over websockets; it is read once.",
    "status": "Show the streams on a server: head, producers, retention and gaps.",
    "tail": "Print the chain updates of a stream as they come.",
    "topics": "List the topics of the streams on a server, or delete those of one stream.",
}
"""The first sentence of each command's help. Its file, ``cardinal.cli.NAME``, is imported when the command is used."""


class _Commands(click.Group):
    """Command group that imports a command's file only when it is used: the files of some need an extra.

    Help loads the commands of other packages, for their sentences; completion of names loads none.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted({*_SUMMARIES, *(point.name for point in entry_points(group=_GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name in _SUMMARIES:
            command = getattr(importlib.import_module(f"cardinal.cli.{cmd_name}"), cmd_name)
        else:
            found = [point for point in entry_points(group=_GROUP) if point.name == cmd_name]
            if not found:
                return None
            command = found[0].load()
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its complete first sentence."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands and our own options."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name) for name in names] + click.Command.shell_complete(self, ctx, incomplete)

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in _SUMMARIES:
            return _SUMMARIES[name]
        try:
            command = self.get_command(ctx, name)
        except MissingExtraError as error:
            return f"(needs the extra '{error.extra}')"
        except ImportError as error:
            return f"(cannot be imported: {error})"
        return command.get_short_help_str(_SUMMARY_LENGTH) if command else "(is no command)"


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
        report_error(_sentence(error), type(error).__name__)
        sys.exit(error.exit_code)
    except CardinalError as error:
        if _COMPLETION not in os.environ:  # a shell would print it at every key
            report_error(str(error), type(error).__name__)
        sys.exit(1)


def _sentence(error: click.ClickException) -> str:
    """Click's usage error in one line, with the command for help."""
    wrong = " ".join(error.format_message().split()).rstrip(".")
    if not isinstance(error, click.UsageError):
        return wrong
    # click's own parser raises some of them without a context
    return f"{wrong}: see `{error.ctx.command_path if error.ctx else 'cardinal'} --help`"
