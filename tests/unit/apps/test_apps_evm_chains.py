"""Chains as data: Gnosis' headers and total, presets, and chains of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cardinal import apps
from cardinal.errors import ApplicationError, ConfigurationError
from cardinal_ethereum import chains as presets
from cardinal_ethereum import decode, frames, payload_from_rpc, verify
from cardinal_ethereum.chains import CHAINS, Chain
from cardinal_ethereum.checks.integrity import CHECKS
from cardinal_ethereum.checks.trie import EMPTY_ROOT
from cardinal_ethereum.from_rpc.header import encode_header
from cardinal_ethereum.keccak import keccak
from evm_blocks import sealed

NO_UNCLES = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"
NO_BLOOM = "0x" + "00" * 256
EMPTY = "0x" + EMPTY_ROOT.hex()
ZERO = "0x" + "00" * 32
NOBODY = "0x" + "00" * 20

# --- Gnosis: headers sealed by authorities ---------------------------------------------------------------------------

GNOSIS_GENESIS = {
    **dict.fromkeys(("transactionsRoot", "receiptsRoot"), EMPTY),
    "parentHash": ZERO,
    "sha3Uncles": NO_UNCLES,
    "miner": NOBODY,
    "logsBloom": NO_BLOOM,
    "difficulty": "0x20000",
    "stateRoot": "0x40cf4430ecaa733787d1a65154a3b9efb560c95d9e324a23b97f0609b539133b",
    "number": "0x0",
    "gasLimit": "0x989680",
    "gasUsed": "0x0",
    "timestamp": "0x0",
    "extraData": "0x",
    "step": "0x0",
    "signature": "0x" + "00" * 65,
}


def test_a_header_sealed_by_an_authority_has_the_hash_that_the_chain_has() -> None:
    header = encode_header(GNOSIS_GENESIS)
    assert "0x" + keccak(header).hex() == CHAINS[100].genesis
    block = GNOSIS_GENESIS | {"hash": CHAINS[100].genesis, "transactions": [], "uncles": []}
    verify(block, [], chain=CHAINS[100])
    payload = payload_from_rpc(block, [], chain_id=100)
    decoded = decode(payload)
    assert decoded.encode() == payload
    assert decoded.header is not None
    assert decoded.header.seal is not None
    assert (decoded.header.seal.step, len(decoded.header.seal.signature)) == (0, 65)
    assert frames([payload])["blocks"].to_pylist()[0]["nonce"] is None


@pytest.mark.parametrize("missing", [["signature"], ["step"], ["step", "signature"]])
def test_a_header_without_a_seal_is_refused(missing: list[str]) -> None:
    with pytest.raises(ApplicationError, match=r"seal|missing"):
        encode_header({name: value for name, value in GNOSIS_GENESIS.items() if name not in missing})


def test_the_total_of_gnosis_at_the_merge_is_what_its_blocks_add_up_to() -> None:
    """An authority's block weighs 2**128 - 1, plus its parent's step, less its own (OpenEthereum, AuRa): all add up."""
    blocks, last_step = 25_349_536, 334_105_022
    reached = int(GNOSIS_GENESIS["difficulty"], 16) + blocks * (2**128 - 1) - last_step
    assert CHAINS[100].final_total_difficulty == reached
    terminal = 8_626_000_000_000_000_000_000_058_750_000_000_000_000_000_000
    assert reached >= terminal > reached - (2**128 - 1)  # the merge's rule: the first block that reaches it is the last
    first = 0x639230C5  # the time of block 25,349,537, as its node showed it
    assert 0 <= first - 5 * last_step <= 60  # a step is five seconds


@pytest.mark.parametrize("served", [None, "0x0", "0x182cd9fffffffffffffffffffffffffea9528a2"])
def test_what_a_node_of_gnosis_serves_as_total_after_the_merge_makes_no_difference(served: str | None) -> None:
    header = {**GNOSIS_GENESIS, "number": "0x182cda1", "difficulty": "0x0", "mixHash": ZERO, "nonce": "0x" + "00" * 8}
    header = {name: value for name, value in header.items() if name not in ("step", "signature")}
    block, _ = sealed(header, [], [])
    given = block if served is None else block | {"totalDifficulty": served}
    verify(given, [], chain=CHAINS[100])
    assert (
        payload_from_rpc(given, [], chain_id=100).weight == 8626000110427538733349499292577475819600160930 + 25_349_537
    )


# --- Presets ---------------------------------------------------------------------------------------------------------


def test_the_names_of_the_checks_are_the_checks() -> None:
    assert tuple(CHECKS) == presets.CHECK_NAMES


@pytest.mark.parametrize("chain", CHAINS.values(), ids=lambda chain: chain.name)
def test_every_preset_names_where_it_is_from_and_gives_an_application(chain: Chain) -> None:
    assert chain.sources
    assert chain.genesis or "development" in chain.notes or "first block is not compared" in chain.notes
    app = apps.get("evm", chain=chain.name)
    assert app == apps.get("evm", chain_id=chain.chain_id)
    assert app.default_topic == f"cardinal-{chain.chain_id}"


def test_the_chains_that_were_promised_are_there() -> None:
    assert {chain.name for chain in CHAINS.values()} >= {
        *("mainnet", "sepolia", "holesky", "hoodi", "polygon", "gnosis", "base", "optimism", "bsc", "anvil"),
    }


def test_a_chain_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)'moon'.*sepolia"):
        apps.get("evm", chain="moon")
    with pytest.raises(ConfigurationError, match="sepolia"):
        apps.get("evm", chain="sepolia", chain_id=1)


def test_a_chain_is_read_from_toml_and_its_switch_works(tmp_path: Path) -> None:
    file = tmp_path / "chain.toml"
    file.write_text('chain_id = 4242\nname = "ours"\nunchecked = ["log indexes"]\nfinal_total_difficulty = "7"\n')
    chain = Chain.load(file)
    assert chain.checks == tuple(name for name in CHECKS if name != "log indexes")
    header = {**GNOSIS_GENESIS, "number": "0x112", "difficulty": "0x0", "mixHash": ZERO, "nonce": "0x" + "00" * 8}
    header = {name: value for name, value in header.items() if name not in ("step", "signature")}
    block, _ = sealed(header, [], [])
    payload = payload_from_rpc(block | {"totalDifficulty": "0x9"}, [], chain_id=4242, chain=chain)
    assert payload.weight == 7 + 0x112


@pytest.mark.parametrize(
    ("content", "setting"),
    [
        ("chain_id = 0\nname = 'x'", "chain_id"),
        ("chain_id = 5", "name"),
        ("chain_id = 5\nname = 'x'\ngenesis = '0x12'", "genesis"),
        ("chain_id = 5\nname = 'x'\nunchecked = ['everything']", "unchecked"),
        ("chain_id = 5\nname = 'x'\nunchecked = ['hash']", "unchecked"),
        ("chain_id = 5\nname = 'x'\ncolour = 'red'", "colour"),
        ("chain_id = ", "chain"),
    ],
)
def test_a_chain_that_cannot_work_is_refused_by_name(tmp_path: Path, content: str, setting: str) -> None:
    file = tmp_path / "chain.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        Chain.load(file)
    assert caught.value.setting == setting
