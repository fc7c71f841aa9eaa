"""The rows that ethereum-etl makes of what JSON-RPC shows, with our own columns: what tables are held to."""

from __future__ import annotations

from datetime import UTC, datetime

from evm_blocks import STATE_SYNC, Json


def number(shown: str | None) -> int | None:
    return None if shown is None else int(shown, 16)


def wide(shown: str | None) -> str | None:
    """A number of 256 bits, as text."""
    return None if shown is None else str(int(shown, 16))


def keys(block: Json) -> Json:
    time = datetime.fromtimestamp(int(block["timestamp"], 16), UTC)
    shown = {"block_number": number(block["number"]), "block_hash": block["hash"], "block_timestamp": time}
    return {**shown, "block_date": time.date()}


def block_row(block: Json) -> Json:
    """Without ``size`` where the node does not show it."""
    first = keys(block)
    texts = {
        "parent_hash": "parentHash",
        "nonce": "nonce",
        "sha3_uncles": "sha3Uncles",
        "logs_bloom": "logsBloom",
        "transactions_root": "transactionsRoot",
        "state_root": "stateRoot",
        "receipts_root": "receiptsRoot",
        "miner": "miner",
        "extra_data": "extraData",
        "withdrawals_root": "withdrawalsRoot",
        "mix_hash": "mixHash",
        "parent_beacon_block_root": "parentBeaconBlockRoot",
        "requests_hash": "requestsHash",
        "block_access_list_hash": "blockAccessListHash",
    }
    longs = {
        "gas_limit": "gasLimit",
        "gas_used": "gasUsed",
        "blob_gas_used": "blobGasUsed",
        "excess_blob_gas": "excessBlobGas",
        "slot_number": "slotNumber",
    }
    wides = {
        "difficulty": "difficulty",
        "total_difficulty": "totalDifficulty",
        "base_fee_per_gas": "baseFeePerGas",
    }
    row = {**first, "number": first["block_number"], "hash": block["hash"], "timestamp": first["block_timestamp"]}
    row |= {ours: block.get(name) for ours, name in texts.items()}
    row |= {ours: number(block.get(name)) for ours, name in longs.items()}
    row |= {ours: wide(block.get(name)) for ours, name in wides.items()}
    row["transaction_count"] = len(block["transactions"])
    return row | ({"size": number(block["size"])} if "size" in block else {})


def price(block: Json, transaction: Json) -> str | None:
    """What a unit of gas cost: as the node says it, or by the rule of EIP-1559."""
    if "maxFeePerGas" not in transaction or transaction["type"] == hex(STATE_SYNC):
        return wide(transaction["gasPrice"])
    if "baseFeePerGas" not in block or transaction.get("feeCurrency") is not None:
        return None
    most, tip = (int(transaction.get(name, "0x0"), 16) for name in ("maxFeePerGas", "maxPriorityFeePerGas"))
    return str(min(most, int(block["baseFeePerGas"], 16) + tip))


def transaction_row(block: Json, index: int, *, senders: bool = True) -> Json:
    shown = block["transactions"][index]
    kind = int(shown["type"], 16)
    listed, wishes = shown.get("accessList"), shown.get("authorizationList")
    row = keys(block) | {
        "transaction_index": index,
        "hash": shown["hash"],
        "nonce": number(shown["nonce"]),
        "from_address": shown["from"] if senders else None,
        "to_address": shown["to"],
        "value": wide(shown["value"]),
        "gas": number(shown["gas"]),
        "gas_price": price(block, shown),
        "input": shown["input"],
        "max_fee_per_gas": wide(shown.get("maxFeePerGas")),
        "max_priority_fee_per_gas": wide(shown.get("maxPriorityFeePerGas")),
        "transaction_type": kind,
        "max_fee_per_blob_gas": wide(shown.get("maxFeePerBlobGas")),
        "blob_versioned_hashes": shown.get("blobVersionedHashes") or [],
        "access_list": None,
        "authorization_list": None,
        "source_hash": shown.get("sourceHash"),
        "mint": wide(shown["mint"]) if "sourceHash" in shown else None,
    }
    if listed is not None:
        row["access_list"] = [{"address": one["address"], "storage_keys": one["storageKeys"]} for one in listed]
    if wishes is not None:
        row["authorization_list"] = [
            {name: wide(one[said]) for name, said in (("chain_id", "chainId"), ("nonce", "nonce"))}
            | {"address": one["address"], "y_parity": wide(one["yParity"]), "r": one["r"], "s": one["s"]}
            | {"authority": None}
            for one in wishes
        ]
    return row


def receipt_row(block: Json, receipt: Json, index: int) -> Json:
    """``status`` as the stream carries it; of a block before Byzantium it is not the node's."""
    shown = block["transactions"][index]
    blobs = shown.get("blobVersionedHashes")
    return keys(block) | {
        "transaction_index": index,
        "transaction_hash": receipt["transactionHash"],
        "cumulative_gas_used": number(receipt["cumulativeGasUsed"]),
        "gas_used": number(receipt["gasUsed"]),
        "contract_address": receipt["contractAddress"],
        "status": number(receipt["status"]),
        "effective_gas_price": price(block, shown),
        "blob_gas_used": None if blobs is None else 131_072 * len(blobs),
    }


def log_row(block: Json, log: Json, index: int, transaction_hash: str) -> Json:
    return keys(block) | {
        "log_index": number(log["logIndex"]),
        "transaction_index": index,
        "transaction_hash": transaction_hash,
        "address": log["address"],
        "data": log["data"],
        "topics": log["topics"],
        **{f"topic{at}": dict(enumerate(log["topics"])).get(at) for at in range(4)},
    }


def withdrawal_row(block: Json, shown: Json) -> Json:
    numbers = {"index": "index", "validator_index": "validatorIndex", "amount": "amount"}
    return keys(block) | {ours: number(shown[name]) for ours, name in numbers.items()} | {"address": shown["address"]}


def tables_of(block: Json, receipts: list[Json], *, senders: bool = True) -> dict[str, list[Json]]:
    """The rows of all tables; a receipt beyond the block's transactions is one that the node added."""
    return {
        "blocks": [block_row(block)],
        "transactions": [transaction_row(block, at, senders=senders) for at in range(len(block["transactions"]))],
        "receipts": [receipt_row(block, one, at) for at, one in enumerate(receipts[: len(block["transactions"])])],
        "logs": [
            log_row(block, log, at, receipt["transactionHash"])
            for at, receipt in enumerate(receipts)
            for log in receipt["logs"]
        ],
        "withdrawals": [withdrawal_row(block, one) for one in block.get("withdrawals") or ()],
    }
