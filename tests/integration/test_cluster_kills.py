"""Kills of members, publishers and broker of a cluster: acknowledged blocks are on the topics, each once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killing import PUBLISHERS, killed

from cardinal.embedded import free_port
from cardinal.server.ingest.cluster.keys import generate_key

if TYPE_CHECKING:
    from cardinal.apps import Application
    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.broker
MEMBERS = ("a", "b", "c")


class Cluster:
    """Three members: their keys, their file, the first epoch.

    Arguments:
        url, app: the stream.
        folder: for keys and data.

    """

    orphans = False

    def __init__(self, url: str, app: Application, folder: Path) -> None:
        self.ports = {one: free_port() for one in MEMBERS}
        self.commands: dict[str, list[str]] = {}
        self.file = folder / "cluster.toml"
        stream = ["--to", url, "--app", app.name, "--topic", app.default_topic, "--cluster", str(self.file)]
        lines = ['name = "kills"']
        for one in MEMBERS:
            key = folder / f"{one}.key"
            public = generate_key(key).public.hex()
            lines += [f"[members.{one}]", f'key = "{public}"', f'address = "127.0.0.1:{free_port()}"']
            lines += [f'bodies = "127.0.0.1:{free_port()}"']
            as_member = ["--node-id", one, "--key", str(key)]
            listen = f"127.0.0.1:{self.ports[one]}"
            self.commands[one] = ["ingest", *stream, *as_member, "--listen", listen, "--data", str(folder / one)]
        self.file.write_text("\n".join(lines))
        init = ["cluster", "init", *stream, "--node-id", "a", "--key", str(folder / "a.key"), "--start", "0"]
        subprocess.run([sys.executable, "-m", "cardinal", *init], check=True, capture_output=True)


@pytest.mark.parametrize("app", ["blob", pytest.param("items", marks=pytest.mark.slow)])
def test_members_and_publishers_are_killed(app: str, cardinal_broker: EmbeddedKafka, tmp_path: Path) -> None:
    killed(app, cardinal_broker, tmp_path, [*MEMBERS, PUBLISHERS[0]], 1, Cluster)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_members_publishers_and_broker_are_killed_at_30_points(
    cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    killed("blob", cardinal_killable_broker, tmp_path, [*MEMBERS, *PUBLISHERS, "broker"] * 5, 2, Cluster)


@pytest.mark.soak
@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("seed", range(10, 20))
def test_members_publishers_and_broker_are_killed_at_1080_points(
    seed: int, cardinal_killable_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    killed("blob", cardinal_killable_broker, tmp_path, [*MEMBERS, *MEMBERS, *PUBLISHERS, "broker"] * 12, seed, Cluster)
