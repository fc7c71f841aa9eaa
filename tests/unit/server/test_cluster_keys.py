"""Ed25519 keys of a cluster's members: files, signatures, and that they leave the process nowhere."""

from __future__ import annotations

import hashlib
import pickle
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from cardinal.cli.main import cardinal
from cardinal.errors import ConfigurationError
from cardinal.protocols import cbor
from cardinal.protocols.mesh import Cluster, Member
from cardinal.server.ingest.cluster.keys import SecretKey, generate_key, load_key, verify

if TYPE_CHECKING:
    from pathlib import Path

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


def test_the_worked_cluster_and_signature_of_the_protocol() -> None:
    """Seeds 01…, 02…, 03…, as in the protocol's fact sheet; a Message of a to b in their session."""
    keys = {name: SecretKey(bytes([number]) * 32) for number, name in enumerate("abc", 1)}
    members = tuple(Member(name, key.public) for name, key in keys.items())
    cluster = Cluster("demo", 0, hashlib.sha256(b"evm:1").digest(), members)
    assert cluster.digest.hex() == "20a30ab4fed3f5482dde2993083cb794bbecae4d51b9394d42e168cc1f9537e4"
    session = bytes.fromhex("c057958d0bdcd899facb0d3f89ef817dd294ef10f27a61d08664fd46a427693d")
    signed = cbor.dump(["cardinal/mesh/1", session, [4, 1, 5, b"\1\2"]])
    assert keys["a"].sign(signed).hex().startswith("0ff7a669343100a7570c7d2730622e15")


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


def test_without_the_extra_the_command_says_what_to_install() -> None:
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
