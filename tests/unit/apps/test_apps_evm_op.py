"""OP Stack: deposits and their receipts on real blocks, and headers and receipts by fork."""

from __future__ import annotations

import pytest
from hypothesis import given

from cardinal.errors import IntegrityError
from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import decode, frames, payload_from_rpc, rlp, verify
from cardinal_ethereum.chains import CHAINS, chain_of
from cardinal_ethereum.from_rpc.transactions import encode_transaction
from cardinal_ethereum.keccak import keccak
from evm_blocks import EMPTY_ROOT, NO_UNCLES, data, minimal
from evm_generated import Shown, blocks

NO_BLOOM = "0x" + "00" * 256
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
    "withdrawalsRoot": EMPTY_ROOT,
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


def test_a_deposit_decodes_without_loss_and_names_its_sender() -> None:
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


# --- blocks after Isthmus ---------------------------------------------------------------------------------------

# The only transaction of block 1,048,576 of another chain of the OP Stack, after Isthmus, as its node shows it.
ISTHMUS_DEPOSIT = {
    "type": "0x7e",
    "sourceHash": "0x79ab34de993de378f15eafd864cab321ca382dc65b7aa82d0cc10618e68041e6",
    "from": "0xdeaddeaddeaddeaddeaddeaddeaddeaddead0001",
    "to": "0x4200000000000000000000000000000000000015",
    "mint": "0x0",
    "value": "0x0",
    "gas": "0x5f5e100",
    "input": "0x098999be00000558000c5fc50000000000000053000000006922225700000000016c0746"
    "0000000000000000000000000000000000000000000000000000000004157764"
    "0000000000000000000000000000000000000000000000000000000000000001"
    "f7c63d3b8cb8f194b5ac53452faf9f8c0d14f790e43e85a12558906bbe6a5adf"
    "000000000000000000000000b98c6b1a805b96707a43e1f1acfa163b68098fa6"
    "000000000000000000000000",
    "hash": "0x243d39c7f6cd74a9a081a6fe4bdfce37ac6136b9454691aeeb9ed77998450cbc",
    "gasPrice": "0x0",
    "nonce": "0xfffff",
}


def test_a_real_deposit_after_isthmus_has_its_hash() -> None:
    assert "0x" + keccak(encode_transaction(ISTHMUS_DEPOSIT)).hex() == ISTHMUS_DEPOSIT["hash"]


def test_the_size_of_a_block_after_isthmus_is_that_of_its_node() -> None:
    written = encode_transaction(ISTHMUS_DEPOSIT)
    hashes, bloom = [bytes(32)] * 3, bytes(256)
    numbers = (0, 0x100000, 0x2540BE400, 0xFE56, 0x692225D3)  # those of the block; of its hashes the size counts
    items = [bytes(32), data(NO_UNCLES), bytes(20), *hashes, bloom, *map(minimal, numbers), bytes(9)]
    items += [bytes(32), bytes(8), minimal(0xF4240), b"\x66" * 32, b"", b"", bytes(32), bytes(32)]
    own = f"c/10e6/b/{bytes(32).hex()}"
    payload = Payload(1_048_576, bytes(32), bytes(32), 1, {f"{own}/h": rlp.encode(items), f"{own}/t/0": written})
    (row,) = frames([payload], tables=["blocks"])["blocks"].to_pylist()
    assert row["size"] == 0x384


@given(blocks(CHAINS[8453]))
def test_a_withdrawal_on_a_chain_without_any_is_a_lie(shown: Shown) -> None:
    lie = {"index": "0x0", "validatorIndex": "0x0", "address": "0x" + "00" * 20, "amount": "0x1"}
    with pytest.raises(IntegrityError) as caught:
        verify(shown.block | {"withdrawals": [lie]}, shown.receipts, uncles=shown.uncles, chain=CHAINS[8453])
    assert caught.value.check == "withdrawals root"
