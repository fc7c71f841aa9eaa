"""Other chains than mainnet: what they add to blocks is written, checked and published, and presets are data."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from cardinal import apps
from cardinal.apps.evm import decode, frames, payload_from_rpc, presets, verify
from cardinal.apps.evm.header import encode_header
from cardinal.apps.evm.integrity import CHECKS
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.presets import CHAINS, Chain, chain_of
from cardinal.apps.evm.statesync import derived_hash
from cardinal.apps.evm.transactions import encode_transaction
from cardinal.apps.evm.trie import EMPTY_ROOT, ordered_root
from cardinal.errors import ApplicationError, ConfigurationError, IntegrityError

NO_UNCLES = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"
NO_BLOOM = "0x" + "00" * 256
EMPTY = "0x" + EMPTY_ROOT.hex()
ZERO = "0x" + "00" * 32
NOBODY = "0x" + "00" * 20

# Block 274 of a chain of the OP Stack after Canyon, as its node showed it; it has one transaction, its deposit.
OP_CHAIN = 81457
OP_HASH = "0xfc70e073ec6e1bb7f387698e4be418d7b1ff2216f625cdf41e1b80fb08029ef5"
DEPOSIT = {
    "from": "0xdeaddeaddeaddeaddeaddeaddeaddeaddead0001",
    "gas": "0xf4240",
    "gasPrice": "0x0",
    "hash": "0x13a644af4f64ce801dcd57faa823e8952f2290b810fdd31995dda62977ed3df1",
    "input": "0x015d8eb90000000000000000000000000000000000000000000000000000000001267f33"
    "0000000000000000000000000000000000000000000000000000000065da6073"
    "000000000000000000000000000000000000000000000000000000075d3f8610"
    "97c24796a4f639846a6a3ea3a59c11de8d89e11f551bae8feca9271a78926d42"
    "0000000000000000000000000000000000000000000000000000000000000004"
    "000000000000000000000000415c8893d514f9bc5211d36eeda4183226b84aa7"
    "00000000000000000000000000000000000000000000000000000000000000bc"
    "00000000000000000000000000000000000000000000000000000000000a6fe0",
    "nonce": "0x111",
    "to": "0x4200000000000000000000000000000000000015",
    "value": "0x0",
    "type": "0x7e",
    "v": "0x0",
    "r": "0x0",
    "s": "0x0",
    "sourceHash": "0x5a1b66228a26547e2ce6fe1aa734d2c34e062e42ccd5710463e6987890f1ad5d",
    "mint": "0x0",
    "depositReceiptVersion": "0x1",
}
OP_BLOCK = {
    "baseFeePerGas": "0x1418f329",
    "difficulty": "0x0",
    "extraData": "0x",
    "gasLimit": "0x1c9c380",
    "gasUsed": "0xb76d",
    "hash": OP_HASH,
    "logsBloom": NO_BLOOM,
    "miner": "0x4200000000000000000000000000000000000011",
    "mixHash": "0x8bc8a48326d9309959f2452206c1c842be9fcc9840c789845caab9d290a9700c",
    "nonce": "0x0000000000000000",
    "number": "0x112",
    "parentHash": "0xcfbc479d5f63476538db9ff15295167a6e91ecc9d6cf54be471eded689c251c9",
    "receiptsRoot": "0x8c303881b3e408cc739f55ef3e5133075d552cbec9ee987aff6b71f58cf291ee",
    "sha3Uncles": NO_UNCLES,
    "stateRoot": "0x86be45fb7a22b8c12cbce8d538372b800377cc589de590b6d88f5f65dde97df8",
    "timestamp": "0x65da607b",
    "totalDifficulty": "0x0",
    "transactions": [DEPOSIT],
    "transactionsRoot": "0xb01a2ad2c1ceb76f2edcdc02f2e0453c52e24c421fb04132cdfc0da5b70a593e",
    "uncles": [],
    "withdrawals": [],
    "withdrawalsRoot": EMPTY,
}
OP_RECEIPT = {
    "blockHash": OP_HASH,
    "transactionHash": DEPOSIT["hash"],
    "contractAddress": None,
    "cumulativeGasUsed": "0xb76d",
    "gasUsed": "0xb76d",
    "logs": [],
    "logsBloom": NO_BLOOM,
    "status": "0x1",
    "type": "0x7e",
    "depositNonce": "0x111",
    "depositReceiptVersion": "0x1",
}


def test_a_deposit_and_its_receipt_pass_every_check_of_a_real_block() -> None:
    verify(OP_BLOCK, [OP_RECEIPT], chain=chain_of(8453))
    assert keccak(encode_transaction(DEPOSIT)).hex() == str(DEPOSIT["hash"])[2:]


@pytest.mark.parametrize(
    ("part", "field", "lie", "check"),
    [
        ("receipt", "depositNonce", "0x112", "receipts root"),
        ("receipt", "depositReceiptVersion", None, "receipts root"),
        ("receipt", "depositNonce", None, "form"),
        ("transaction", "mint", "0x1", "transaction hashes"),
        ("transaction", "sourceHash", ZERO, "transaction hashes"),
        ("transaction", "isSystemTx", True, "transaction hashes"),
        ("transaction", "from", NOBODY, "transaction hashes"),
    ],
)
def test_a_lie_about_a_deposit_is_found(part: str, field: str, lie: object, check: str) -> None:
    block, receipt = copy.deepcopy(OP_BLOCK), dict(OP_RECEIPT)
    at: Any = receipt if part == "receipt" else block["transactions"][0]  # type: ignore[index]  # JSON
    at[field] = lie
    with pytest.raises(IntegrityError) as caught:
        verify(block, [receipt])
    assert caught.value.check == check


def test_before_canyon_a_deposits_receipt_has_four_fields_whatever_the_node_adds() -> None:
    from cardinal.apps.evm.receipts import encode_receipt  # noqa: PLC0415 -- this case alone needs it

    early = OP_RECEIPT | {"depositReceiptVersion": None}
    assert encode_receipt(early) == encode_receipt(early | {"depositNonce": None})


def test_a_deposit_decodes_without_loss_and_says_its_sender() -> None:
    payload = payload_from_rpc(OP_BLOCK, [OP_RECEIPT], chain_id=OP_CHAIN)
    block = decode(payload)
    assert block.encode() == payload
    (transaction,) = block.transactions
    assert transaction.sender is not None
    assert "0x" + transaction.sender.hex() == DEPOSIT["from"]
    assert transaction.deposit is not None
    assert "0x" + transaction.deposit.source_hash.hex() == DEPOSIT["sourceHash"]
    row = frames([payload], tables=["transactions"])["transactions"].to_pylist()[0]
    assert (row["from_address"], row["transaction_type"], row["gas_price"]) == (DEPOSIT["from"], 126, "0")


def test_a_deposit_creates_at_the_nonce_of_its_receipt() -> None:
    block, receipt = copy.deepcopy(OP_BLOCK), dict(OP_RECEIPT)
    block["transactions"][0]["to"] = None  # type: ignore[index]  # JSON
    created = keccak(bytes.fromhex("d8" + "94" + str(DEPOSIT["from"])[2:] + "820111"))[12:]
    receipt["contractAddress"] = "0x" + created.hex()
    verify(block, [receipt], checks=["contracts"])
    with pytest.raises(IntegrityError, match="contracts"):
        verify(block, [receipt | {"depositNonce": "0x112"}], checks=["contracts"])


def test_what_says_neither_true_nor_false_of_a_deposit_is_refused() -> None:
    written = encode_transaction(DEPOSIT | {"isSystemTx": True})
    at = written.index(bytes.fromhex("830f4240")) + 4
    assert written[at] == 1
    wrong = written[:at] + b"\x02" + written[at + 1 :]
    payload = payload_from_rpc(OP_BLOCK, [OP_RECEIPT], chain_id=1)
    path = f"c/1/b/{payload.hash.hex()}/t/0"
    object.__setattr__(payload, "updates", {**payload.updates, path: wrong})
    with pytest.raises(ApplicationError, match="system"):
        decode(payload)


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


# --- Polygon: what nodes add to a block ------------------------------------------------------------------------------


def log(index: int) -> dict[str, Any]:
    return {"address": "0x" + "11" * 20, "topics": [], "data": "0x2a", "logIndex": hex(index)}


def polygon() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block with one deposit from below and nothing else, as a node of Polygon shows it: no root covers it."""
    header = {**GNOSIS_GENESIS, "number": "0x10", "mixHash": ZERO, "nonce": "0x" + "00" * 8, "difficulty": "0x1"}
    header = {name: value for name, value in header.items() if name not in ("step", "signature")}
    block_hash = keccak(encode_header(header))
    named = "0x" + derived_hash(16, block_hash).hex()
    call = {"to": NOBODY, "from": NOBODY, **dict.fromkeys(("nonce", "gas", "gasPrice", "value", "r", "s", "v"), "0x0")}
    bloom = verifyable_bloom()
    receipt = {"transactionHash": named, "blockHash": "0x" + block_hash.hex(), "logs": [log(0), log(1)]}
    receipt |= {"cumulativeGasUsed": "0x0", "gasUsed": "0x0", "status": "0x1", "logsBloom": bloom, "type": "0x0"}
    block = header | {"hash": "0x" + block_hash.hex(), "totalDifficulty": "0x11", "uncles": []}
    return block | {"transactions": [{**call, "input": "0x", "hash": named, "type": "0x0"}]}, [receipt]


