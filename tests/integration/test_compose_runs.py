"""Commands of docker-compose.yml without an engine: on a real broker and a real node."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anvil_node import anvil
from commands import DEADLINE, Processes, fresh_chain_id, replayed

from cardinal import apps
from cardinal.transports import list_topics
from cardinal_devkit.kafka import free_port
from cardinal_devkit.kafka.launch import kafka_command
from compose import ROOT, commands, services
from serving import until

if TYPE_CHECKING:
    from cardinal_devkit.kafka import EmbeddedKafka

pytestmark = pytest.mark.slow
WRITERS = {
    "direct": ("producer-a", "producer-b"),
    "cluster": ("publisher-a", "publisher-b", "ingest-a", "ingest-b", "ingest-c"),
}
"""Services of a profile that write the stream; the first and the third are killed."""


@pytest.mark.broker
def test_kafka_takes_the_brokers_settings(tmp_path: Path) -> None:
    """Kafka's own tool reads them: listeners, their names and protocols, the quorum."""
    environ = services()["kafka"]["environment"] | {"KAFKA_LOG_DIRS": str(tmp_path / "logs")}
    properties = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith("KAFKA_")
    }
    (tmp_path / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    tool = [*kafka_command(), "kafka.tools.StorageTool", "format"]
    done = subprocess.run(
        [*tool, "-t", environ["CLUSTER_ID"], "-c", "server.properties"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert f"cluster.id={environ['CLUSTER_ID']}" in (tmp_path / "logs" / "meta.properties").read_text()


@pytest.mark.broker
@pytest.mark.node
@pytest.mark.parametrize("profile", ["direct", "cluster"])
def test_its_commands_bring_a_nodes_chain_to_the_reader_also_when_some_are_killed(
    profile: str, cardinal_broker: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_run(profile, cardinal_broker.bootstrap, tmp_path, monkeypatch))


async def _run(profile: str, bootstrap: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain_id = fresh_chain_id()
    async with anvil("--chain-id", str(chain_id)) as node:
        for name, value in services()["tail"]["environment"].items():
            local = value.replace("kafka:9092", bootstrap).replace("ws://anvil:8545", node.ws_url)
            assert local != value
            monkeypatch.setenv(name, local)
        await node.mine(3)
        with Processes(folder) as processes:
            lines = _here(chain_id, folder)
            if profile == "cluster":
                await asyncio.to_thread(_begin_cluster, folder, str(chain_id))
            first, second, *nodes = (processes.start(*lines[name]) for name in WRITERS[profile])
            # Without a stream, tail would say so and end; the file starts it again then.
            topics = set(apps.get("evm", chain_id=chain_id).all_topics)
            await asyncio.to_thread(until, lambda: topics <= list_topics(f"kafka://{bootstrap}"), DEADLINE)
            reader = processes.start(*lines["tail"], "--format", "json", "--stop", "8")
            await node.mine(2)
            assert reader.stdout is not None
            begin: list[dict[str, Any]] = []
            while not begin or begin[-1]["added"][-1]["number"] < 5:  # how blocks group in updates is open
                begin.append(json.loads(await asyncio.to_thread(reader.stdout.readline)))
            for one in (first, *nodes[:1]):
                one.kill()
            await node.mine(3)
            rest = await asyncio.to_thread(reader.stdout.read)
            status, _, said = processes.end(reader)
            assert status == 0, said
            for one in (second, *nodes[1:]):
                one.send_signal(signal.SIGTERM)
                status, _, said = await asyncio.to_thread(processes.end, one)
                assert status == 0, said
        chain = replayed([*begin, *map(json.loads, rest.splitlines())])
        assert chain == [block["hash"] for block in await node.chain()]


def _here(chain_id: int, folder: Path) -> dict[str, list[str]]:
    """The commands with the addresses and folders of this machine; those of the members are written down."""
    nodes = {f"ingest-{one}:40840": f"127.0.0.1:{free_port()}" for one in "abc"}

    def here(name: str, part: str) -> str:
        for inside, outside in nodes.items():
            part = part.replace(inside, outside)
        own = {
            "31337": str(chain_id),
            "0.0.0.0:9090": "127.0.0.1:0",
            "0.0.0.0:40840": nodes.get(f"{name}:40840", ""),
            "/data": str(folder / name),
        }
        return str(folder) + part if part.startswith("/cluster/") else own.get(part, part)

    return {name: [here(name, part) for part in command] for name, command in commands().items()}


def _begin_cluster(folder: Path, chain_id: str) -> None:
    """Run the script of the first epoch, twice: the second time it finds everything as it is."""
    cluster = folder / "cluster"
    cluster.mkdir()
    (_, *options) = [{"31337": chain_id}.get(part, part) for part in services()["cluster-init"]["command"]]
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    seen = []
    for _ in range(2):
        done = subprocess.run(
            ["sh", ROOT / "deploy/cluster-init.sh", cluster, *options],
            env=environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        seen.append({file.name: file.read_text() for file in cluster.iterdir()})
    assert seen[0] == seen[1]
    assert seen[0].keys() == {"a.key", "b.key", "c.key", "cluster.toml"}
    file = cluster / "cluster.toml"
    file.write_text(re.sub(r"ingest-[abc]:\d+", lambda _: f"127.0.0.1:{free_port()}", seen[0]["cluster.toml"]))
