"""Files of a cluster: `cluster.toml`, the identity that follows from it, and keys, which leave the process nowhere."""

from __future__ import annotations

import hashlib
import pickle
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import cbor2
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from cardinal import apps
from cardinal.cli.main import cardinal
from cardinal.errors import ConfigurationError
from cardinal_ingest.cluster.config import ClusterFile, app_digest, load_cluster
from cardinal_ingest.cluster.keys import SecretKey, generate_key, load_key, verify

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
def test_invalid_input_is_refused_by_name(tmp_path: Path, content: str, said: str) -> None:
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


# --- keys -----------------------------------------------------------------------------------------------------------


SEED = b"\x01" * 32


@given(seed=st.binary(min_size=32, max_size=32), data=st.binary(max_size=200))
def test_keys_and_signatures_are_those_of_another_library(seed: bytes, data: bytes) -> None:
    ours, other = SecretKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    assert ours.public == other.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert ours.sign(data) == other.sign(data)
    assert verify(ours.public, data, ours.sign(data))


@given(data=st.binary(min_size=1, max_size=100), bit=st.integers(0, 8 * 96 - 1))
def test_a_signature_of_another_key_or_over_other_bytes_is_none(data: bytes, bit: int) -> None:
    key = SecretKey(SEED)
    whole = bytearray(key.public + key.sign(data))
    whole[bit // 8] ^= 1 << bit % 8
    assert not verify(bytes(whole[:32]), data, bytes(whole[32:]))
    assert not verify(key.public, data + b"\0", key.sign(data))


@given(key=st.binary(max_size=40), signature=st.binary(max_size=80))
def test_anything_may_be_verified(key: bytes, signature: bytes) -> None:
    assert not verify(key, b"data", signature)


def test_a_generated_key_is_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    made = generate_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_key(file).public == made.public
    assert generate_key(tmp_path / "b.key").public != made.public


def test_a_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    file.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"a\.key exists, and no key is overwritten"):
        generate_key(file)
    assert file.read_text() == "mine"
    with pytest.raises(ConfigurationError, match="cannot be written: No such file"):
        generate_key(tmp_path / "none" / "a.key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o622])
def test_a_key_that_others_can_use_is_not_read(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "a.key"
    generate_key(file)
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"others can use the key .* has mode {mode:04o}: chmod 600 "):
        load_key(file)
    file.chmod(0o400)
    load_key(file)


@pytest.mark.parametrize("content", ["", "12", "zz" * 32, "12" * 33, "12" * 32 + "\n\n", "12" * 4096])
def test_a_file_without_a_key_is_refused_and_not_repeated(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.key"
    file.touch(0o600)
    file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        load_key(file)
    assert "holds no key" in str(caught.value)
    assert not content or content not in str(caught.value).replace(str(file), "")


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load_key(tmp_path / "none.key")


def test_a_secret_is_in_no_text_and_in_no_pickle() -> None:
    key = SecretKey(SEED)
    for shown in (repr(key), str(key), f"{key}", repr({"key": key}), repr(key.sign)):
        assert SEED.hex() not in shown
        assert repr(SEED) not in shown
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)


def test_keygen_prints_the_public_key_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    done = CliRunner().invoke(cardinal, ["cluster", "keygen", str(file)])
    assert done.exit_code == 0
    assert done.output == f"{load_key(file).public.hex()}\n"
    assert isinstance(CliRunner().invoke(cardinal, ["cluster", "keygen", str(file)]).exception, ConfigurationError)


@pytest.mark.process
def test_without_the_extra_the_command_names_what_to_install() -> None:
    probe = (
        "import sys; sys.modules['nacl'] = None\n"
        "from click.testing import CliRunner\n"
        "from cardinal.cli.main import cardinal\n"
        "print(CliRunner().invoke(cardinal, ['cluster', 'keygen', 'a.key']).exception)"
    )
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == (
        "A cluster of ingest nodes needs the extra 'ingest': pip install 'cardinal-streams[ingest]'\n"
    )
