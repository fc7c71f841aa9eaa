"""`cluster.toml`: the members of an ingest cluster, and the identity that follows from them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import cbor2
import pytest

from cardinal import apps
from cardinal.errors import ConfigurationError
from cardinal.server.ingest.cluster.config import ClusterFile, app_digest, load_cluster

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {name: bytes([number]) * 32 for number, name in enumerate("abcdefg", 1)}
APP = apps.get("items", chain_id=7)


def text(members: str = "abc", *, name: str = "main", more: str = "") -> str:
    tables = [
        f'[members.{one}]\nkey = "{KEYS[one].hex()}"\naddress = "10.0.0.{number}:40841"\n'
        for number, one in enumerate(members, 1)
    ]
    return f'name = "{name}"\n{"".join(tables)}{more}'


def load(folder: Path, content: str) -> ClusterFile:
    file = folder / "cluster.toml"
    file.write_text(content)
    return load_cluster(file)


def refusal(folder: Path, content: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(folder, content)
    return str(caught.value)


def test_a_file_names_members_and_their_addresses(tmp_path: Path) -> None:
    file = load(tmp_path, text(more='metrics = "[::1]:9464"\n'))
    assert (file.name, file.epoch, list(file.members)) == ("main", 0, ["a", "b", "c"])
    one = file.members["c"]
    assert (one.key, one.link_address, one.bodies_address) == (KEYS["c"], ("10.0.0.3", 40841), ("10.0.0.3", 40842))
    assert one.metrics_address == ("::1", 9464)
    assert file.members["a"].metrics_address is None


def test_bodies_may_be_served_elsewhere(tmp_path: Path) -> None:
    file = load(tmp_path, text("a", more='bodies = "10.1.0.1:7000"\n'))
    assert file.members["a"].bodies_address == ("10.1.0.1", 7000)


def test_the_identity_covers_names_keys_epoch_and_application_and_no_address(tmp_path: Path) -> None:
    file = load(tmp_path, text())
    cluster, membership = file.cluster(APP), file.membership(APP)
    members = [[one, KEYS[one]] for one in "abc"]
    expected = cbor2.dumps(["cardinal/cluster/1", "main", 0, app_digest(APP), members])
    assert cluster.digest == membership.cluster == hashlib.sha256(expected).digest()
    assert (membership.stream, membership.members, membership.quorum) == ("items-7", dict(cluster.keys), 2)
    assert [one.address for one in cluster.members] == ["10.0.0.1:40841", "10.0.0.2:40841", "10.0.0.3:40841"]
    same = load(tmp_path, text().replace("40841", "50000"))
    assert same.cluster(APP).digest == cluster.digest
    others = [text(name="other"), "epoch = 1\n" + text(), text("abd"), text().replace(KEYS["c"].hex(), "ff" * 32)]
    digests = {load(tmp_path, one).cluster(APP).digest for one in others}
    assert len(digests | {cluster.digest}) == 5
    assert file.cluster(apps.get("items", chain_id=8)).digest != cluster.digest


def test_the_application_is_its_name_chain_and_topics() -> None:
    schema = sorted([expression, topic] for expression, topic in APP.topics.items())
    expected = cbor2.dumps(["cardinal/app/1", "items", "items:7", "items-7", schema])
    assert app_digest(APP) == hashlib.sha256(expected).digest()
    variants = [
        APP.model_copy(update=change)
        for change in ({"name": "x"}, {"chain": "x"}, {"default_topic": "x"}, {"topics": {"i/": "items-7-items"}})
    ]
    assert len({app_digest(one) for one in (APP, *variants)}) == 5


@pytest.mark.parametrize(("members", "warned"), [("a", False), ("ab", True), ("abc", False), ("abcd", True)])
def test_an_even_number_of_members_is_a_warning(tmp_path: Path, members: str, *, warned: bool) -> None:
    warnings = load(tmp_path, text(members)).warnings
    assert bool(warnings) is warned
    if warned:
        assert f"{len(members)} members tolerate no more failures than {len(members) - 1}" in warnings[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (text() + 'adress = "x:1"\n', "there is no setting members.c.adress in {file}: did you mean address?"),
        ("nam = 'x'\n" + text(), "there is no setting nam in {file}: did you mean name?"),
        (text(name="a b"), "name in {file}: name a cluster with"),
        (text(name="x-repair"), "name in {file}: name a cluster with"),
        ('name = "main"\nmembers = {}', "members in {file}: "),
        (text().replace("members.b", "members.B"), "members.B in {file}: name a member with"),
        (text().replace(KEYS["b"].hex(), "12"), "members.b.key in {file}: write a public key, 64 hex digits"),
        (text().replace("10.0.0.2:40841", "10.0.0.2"), "members.b.address in {file}: write HOST:PORT"),
        (text().replace("10.0.0.2:40841", "10.0.0.2:0"), "members.b.address in {file}: write HOST:PORT"),
        (text().replace("10.0.0.2:40841", "10.0.0.2:65535"), "no port after that of address: set bodies"),
        (text().replace("10.0.0.2", "10.0.0.1"), "a and b have the address 10.0.0.1:40841 twice"),
        (text().replace(KEYS["b"].hex(), KEYS["a"].hex()), "a and b have one key"),
        ("epoch = -1\n" + text(), "epoch in {file}: "),
        ("epoch = '1'\n" + text(), "epoch in {file}: "),
        (text().replace(f'key = "{KEYS["a"].hex()}"\n', ""), "set members.a.key in {file}"),
        ("name = x", "{file} is not TOML: correct it at line 1, column 8"),
    ],
)
def test_what_cannot_work_is_refused_by_name(tmp_path: Path, content: str, said: str) -> None:
    assert said.format(file=tmp_path / "cluster.toml") in refusal(tmp_path, content)


def test_no_refusal_repeats_a_value_that_may_be_a_secret(tmp_path: Path) -> None:
    for content in (
        text() + f"{'ab' * 32} = 1\n",
        text() + f'key = "{"ab" * 32}"\n',
        text() + f"metrics = '{'ab' * 32}'",
    ):
        assert "ab" * 32 not in refusal(tmp_path, content)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load_cluster(tmp_path / "none.toml")
    (tmp_path / "cluster.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        load_cluster(tmp_path / "cluster.toml")
