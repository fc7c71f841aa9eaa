"""deploy/: the dashboard, the alert rules and Prometheus' targets name metrics and services that exist."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click
import pytest
from prometheus_client import CollectorRegistry

from blocks import Blocks
from cardinal.cli.main import cardinal
from cardinal.config.settings import find_url
from cardinal.config.url import parse_node_url
from cardinal.consuming.metrics import ConsumerMetrics
from cardinal.feeds import FeedReport, NodeReport
from cardinal.metrics import new_registry
from cardinal.producing.inflight import ProducerStats
from cardinal.producing.standby.arrivals import ArrivalCounts
from cardinal.protocols.streams.publishing.standby import ProducerCount
from cardinal.protocols.streams.types import Finality
from cardinal.server.produce import Progress
from cardinal.server.produce.metrics import ProduceMetrics
from cardinal_ingest.node.metrics import IngestMetrics, IngestStatus, MemberStatus
from cardinal_relay.server.status import ServeStatus, StatusCollector
from cardinal_spark.metrics import LakeMetrics
from compose import ROOT, running, services
from pages import section

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ROOT / "deploy"
NAME = re.compile(r"\b(?:cardinal_(?:produce|consumer|lake|serve|ingest)_\w+)")

PROGRESS = Progress(
    number=9,
    hash=bytes(32),
    first=None,
    published=8,
    target=9,
    stats=ProducerStats(1, 2, 3, 1, 0, 4, 5),
    retries=1,
    renewals=0,
    reorgs=1,
    partial=(),
    above=(),
    absent=frozenset(),
    producers=ProducerCount(("one",), 0, {"one": 1}),
    arrivals=ArrivalCounts(0, 0, {"one": 0.0}),
    finality=Finality(5, 3),
    oldest_seconds=0.0,
    idle_seconds=0.0,
    stalled_seconds=0.0,
    eta_seconds=1.0,
    connected=True,
    nodes=FeedReport((NodeReport("http://node", 9, 1, {"answer": 1}),)),
    waits_for="",
)


class Quiet:
    """A consumer that has nothing to read."""

    app = Blocks()
    ready = caught_up = connected = True
    lag = open_blocks = held_bytes = without_quorum = 0
    lag_seconds = 0.0
    awaited = ()
    withheld = None

    def refresh_lag(self) -> None:
        """Nothing is ever new."""


def names(registry: CollectorRegistry) -> set[str]:
    """Every name of a sample; of metrics with labels that have none yet, the names that samples will have."""
    found = {sample.name for family in registry.collect() for sample in family.samples}
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return found | {family.name + ending for family in registry.collect() for ending in endings.get(family.type, ("",))}


def known() -> set[str]:
    produce = ProduceMetrics()
    produce.progress = lambda: PROGRESS
    consumer = ConsumerMetrics(Quiet())  # type: ignore[arg-type] # as much of a consumer as metrics read
    serve = new_registry()
    serve.register(StatusCollector(lambda: ServeStatus(*[0] * len(fields(ServeStatus)))))
    ingest = IngestMetrics(lambda: (IngestStatus(*_numbers(IngestStatus)), MemberStatus(*_numbers(MemberStatus))))
    registries = (produce.registry, consumer.registry, LakeMetrics().registry, serve, ingest.registry)
    return set().union(*map(names, registries))


def _numbers(status: type[IngestStatus | MemberStatus]) -> list[Any]:
    """A value for each field: a number, or counts by name."""
    return [{} if "Mapping" in str(field.type) else 0 for field in fields(status)]


def yaml(name: str) -> Any:  # noqa: ANN401 - whatever the file holds
    reader = pytest.importorskip("yaml", reason="pyyaml is not installed: nothing here reads YAML")
    return reader.safe_load((DEPLOY / name).read_text())


def test_every_panel_of_the_dashboard_shows_a_metric_that_exists() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/cardinal.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 20
    for panel in panels:
        for target in panel["targets"]:
            named = NAME.findall(target["expr"])
            assert named, panel["title"]
            assert set(named) <= known(), panel["title"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    (variable,) = dashboard["templating"]["list"]
    assert set(NAME.findall(variable["query"])) <= known()
    sources = {panel["datasource"]["uid"] for panel in panels}
    assert sources == {one["uid"] for one in yaml("grafana/provisioning/datasources/prometheus.yml")["datasources"]}


def test_every_alert_rule_reads_a_metric_that_exists_and_describes_the_fault() -> None:
    rules = [rule for group in yaml("alerts.yml")["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]
        named = set(NAME.findall(rule["expr"]))
        assert named <= known(), rule["alert"]
        assert named or rule["expr"].startswith("up{"), rule["alert"]


def test_streams_of_one_prometheus_are_distinguished() -> None:
    """The alert takes the best producer of each stream, one that is down included, by a label that every target has."""
    rules = {rule["alert"]: rule["expr"] for group in yaml("alerts.yml")["groups"] for rule in group["rules"]}
    assert rules["CardinalNoProducerDelivers"].startswith("max by (stream) (")
    assert 'up{job="produce"} == 0' in rules["CardinalNoProducerDelivers"]
    (job,) = [job for job in yaml("prometheus.yml")["scrape_configs"] if job["job_name"] == "produce"]
    assert all(group["labels"]["stream"] for group in job["static_configs"])


def sample(progress: Progress | None, name: str) -> float | None:
    metrics = ProduceMetrics()
    metrics.progress = None if progress is None else lambda: progress
    return metrics.registry.get_sample_value(f"cardinal_produce_{name}")


def test_the_time_that_is_left_is_that_of_a_backfill() -> None:
    eta = "backfill_eta_seconds"
    assert sample(PROGRESS, eta) == 0.0, "one block is missing: it is about to come"
    assert sample(replace(PROGRESS, target=108), eta) == 1.0
    for away in (replace(PROGRESS, target=108, connected=False), replace(PROGRESS, waits_for="the broker is down")):
        assert sample(away, eta) is None, "nothing is published, and no rate says for how long"


@pytest.mark.parametrize("file", ["prometheus.yml", "prometheus-cluster.yml"])
def test_a_service_of_every_job_that_is_down_is_an_alert(file: str) -> None:
    rules = {rule["expr"] for group in yaml("alerts.yml")["groups"] for rule in group["rules"]}
    assert {f'up{{job="{job["job_name"]}"}} == 0' for job in yaml(file)["scrape_configs"]} <= rules


def test_node_and_broker_are_away_until_they_have_answered() -> None:
    assert (sample(None, "node_connected"), sample(None, "broker_connected")) == (0, 0)
    assert sample(None, "in_flight_blocks") is None, "the alert about the broker begins with it"
    assert (sample(PROGRESS, "node_connected"), sample(PROGRESS, "broker_connected")) == (1, 1)


def test_a_metric_that_does_not_exist_is_noticed() -> None:
    assert not set(NAME.findall("rate(cardinal_produce_blocks[1m])")) <= known(), "the counter is called …_total"
    assert set(NAME.findall("rate(cardinal_produce_blocks_total[1m])")) <= known()


@pytest.mark.parametrize(
    ("profile", "prometheus", "file"),
    [("direct", "prometheus", "prometheus.yml"), ("cluster", "prometheus-cluster", "prometheus-cluster.yml")],
)
def test_prometheus_scrapes_the_services_of_its_profile_on_the_port_that_they_serve(
    profile: str, prometheus: str, file: str
) -> None:
    config = yaml(file)
    targets = [one for job in config["scrape_configs"] for group in job["static_configs"] for one in group["targets"]]
    serving = {name for name in running(profile) if "--metrics" in services()[name].get("command", ())}
    assert sorted(target.partition(":")[0] for target in targets) == sorted(serving)
    for target in targets:
        name, _, port = target.partition(":")
        assert any(part.endswith(f":{port}") for part in services()[name]["command"]), target
    mounts = dict(volume.split(":")[1::-1] for volume in services()[prometheus]["volumes"])
    assert {target: source for target, source in mounts.items() if target.startswith("/etc/prometheus/")} == {
        "/etc/prometheus/prometheus.yml": f"./deploy/{file}",
        **{f"/etc/prometheus/{name}": f"./deploy/{name}" for name in config["rule_files"]},
    }


def test_alerts_count_the_members_of_a_cluster_by_the_label_of_their_targets() -> None:
    rules = {rule["alert"]: rule["expr"] for group in yaml("alerts.yml")["groups"] for rule in group["rules"]}
    count = 'on (stream) group_left () count by (stream) (up{job="ingest"})'
    assert rules["CardinalClusterNoMajority"].endswith(f"<= {count}")
    assert rules["CardinalClusterMemberAway"].endswith(f"< {count}")
    (job,) = [job for job in yaml("prometheus-cluster.yml")["scrape_configs"] if job["job_name"] == "ingest"]
    (group,) = job["static_configs"]
    assert group["labels"]["stream"]
    assert len(group["targets"]) == 3


def test_grafana_finds_the_dashboard_where_it_is_mounted() -> None:
    (provider,) = yaml("grafana/provisioning/dashboards/cardinal.yml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services()["grafana"]["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    (source,) = yaml("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert services()["prometheus-cluster"]["networks"]["default"]["aliases"] == ["prometheus"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("cardinal-produce@.service", {"${CARDINAL_FROM}": "dev://", "${CARDINAL_TO}": "null://"}),
        (
            "cardinal-ingest@.service",
            {"${CARDINAL_NODE_ID}": "a", "${CARDINAL_TO}": "null://", "${STATE_DIRECTORY}": "/data"},
        ),
    ],
)
def test_a_unit_starts_a_command_that_exists(file: str, words: dict[str, str]) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # systemd's names have capitals
    unit.read(DEPLOY / file)
    program, *line = unit["Service"]["ExecStart"].split()
    assert program.endswith("/cardinal")
    assert words.keys() <= set(line)
    context = cardinal.make_context("cardinal", [words.get(word, word) for word in line[:-1]])
    name, *arguments = context._protected_args + context.args
    command = cardinal.get_command(context, name)
    assert isinstance(command, click.Command)
    assert command.make_context(name, list(arguments), parent=context).params["to_url"] == "null://"
    assert f"cardinal-{name}@" in file
    assert ("${STATE_DIRECTORY}" in line) == ("StateDirectory" in unit["Service"])
    assert unit["Service"]["RestartPreventExitStatus"] == "2"
    assert (unit["Service"]["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("always", "0"), "it is not given up"


UNITS = ("cardinal-produce@.service", "cardinal-ingest@.service")
SYSTEMD_252 = frozenset(
    """
    Description After Wants StartLimitIntervalSec Type EnvironmentFile ExecStart Restart RestartSec
    RestartPreventExitStatus TimeoutStopSec User Group DynamicUser StateDirectory StateDirectoryMode SupplementaryGroups
    LoadCredential UMask MemoryMax WantedBy NoNewPrivileges ProtectSystem ProtectHome PrivateTmp PrivateDevices
    ProtectClock ProtectControlGroups ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables
    ProtectProc RestrictAddressFamilies RestrictNamespaces RestrictRealtime RestrictSUIDSGID LockPersonality
    SystemCallArchitectures SystemCallFilter CapabilityBoundingSet
    """.split()  # noqa: SIM905 - a list of words
)
"""Keys of systemd.directives(7), version 252, that a unit of ours may have."""


def keys(text: str) -> set[str]:
    return {line.partition("=")[0] for line in text.splitlines() if re.match(r"[A-Z]\w+=", line)}


@pytest.mark.parametrize("file", UNITS)
def test_units_have_keys_that_systemd_252_knows(file: str) -> None:
    text = (DEPLOY / file).read_text()
    assert len(keys(text)) > 20
    assert keys(text) <= SYSTEMD_252
    assert ":9090" not in text, "Prometheus' own port"


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
@pytest.mark.parametrize("file", UNITS)
def test_systemd_finds_no_fault_in_a_unit(file: str, tmp_path: Path) -> None:
    text = (DEPLOY / file).read_text()
    (tmp_path / file).write_text(text.replace("/usr/local/bin/cardinal", sys.executable))
    found = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / file)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_the_page_installs_what_the_units_start() -> None:
    page = section((ROOT / "docs/operating.md").read_text(), "systemd")
    blocks = "".join(re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    for file in UNITS:
        assert f"deploy/{file}" in blocks
        text = (DEPLOY / file).read_text()
        assert "/usr/local/bin/cardinal" in text
        unit = file.removesuffix(".service")
        assert f"systemctl enable --now {unit}" in blocks
        assert set(re.findall(r"\$\{?(CARDINAL_\w+)", text)) <= set(
            re.findall(r"^(CARDINAL_\w+)=", blocks, re.MULTILINE)
        )
    assert "ln -sf /opt/cardinal/bin/cardinal /usr/local/bin/cardinal" in blocks
    (extras,) = re.findall(r"pip install '\.\[([\w,]+)\]'", blocks)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(declared)
    assert "PASSWORD_FILE=/run/credentials/cardinal-produce@mainnet.service/kafka.password\n" in blocks
    assert "LoadCredential=kafka.password:/etc/cardinal/kafka.password" in blocks
    assert keys(blocks.replace("CARDINAL_", "# ")) <= SYSTEMD_252


def test_the_command_lines_of_the_page_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    page = section((ROOT / "docs/operating.md").read_text(), "systemd")
    for name, value in re.findall(r"^(CARDINAL_MAIN_\w+)=(.*)$", page, re.MULTILINE):
        monkeypatch.setenv(name, value)
    lines = re.findall(r"^CARDINAL_OPTIONS=(.*)$", page, re.MULTILINE)
    targets = re.findall(r"^CARDINAL_TO=(.*)$", page, re.MULTILINE)
    assert targets == ["kafka://broker:9092", "main", "kafka://broker:9092"]
    for options, target in zip(lines, targets, strict=True):
        member = "--cluster" in options
        first = ["ingest", "--node-id", "a", "--data", "x"] if member else ["produce", "--from", "dev://"]
        context = cardinal.make_context("cardinal", [*first, "--to", target, *options.split()])
        command = cardinal.get_command(context, first[0])
        assert isinstance(command, click.Command)
        command.make_context(first[0], [*context._protected_args[1:], *context.args], parent=context)
    url = find_url("main")
    assert (url.user, url.options["tls"]) == ("alice", "1")
    folder = "/run/credentials/cardinal-produce@mainnet.service"
    assert url.options["password_file"] == f"{folder}/kafka.password"
    (token,) = re.findall(r"`(#token_file=\S+)`", page)
    node = parse_node_url(f"ws://127.0.0.1:8546{token}")
    assert node.nodes[0].credentials["token_file"] == f"{folder}/node.token"
