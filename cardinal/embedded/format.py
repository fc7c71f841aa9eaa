"""Formatting a broker's log folder by Kafka's own tool."""

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
    """Format the log folder unless it is; one that a kill left half formatted is formatted again.

    Arguments:
        command: Java with its flags and the class path.
        data: the data folder.
        cluster_id: the cluster that the folder belongs to from then on.
        configuration: the name of the configuration file in the data folder.

    Raises:
        EmbeddedBrokerError: Kafka could not.

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
