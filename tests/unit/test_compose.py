"""docker-compose.yml says what can work: its parts fit each other, its commands and settings fit ours."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest

from cardinal.cli.main import cardinal
from cardinal.config.settings import find_node, find_url
from cardinal.config.url import parse_node_url
from cardinal.feeds import open_feed
from cardinal.transports.kafka.settings import kafka_settings
from compose import ROOT, commands, compose, dotenv, running, services, targets

OURS = {
    "producer-a": "produce",
    "producer-b": "produce",
    "ingest-a": "ingest",
    "ingest-b": "ingest",
    "ingest-c": "ingest",
    "publisher-a": "produce",
    "publisher-b": "produce",
    "tail": "tail",
    "serve": "serve",
    "lake": "lake",
}
DIRECT, CLUSTER = "direct", "cluster"
MEMBERS = ("a", "b", "c")


def _parsed(command: list[str]) -> click.Context:
    """A command line as click takes it."""
    group = click.Context(cardinal, info_name="cardinal")
    name, *arguments = command
    found = cardinal.get_command(group, name)
    assert found is not None, name
    context = found.make_context(name, list(arguments), parent=group)
    if isinstance(found, click.Group):  # `lake run`
        name, *arguments = context._protected_args + context.args
        found = found.get_command(context, name)
        assert found is not None, name
        context = found.make_context(name, list(arguments), parent=context)
    return context


def _broker_listeners(option: str) -> dict[str, str]:
    pairs = (one.split("://") for one in services()["kafka"]["environment"][option].split(","))
    return dict(pairs)


def test_producers_or_a_cluster_with_publishers_write_the_stream_and_everything_else_runs_with_both() -> None:
    assert dotenv() == {"COMPOSE_PROFILES": DIRECT}, "without a word, it is the path of the producers"
    direct, cluster = running(DIRECT), running(CLUSTER)
    assert direct - cluster == {"producer-a", "producer-b", "prometheus"}
    ingest = {f"ingest-{one}" for one in MEMBERS}
    assert cluster - direct == {"cluster-init", *ingest, "publisher-a", "publisher-b", "prometheus-cluster"}
    assert {"kafka", "anvil", "tail", "serve", "lake", "grafana"} <= direct & cluster


def test_the_publishers_push_to_all_members_and_prefer_different_ones() -> None:
    reached = []
    for name in ("publisher-a", "publisher-b"):
        params = _parsed(commands()[name]).params
        assert params["producer_id"] == name
        url = find_url(params["to_url"], None, {})
        assert url.scheme == "ingest"
        reached.append(url.hosts)
    nodes = {f"ingest-{one}:{_parsed(commands()[f'ingest-{one}']).params['listen'].split(':')[1]}" for one in MEMBERS}
    assert set(reached[0]) == set(reached[1]) == nodes
    assert reached[0][0] != reached[1][0]


def test_each_member_has_its_own_key_and_disk() -> None:
    disks = set()
    for one in MEMBERS:
        params, volumes = _parsed(commands()[f"ingest-{one}"]).params, services()[f"ingest-{one}"]["volumes"]
        mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in volumes}
        assert params["node_id"] == one
        assert params["key"] == Path(f"/cluster/{one}.key")
        assert params["cluster"] == Path("/cluster/cluster.toml")
        assert mounted["/cluster"] == "cluster"
        disks.add(mounted[str(params["data"])])
    assert len(disks) == len(MEMBERS)


def test_folders_of_volumes_belong_to_the_account_that_writes_them() -> None:
    """A named volume takes the owner of the image's folder."""
    made = re.search(r"&& mkdir (.+) && chown cardinal:cardinal (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert made is not None
    assert made[1] == made[2]
    mounted = {
        volume.split(":")[1]
        for service in services().values()
        if service.get("build", {}).get("target") in ("cardinal", "lake")
        for volume in service.get("volumes", ())
        if not volume.startswith("./")
    }
    assert mounted == set(made[1].split())


def test_the_script_of_the_first_epoch_is_mounted_where_it_runs() -> None:
    service = services()["cluster-init"]
    shell, script = service["entrypoint"]
    (source,) = (volume.split(":")[0] for volume in service["volumes"] if volume.split(":")[1] == script)
    assert (shell, source) == ("sh", "./deploy/cluster-init.sh")
    folder, *options = service["command"]
    assert f"cluster:{folder}" in service["volumes"]
    begin = ["cluster", "init", "--cluster", "cluster.toml", "--node-id", "a", "--key", "a.key", "--start", "0"]
    assert _parsed([*begin, *options]).params["chain_id"] == 31337
    assert " ".join(begin) in (ROOT / source).read_text()


def test_images_are_pinned_and_come_from_no_named_registry() -> None:
    for service in services().values():
        name, _, tag = service["image"].partition(":")
        assert "." not in name.partition("/")[0]
        if "build" in service:
            assert tag == "local"
            assert service["build"]["target"] in targets()
            assert (ROOT / service["build"]["context"]).resolve() == ROOT
        else:
            assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
    for base in re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        assert base in targets() or re.fullmatch(r"(python:3\.11|node:22)-[a-z-]+", base)


def test_what_is_waited_for_and_kept_exists() -> None:
    for service in services().values():
        for other, how in service.get("depends_on", {}).items():
            assert other in services()
            if how["condition"] == "service_completed_successfully":
                assert services()[other]["restart"] == "on-failure"
            else:
                assert how["condition"] == "service_started" or other == "kafka" or _answers_health(other)
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in compose()["volumes"]


@pytest.mark.parametrize("profile", [DIRECT, CLUSTER])
def test_in_a_profile_everything_that_is_needed_runs_and_no_port_is_taken_twice(profile: str) -> None:
    ports: list[str] = []
    for name in running(profile):
        service = services()[name]
        ports += service.get("ports", ())
        for other, how in service.get("depends_on", {}).items():
            assert other in running(profile) or how.get("required") is False, f"{name} waits for {other}"
    assert len(set(ports)) == len(ports)
    for reader in ("tail", "lake"):
        assert any(other != "kafka" and other in running(profile) for other in services()[reader]["depends_on"])


def _answers_health(name: str) -> bool:
    """The image's health check finds what the command serves: see the Dockerfile."""
    return "--metrics" in services()[name]["command"] and "0.0.0.0:9090" in services()[name]["command"]


def test_every_health_check_finds_an_answer() -> None:
    assert "127.0.0.1:9090/healthz" in (ROOT / "Dockerfile").read_text()
    for name in commands():
        check = services()[name].get("healthcheck")
        assert _answers_health(name) if check is None else check.get("disable") or "test" in check, name


def test_ports_are_open_to_this_machine_only() -> None:
    for service in services().values():
        for port in service.get("ports", ()):
            assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)