def verifyable_bloom() -> str:
    from cardinal.apps.evm.receipts import logs_bloom  # noqa: PLC0415 -- what the node would have computed

    return "0x" + logs_bloom([log(0)]).hex()


def test_what_a_node_of_polygon_adds_is_checked_apart_and_published_apart() -> None:
    block, receipts = polygon()
    verify(block, receipts, chain=CHAINS[137])
    payload = payload_from_rpc(block, receipts, chain_id=137)
    own = f"c/89/b/{payload.hash.hex()}"
    added = {path for path in payload.updates if path.startswith((f"{own}/b", f"{own}/t", f"{own}/r", f"{own}/l"))}
    assert added == {f"{own}/br/0", f"{own}/bl/0/0", f"{own}/bl/0/1"}
    assert payload.updates[f"{own}/br/0"].hex() == receipts[0]["logsBloom"][2:]
    assert decode(payload).encode() == payload
    rows = frames([payload], tables=["logs"])["logs"].to_pylist()
    named = "0x" + derived_hash(16, payload.hash).hex()
    assert [(row["log_index"], row["transaction_index"], row["transaction_hash"]) for row in rows] == [
        (0, 0, named),
        (1, 0, named),
    ]
    app = apps.get("evm", chain="polygon")
    assert all(any(re.match(prefix, path) for prefix in app.prefixes) for path in added)


