"""The command group: finds its commands, sets up the log, and prints every CardinalError as one sentence."""

from __future__ import annotations

import os
import re
import sys
from typing import Final, Literal

import click
from click.shell_completion import CompletionItem

from cardinal import plugins
from cardinal.cli.deferred import Deferred
from cardinal.cli.logs import LEVELS, report_error, set_up
from cardinal.cli.stopping import fail_on_sigterm
from cardinal.errors import CardinalError, MissingExtraError

_SUMMARY_LENGTH: Final = 200
"""More than any first sentence has, so that `cardinal --help` does not truncate it."""

_COMPLETION: Final = "_CARDINAL_COMPLETE"
_UNKNOWN: Final = re.compile("No such (?:command|option):? '?(?P<name>[^' ]+)'?")

_OWN: Final = {
    "produce": Deferred(
        "Publish a node's blocks: from where the topics end, then the head as it moves.", "cardinal.cli.produce:produce"
    ),
    "record": Deferred("Record a stream in a folder, with positions, times and headers.", "cardinal.cli.record:record"),
    "repair": Deferred(
        "Send the blocks of a range that the node has and that are missing or incomplete on the stream.",
        "cardinal.cli.repair:repair",
    ),
    "replay": Deferred("Play a recording into a stream, in the recorded order.", "cardinal.cli.replay:replay"),
    "run": Deferred("Run a handler on a stream, from the cursor that it stored.", "cardinal.cli.run:run"),
    "status": Deferred(
        "Show the streams on a server: head, producers, retention and gaps.", "cardinal.cli.status:status"
    ),
    "tail": Deferred("Print the chain updates of a stream as they come.", "cardinal.cli.tail:tail"),
    "topics": Deferred(
        "List the topics of the streams on a server, or delete those of one stream.", "cardinal.cli.topics:topics"
    ),
}
"""The core's own commands; others are entry points of the group ``cardinal.commands``."""


class _Commands(click.Group):
    """Command group that imports a command's file only when it is used: the files of some need an extra.

    Help loads the commands of other packages that are not deferred, for their sentences; completion of names none.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted({*_OWN, *plugins.names(plugins.COMMANDS)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        command = _offered(cmd_name)
        if isinstance(command, Deferred):
            command = command.load()
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
        try:
            if isinstance(command := _offered(name), Deferred):
                return command.summary
            command = self.get_command(ctx, name)
        except MissingExtraError as error:
            return f"(needs the extra '{error.extra}')"
        except ImportError as error:
            return f"(cannot be imported: {error})"
        return command.get_short_help_str(_SUMMARY_LENGTH) if command else "(is no command)"


def _offered(name: str) -> object:
    """The value under a command's name; None where there is none."""
    if name in _OWN:
        return _OWN[name]
    return plugins.load(plugins.COMMANDS, name) if name in plugins.names(plugins.COMMANDS) else None


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
    """Click's usage error in one line, with the nearest name or the command for help."""
    wrong = " ".join(error.format_message().split()).rstrip(".")
    if not isinstance(error, click.UsageError):
        return wrong
    context = error.ctx
    if context is None:  # click's own parser raises some without one
        return f"{wrong}: see `cardinal --help`"
    remedy = f"see `{context.command_path} --help`"
    unknown = _UNKNOWN.match(error.message)
    return f"{unknown[0]}: {_nearest(unknown['name'], context, remedy)}" if unknown else f"{wrong}: {remedy}"


def _nearest(name: str, context: click.Context, otherwise: str) -> str:
    """The remedy for an unknown option or command."""
    from cardinal.config.options import nearest  # noqa: PLC0415 - only where something is wrong

    if not name.startswith("-"):
        return nearest(name, context.command.list_commands(context), otherwise)  # type: ignore[attr-defined] # a group
    above = context.find_root()
    if context is not above and name in _options(above):
        return f"it stands before the command: `cardinal {name} …`"
    return nearest(name, _options(context), otherwise)


def _options(context: click.Context) -> list[str]:
    return [name for one in context.command.get_params(context) for name in (*one.opts, *one.secondary_opts)]