@pytest.mark.parametrize("name", OURS)
def test_a_command_line_is_one_that_our_commands_take(name: str) -> None:
    params = _parsed(commands()[name]).params
    assert params["chain_id"] == 31337


@pytest.mark.parametrize("name", OURS)
def test_the_names_on_a_command_line_are_those_of_its_environment(name: str) -> None:
    params, environ = _parsed(commands()[name]).params, services()[name]["environment"]
    stream = next(params[key] for key in ("to_url", "url", "from_url", "source") if key in params)
    url = find_url(stream, None, environ)
    if "from_url" in params and "to_url" in params:
        node = find_node(params["from_url"], None, environ)
        assert node == parse_node_url("ws://anvil:8545")
        assert open_feed(node, chain_id=params["chain_id"])
    if url.scheme == "ingest":
        return
    assert url.hosts == (_broker_listeners("KAFKA_ADVERTISED_LISTENERS")["CLIENT"],) == ("kafka:9092",)
    assert kafka_settings(url).partitions == 4  # every option is one that the transport knows


def test_the_node_listens_where_the_producers_look_for_it() -> None:
    command = services()["anvil"]["command"]
    options = dict(zip(command[::2], command[1::2], strict=True))
    assert options["--port"] == "8545"
    assert options["--host"] == "0.0.0.0"  # noqa: S104 - inside of its container
    assert options["--chain-id"] == "31337"
    assert options["--state"].startswith(services()["anvil"]["volumes"][0].partition(":")[2])


def test_the_broker_listens_at_its_advertised_address() -> None:
    listens, says = _broker_listeners("KAFKA_LISTENERS"), _broker_listeners("KAFKA_ADVERTISED_LISTENERS")
    assert {name: address.rpartition(":")[2] for name, address in says.items()} == {
        name: address.rpartition(":")[2] for name, address in listens.items() if name != "CONTROLLER"
    }
    port = says["OUTSIDE"].rpartition(":")[2]
    assert services()["kafka"]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_the_image_holds_what_the_distribution_is_made_of() -> None:
    text, ignored = (ROOT / "Dockerfile").read_text(), (ROOT / ".dockerignore").read_text().splitlines()
    copied = {part for line in re.findall(r"^COPY ([^-].*)$", text, re.MULTILINE) for part in line.split()[:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {Path(package).parts[0] for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    (readme,) = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"]
    needed = {*packages, "pyproject.toml", "constraints.txt", readme["path"], "LICENSE"}
    assert copied == needed
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == needed
    extras = set(re.findall(r"\[([a-z,]+)\]", text))
    assert extras == {"evm,ingest,server", "evm,local,server,spark"}
    assert {"evm", "ingest", "local", "server", "spark"} <= project["project"]["optional-dependencies"].keys()
