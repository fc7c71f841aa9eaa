"""A decoded block as JSON-RPC shows blocks: the way back from the stream, for tests."""

from __future__ import annotations

from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.block import Block, Header, Log, ReceiptMeta, Transaction
from evm_blocks import STATE_SYNC, Json, text

_TEXTS = {
    "parentHash": "parent_hash",
    "sha3Uncles": "sha3_uncles",
    "miner": "miner",
    "stateRoot": "state_root",
    "transactionsRoot": "transactions_root",
    "receiptsRoot": "receipts_root",
    "logsBloom": "logs_bloom",
    "extraData": "extra_data",
    "mixHash": "mix_hash",
    "nonce": "nonce",
    "withdrawalsRoot": "withdrawals_root",
    "parentBeaconBlockRoot": "parent_beacon_block_root",
    "requestsHash": "requests_hash",
    "blockAccessListHash": "block_access_list_hash",
}
_NUMBERS = {
    "difficulty": "difficulty",
    "number": "number",
    "gasLimit": "gas_limit",
    "gasUsed": "gas_used",
    "timestamp": "timestamp",
    "baseFeePerGas": "base_fee_per_gas",
    "blobGasUsed": "blob_gas_used",
    "excessBlobGas": "excess_blob_gas",
    "slotNumber": "slot_number",
}


def shown_header(header: Header) -> Json:
    shown = {name: text(getattr(header, ours)) for name, ours in _TEXTS.items() if getattr(header, ours) is not None}
    shown |= {name: hex(getattr(header, ours)) for name, ours in _NUMBERS.items() if getattr(header, ours) is not None}
    if header.seal is not None:
        shown |= {"step": hex(header.seal.step), "signature": text(header.seal.signature)}
    return shown


def shown_block(block: Block) -> Json:
    assert block.header is not None
    assert block.total_difficulty is not None
    shown = shown_header(block.header) | {"hash": text(block.hash)}
    shown["transactions"] = [shown_transaction(entry) for entry in block.transactions]
    shown["uncles"] = [text(keccak(uncle.encode())) for uncle in block.uncles]
    if block.header.difficulty:
        shown["totalDifficulty"] = hex(block.total_difficulty)
    if block.header.withdrawals_root is not None:
        shown["withdrawals"] = [
            {"index": hex(one.index), "validatorIndex": hex(one.validator_index)}
            | {"address": text(one.address), "amount": hex(one.amount)}
            for one in block.withdrawals or ()
        ]
    return shown


def shown_transaction(entry: Transaction) -> Json:
    assert entry.sender is not None
    shown: Json = {"type": hex(entry.type), "hash": text(entry.hash), "from": text(entry.sender)}
    shown |= {name: hex(getattr(entry, name)) for name in ("nonce", "gas", "value", "v", "r", "s")}
    shown |= {"to": None if entry.to is None else text(entry.to), "input": text(entry.input)}
    for name, value in (
        ("gasPrice", entry.gas_price),
        ("maxPriorityFeePerGas", entry.max_priority_fee_per_gas),
        ("maxFeePerGas", entry.max_fee_per_gas),
        ("maxFeePerBlobGas", entry.max_fee_per_blob_gas),
    ):
        if value is not None:
            shown[name] = hex(value)
    if entry.layout is not None:
        return shown | shown_special(entry)
    if entry.deposit is not None:
        said = entry.deposit
        shown |= {"sourceHash": text(said.source_hash), "mint": hex(said.mint), "isSystemTx": said.is_system}
    elif entry.type == STATE_SYNC:
        shown["raw"] = text(entry.raw)
    elif entry.type:
        assert entry.chain_id is not None
        shown["chainId"] = hex(entry.chain_id)
        shown["accessList"] = [
            {"address": text(one.address), "storageKeys": [text(key) for key in one.storage_keys]}
            for one in entry.access_list
        ]
    if entry.type == 3:
        shown["blobVersionedHashes"] = [text(value) for value in entry.blob_versioned_hashes]
    if entry.type == 4:
        shown["authorizationList"] = [
            {"chainId": hex(one.chain_id), "address": text(one.address), "nonce": hex(one.nonce)}
            | {"yParity": hex(one.y_parity), "r": hex(one.r), "s": hex(one.s)}
            for one in entry.authorizations
        ]
    return shown


def shown_special(entry: Transaction) -> Json:
    """The fields that only some chains have."""
    assert entry.layout is not None
    shown: Json = {}
    for name in entry.layout:
        camel = "".join(part.title() if at else part for at, part in enumerate(name.split("_")))
        if name == "access_list":
            shown[camel] = [
                {"address": text(one.address), "storageKeys": [text(key) for key in one.storage_keys]}
                for one in entry.access_list
            ]
        elif name == "chain_id":
            assert entry.chain_id is not None
            shown[camel] = hex(entry.chain_id)
        elif name not in ("from_", "parity") and not hasattr(entry, name):
            value = entry.own(name)
            shown[camel] = text(value) if isinstance(value, bytes) else value if value is None else hex(value)
    return shown


def shown_log(log: Log) -> Json:
    topics = [text(topic) for topic in log.topics]
    return {"address": text(log.address), "topics": topics, "data": text(log.data), "logIndex": hex(log.log_index)}


def shown_receipts(block: Block) -> list[Json]:
    """Without what the stream does not carry: a root before Byzantium, a deposit's nonce and version."""
    return [
        _shown_receipt(receipt, block, entry) for receipt, entry in zip(block.receipts, block.transactions, strict=True)
    ]


def _shown_receipt(receipt: ReceiptMeta, block: Block, entry: Transaction) -> Json:
    mine = [log for log in block.logs if log.transaction_index == receipt.transaction_index]
    assert (receipt.log_count, receipt.log_offset) == (len(mine), mine[0].log_index if mine else 0)
    contract = None if receipt.contract_address is None else text(receipt.contract_address)
    numbers = {"gasUsed": receipt.gas_used, "cumulativeGasUsed": receipt.cumulative_gas_used, "status": receipt.status}
    shown: Json = {name: hex(value) for name, value in numbers.items()}
    shown |= {"type": hex(entry.type), "transactionHash": text(entry.hash), "blockHash": text(block.hash)}
    shown |= {"contractAddress": contract, "logsBloom": text(receipt.logs_bloom)}
    return shown | {"logs": [shown_log(log) for log in mine]}


def carried(block: Json, receipts: list[Json]) -> tuple[Json, list[Json]]:
    """What a node shows, less what the stream does not carry."""
    transactions = [shown | {"nonce": "0x0"} if "sourceHash" in shown else shown for shown in block["transactions"]]
    left_out = ("root", "depositNonce", "depositReceiptVersion", "baseFee")
    kept = [
        {"status": "0x0", **{name: value for name, value in receipt.items() if name not in left_out}}
        for receipt in receipts
    ]
    return block | {"transactions": transactions}, kept
