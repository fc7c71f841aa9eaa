"""Commands of docker-compose.yml without an engine: on a real broker and a real node."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from anvil_node import anvil
from commands import DEADLINE, Processes, fresh_chain_id, replayed

from cardinal.embedded.launch import prepare
from compose import commands, services
from serving import until

if TYPE_CHECKING:
    from pathlib import Path

    from cardinal.embedded import EmbeddedKafka

pytestmark = pytest.mark.slow


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
    tool = [*prepare().command, "kafka.tools.StorageTool", "format"]
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
def test_its_commands_bring_a_nodes_chain_to_the_reader_also_when_a_producer_is_killed(
    cardinal_broker: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_run(cardinal_broker.bootstrap, tmp_path, monkeypatch))


async def _run(bootstrap: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain_id = str(fresh_chain_id())
    here = {"31337": chain_id, "0.0.0.0:9090": "127.0.0.1:0"}
    lines = {name: [here.get(part, part) for part in command] for name, command in commands().items()}
    async with anvil("--chain-id", chain_id) as node:
        for name, value in services()["tail"]["environment"].items():
            local = value.replace("kafka:9092", bootstrap).replace("ws://anvil:8545", node.ws_url)
            assert local != value
            monkeypatch.setenv(name, local)
        await node.mine(3)
        with Processes(folder) as processes:
            logs = [folder / "0.err", folder / "1.err"]
            first, second = (processes.start(*lines[name]) for name in ("producer-a", "producer-b"))
            # Without a stream, tail would say so and end; the file starts it again then.
            await asyncio.to_thread(
                until, lambda: all("the stream cardinal-" in log.read_text() for log in logs), DEADLINE
            )
            reader = processes.start(*lines["tail"], "--format", "json", "--stop", "8")
            await node.mine(2)
            assert reader.stdout is not None
            begin: list[dict[str, Any]] = []
            while not begin or begin[-1]["added"][-1]["number"] < 5:  # how blocks group in updates is open
                begin.append(json.loads(await asyncio.to_thread(reader.stdout.readline)))
            first.kill()
            await node.mine(3)
            rest = await asyncio.to_thread(reader.stdout.read)
            status, _, said = processes.end(reader)
            assert status == 0, said
            second.send_signal(signal.SIGTERM)
            status, _, said = await asyncio.to_thread(processes.end, second)
            assert status == 0, said
        chain = replayed([*begin, *map(json.loads, rest.splitlines())])
        assert chain == [block["hash"] for block in await node.chain()]
