"""`cardinal run`: a handler of yours on a stream. Arguments, signals and metrics only."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardinal.cli.common import (
    app_option,
    application,
    chain_id_option,
    config_option,
    metrics_option,
    stream,
    topic_option,
)
from cardinal.cli.positions import start_option
from cardinal.cli.stopping import call_on_signals
from cardinal.consumer import Consumer
from cardinal.errors import ConfigurationError
from cardinal.handlers import Handler, close_handler, load_factory
from cardinal.server.handler_service import HandlerService

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from cardinal.consuming.metrics import ConsumerMetrics
    from cardinal.protocols.streams.cursor import Cursor

_METHODS = ("handle", "cursor")

_log = logging.getLogger("cardinal.run")


@click.command()
@click.argument("handler", metavar="MODULE:NAME")
@click.option("--from", "from_url", required=True, metavar="URL", help="Stream to handle: kafka://host:port.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default="this one",
    help="Directory with which the handler is opened; it is made where there is none.",
)
@start_option(help="First block, while the handler has no cursor.")
@click.option("--exit-at-end", is_flag=True, help="End when what is there now was handled.")
@click.option(
    "--tracked", multiple=True, metavar="PART", help="Part of each block to read, such as logs; may be repeated."
)
@app_option
@chain_id_option
@topic_option
@metrics_option
@config_option
def run(  # noqa: PLR0917 - click passes options by name
    handler: str,
    from_url: str,
    data: Path,
    start: str | int | datetime,
    exit_at_end: bool,  # noqa: FBT001 - the same
    tracked: tuple[str, ...],
    app_name: str,
    chain_id: int | None,
    topic: str | None,
    metrics: str | None,
    config: Path | None,
) -> None:
    """Run a handler on a stream, from the cursor that it stored.

    MODULE:NAME is a class or function that opens the handler, package.module:name or file.py:name, as for `cardinal
    faults`, which tests it. It is opened with a directory, and has two methods: handle(update) applies a ChainUpdate
    and stores its cursor in the same transaction, cursor() returns the stored cursor or None; and close(), where it
    has something to close.

    Waits for a stream that does not exist yet, or whose server is unreachable. SIGINT and SIGTERM stop it after the
    update in hand, with status 0; a second one at once. An error of the handler ends it with status 1, and the next
    start resumes with the update that failed: run it under a supervisor that restarts it.

    \b
    Examples:
      cardinal run balances.py:Balances --from kafka://localhost:9092 --data ./balances
      cardinal run ours.logs:Transfers --from main --tracked logs --metrics 127.0.0.1:9464
    """
    source = stream(from_url, config)

    def connect(cursor: Cursor | None) -> Consumer:
        chain = chain_id if chain_id is not None or cursor is None else _chain_id(cursor)
        app = application(source, app_name, chain, topic, wait=0.0)
        begin = start if cursor is None else cursor
        return Consumer(source, app, start=begin, until="end" if exit_at_end else None, tracked=tracked or None)

    with ExitStack() as stack:
        opened = _opened(handler, data)
        stack.callback(close_handler, opened)
        service = HandlerService(opened, connect)
        call_on_signals(service.stop)
        service.run(None if metrics is None else _observer(metrics, service, stack))


def _opened(name: str, data: Path) -> Handler:
    """The handler of this name. ConfigurationError where it cannot be imported or opened, or is none."""
    verb = "imported"
    try:
        factory = load_factory(name, Path.cwd())
        verb = "opened"
        data.mkdir(parents=True, exist_ok=True)
        handler: Handler = factory(data)
    except Exception as error:
        _log.debug("the handler %s cannot be %s", name, verb, exc_info=True)
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"the handler {name} cannot be {verb}: {reason}", setting="handler") from error
    if missing := [method for method in _METHODS if not callable(getattr(handler, method, None))]:
        raise ConfigurationError(
            f"{name} is no handler: it has no method {' and no '.join(missing)}; see `cardinal run --help`",
            setting="handler",
        )
    return handler


def _chain_id(cursor: Cursor) -> int | None:
    """The chain of a cursor, which decides where a server has several."""
    number = cursor.chain.rpartition(":")[2]
    return int(number) if number.isdecimal() else None


def _observer(address: str, service: HandlerService, stack: ExitStack) -> Callable[[Consumer], ConsumerMetrics]:
    """Serve the metrics of the service; returns what makes those of its consumer."""
    from cardinal.consuming.metrics import ConsumerMetrics  # noqa: PLC0415 - an extra of its own
    from cardinal.metrics import Endpoint, new_registry  # noqa: PLC0415 - the same

    registry = new_registry()
    endpoint = stack.enter_context(Endpoint(address, registry, lambda: service.waits_for))
    _log.info("metrics at http://%s/metrics", endpoint.address)
    return lambda consumer: ConsumerMetrics(consumer, registry)