def test_without_its_presets_the_same_block_contradicts_itself() -> None:
    block, receipts = polygon()
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, chain=CHAINS[1])
    assert caught.value.check == "transaction hashes"


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda _, receipts: receipts.clear(), "form"),
        (lambda _, receipts: receipts[0].update(blockHash=ZERO), "receipts"),
        (lambda _, receipts: receipts[0].update(logsBloom=NO_BLOOM), "bloom"),
        (lambda _, receipts: receipts[0]["logs"].pop(0), "log indexes"),
        (lambda block, _: block["transactions"][0].update(hash=ZERO), "transaction hashes"),
    ],
)
def test_a_lie_about_what_was_added_is_found(change: Any, check: str) -> None:  # noqa: ANN401 -- JSON
    block, receipts = polygon()
    change(block, receipts)
    with pytest.raises(IntegrityError) as caught:
        verify(block, receipts, chain=CHAINS[137])
    assert caught.value.check == check


# --- Presets ---------------------------------------------------------------------------------------------------------


def test_the_names_of_the_checks_are_the_checks() -> None:
    assert tuple(CHECKS) == presets.CHECK_NAMES


@pytest.mark.parametrize("chain", CHAINS.values(), ids=lambda chain: chain.name)
def test_every_preset_names_where_it_is_from_and_gives_an_application(chain: Chain) -> None:
    assert chain.sources
    assert chain.genesis or "development" in chain.notes
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
    block, receipts = polygon()
    receipts[0]["logs"].pop(0)
    ours = Chain.model_validate(chain.model_dump() | {"state_sync": True})
    verify(block, receipts, chain=ours)
    payload = payload_from_rpc(OP_BLOCK | {"totalDifficulty": "0x9"}, [OP_RECEIPT], chain_id=4242, chain=chain)
    assert payload.weight == 7 + 0x112


@pytest.mark.parametrize(
    ("content", "setting"),
    [
        ("chain_id = 0\nname = 'x'", "chain_id"),
        ("chain_id = 5", "name"),
        ("chain_id = 5\nname = 'x'\ngenesis = '0x12'", "genesis"),
        ("chain_id = 5\nname = 'x'\nunchecked = ['everything']", "unchecked"),
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


def test_the_root_over_nothing_is_the_empty_root() -> None:
    assert ordered_root([]) == EMPTY_ROOT
