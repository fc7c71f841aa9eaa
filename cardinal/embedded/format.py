"""Formatting of a broker's log folder with Kafka's storage tool."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from cardinal.errors import EmbeddedBrokerError

from .properties import LOGS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FORMAT_SECONDS = 60


def format_logs(command: Sequence[str], data: Path, cluster_id: str, configuration: str) -> None:
    """Format the log folder unless it is complete already.

    Arguments:
        command: Java with its flags and the class path.
        data: the data folder.
        cluster_id: the cluster of the folder.
        configuration: the name of the configuration file in the data folder.

    Raises:
        EmbeddedBrokerError: the tool failed.

    """
    if (data / LOGS / "meta.properties").exists():
        return
    tool = [*command, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", configuration]
    log = data / "format.log"
    with log.open("wb") as output:
        try:
            subprocess.run(  # noqa: S603 - Kafka's own tool
                [*tool, "--ignore-formatted"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=data,
                check=True,
                timeout=_FORMAT_SECONDS,
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise EmbeddedBrokerError(f"Kafka could not format {data}: see {log}") from error
