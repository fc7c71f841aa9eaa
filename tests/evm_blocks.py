"""Blocks of Ethereum-like chains as JSON-RPC shows them, whose hashes, roots and blooms fit.

All of it is put together on a way of the tests' own, from what the specifications say of each byte; of the product
only RLP and keccak are used, which have tests for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coincurve import PrivateKey

from cardinal_ethereum import rlp
from cardinal_ethereum.keccak import keccak
from tries import Grown

Json = dict[str, Any]

NO_UNCLES = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"
EMPTY_ROOT = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
ZERO_ADDRESS = "0x" + "00" * 20
DEPOSIT = 126
STATE_SYNC = 127

HEADER = (
    *("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot", "logsBloom", "difficulty"),
    *("number", "gasLimit", "gasUsed", "timestamp", "extraData", "mixHash", "nonce"),
)
LATER = (
    *("baseFeePerGas", "withdrawalsRoot", "blobGasUsed", "excessBlobGas", "parentBeaconBlockRoot", "requestsHash"),
    *("blockAccessListHash", "slotNumber"),
)
AMOUNTS = frozenset(
    {"difficulty", "number", "gasLimit", "gasUsed", "timestamp", "baseFeePerGas", "blobGasUsed", "excessBlobGas"}
    | {"slotNumber"}
)


def text(value: bytes) -> str:
    return "0x" + value.hex()


def data(shown: str | None) -> bytes:
    return bytes.fromhex((shown or "0x")[2:])


def minimal(shown: str | int | None) -> bytes:
    """The bytes of a number in RLP."""
    value = shown if isinstance(shown, int) else int(shown or "0x0", 16)
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def root(values: Sequence[bytes]) -> str:
    """The root over values under the RLP of their places."""
    content = {rlp.encode(minimal(index)): value for index, value in enumerate(values)}
    return text(Grown(content).root) if content else EMPTY_ROOT


def bloom(logs: Sequence[Json]) -> str:
    """2,048 bits, of which every address and every topic sets three (yellow paper, 4.4.1)."""
    bits = 0
    for log in logs:
        for value in (log["address"], *log["topics"]):
            hashed = keccak(data(value))
            for at in (0, 2, 4):
                bits |= 1 << (int.from_bytes(hashed[at : at + 2], "big") % 2048)
    return text(bits.to_bytes(256, "big"))


def unsigned(shown: Json) -> list[rlp.Item]:
    """The fields of a transaction that are signed, in order (EIPs 155, 2930, 1559, 4844 and 7702)."""
    kind = int(shown["type"], 16)
    call: list[rlp.Item] = [minimal(shown["gas"]), data(shown["to"]), minimal(shown["value"]), data(shown["input"])]
    access: list[rlp.Item] = [
        [data(entry["address"]), [data(key) for key in entry["storageKeys"]]] for entry in shown.get("accessList", ())
    ]
    if kind == 0:
        return [minimal(shown["nonce"]), minimal(shown["gasPrice"]), *call]
    first: list[rlp.Item] = [minimal(shown["chainId"]), minimal(shown["nonce"])]
    if kind == 1:
        return [*first, minimal(shown["gasPrice"]), *call, access]
    fees: list[rlp.Item] = [minimal(shown["maxPriorityFeePerGas"]), minimal(shown["maxFeePerGas"])]
    whole = [*first, *fees, *call, access]
    if kind == 3:
        whole += [minimal(shown["maxFeePerBlobGas"]), [data(value) for value in shown["blobVersionedHashes"]]]
    if kind == 4:
        whole.append(
            [
                [minimal(entry["chainId"]), data(entry["address"]), minimal(entry["nonce"])]
                + [minimal(entry[name]) for name in ("yParity", "r", "s")]
                for entry in shown["authorizationList"]
            ]
        )
    return whole


ARBITRUM_CALL = ("maxFeePerGas", "gas", "to", "value", "input")
OTHER_TYPES = {
    0x64: ("chainId", "requestId", "from", "to", "value"),
    0x65: ("chainId", "from", "nonce", *ARBITRUM_CALL),
    0x66: ("chainId", "requestId", "from", *ARBITRUM_CALL),
    0x68: (
        *("chainId", "nonce", "from", *ARBITRUM_CALL),
        *("ticketId", "refundTo", "maxRefund", "submissionFeeRefund"),
    ),
    0x69: (
        *("chainId", "requestId", "from", "l1BaseFee", "depositValue", "maxFeePerGas", "gas", "retryTo", "retryValue"),
        *("beneficiary", "maxSubmissionFee", "refundTo", "retryData"),
    ),
    0x6A: ("chainId", "input"),
    0x7B: (
        *("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas", "to", "value", "input", "accessList"),
        "feeCurrency",
    ),
    0x7C: (
        *("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas", "feeCurrency", "gatewayFeeRecipient"),
        *("gatewayFee", "to", "value", "input", "accessList"),
    ),
    0x7E: ("queueIndex", "gas", "to", "value", "input", "from"),  # Scroll's
}
"""Fields of other chains' types, as their nodes name them (nitro, celo and scroll: core/types)."""
DATA = frozenset({"from", "to", "requestId", "ticketId", "refundTo", "input", "retryTo", "beneficiary", "retryData"})
DATA |= {"feeCurrency", "gatewayFeeRecipient"}


def other_items(shown: Json) -> list[rlp.Item]:
    """The fields of such a transaction, without a signature."""
    items: list[rlp.Item] = []
    for name in OTHER_TYPES[int(shown["type"], 16)]:
        if name == "accessList":
            items.append([[data(one["address"]), [data(key) for key in one["storageKeys"]]] for one in shown[name]])
        else:
            items.append(data(shown[name]) if name in DATA else minimal(shown[name]))
    return items


def other_bytes(shown: Json) -> bytes:
    kind = int(shown["type"], 16)
    signature = [minimal(shown[name]) for name in ("v", "r", "s")] if kind in (0x7B, 0x7C) else []
    return bytes((kind,)) + rlp.encode([*other_items(shown), *signature])


def canonical(shown: Json) -> bytes:
    """The bytes whose hash names a transaction; those of type 127, and of unknown types, come with it."""
    kind = int(shown["type"], 16)
    if shown.get("raw"):
        return data(shown["raw"])
    if kind in OTHER_TYPES and "sourceHash" not in shown:
        return other_bytes(shown)
    if kind == DEPOSIT:
        parts: list[rlp.Item] = [data(shown[name]) for name in ("sourceHash", "from", "to")]
        parts += [minimal(shown[name]) for name in ("mint", "value", "gas")]
        return b"\x7e" + rlp.encode([*parts, b"\1" if shown["isSystemTx"] else b"", data(shown["input"])])
    body = rlp.encode([*unsigned(shown), minimal(shown["v"]), minimal(shown["r"]), minimal(shown["s"])])
    return body if kind == 0 else bytes((kind,)) + body


def signed(shown: Json, key: PrivateKey, chain_id: int | None) -> Json:
    """A transaction with its signature, sender and hash; a legacy one is bound to the chain where that is said."""
    kind = int(shown["type"], 16)
    if kind == 0:
        bound: list[rlp.Item] = [] if chain_id is None else [minimal(chain_id), b"", b""]
        digest = keccak(rlp.encode([*unsigned(shown), *bound]))
        first = 27 if chain_id is None else 35 + 2 * chain_id
    else:
        items = other_items(shown) if kind in OTHER_TYPES else unsigned(shown)
        digest, first = keccak(bytes((kind,)) + rlp.encode(items)), 0
    signature = key.sign_recoverable(digest, hasher=None)
    r, s = (int.from_bytes(signature[at : at + 32], "big") for at in (0, 32))
    made = shown | {"v": hex(first + signature[64]), "r": hex(r), "s": hex(s)}
    made["from"] = text(keccak(key.public_key.format(compressed=False)[1:])[12:])
    return made | {"hash": text(keccak(canonical(made)))}


def state_sync(events: Sequence[tuple[int, bytes, bytes, bytes]]) -> Json:
    """A state sync of type 127 as nodes show it, with its bytes (PIP-74)."""
    raw = b"\x7f" + rlp.encode([[minimal(at), contract, told, below] for at, contract, told, below in events])
    shown: Json = dict.fromkeys(("nonce", "gas", "gasPrice", "value", "maxFeePerGas", "maxPriorityFeePerGas"), "0x0")
    shown |= {"type": "0x7f", "from": ZERO_ADDRESS, "to": ZERO_ADDRESS, "input": "0x", "v": "0x0", "r": "0x0"}
    return shown | {"s": "0x0", "hash": text(keccak(raw)), "raw": text(raw)}


def created(sender: str, nonce: str) -> str:
    """Where a sender's transaction creates a contract."""
    return text(keccak(rlp.encode([data(sender), minimal(nonce)]))[12:])


def consensus(receipt: Json) -> bytes:
    """A receipt's bytes under the root (EIP-658, EIP-2718; OP Stack, deposits, from Canyon on)."""
    outcome = data(receipt["root"]) if "root" in receipt else minimal(receipt["status"])
    logs = [
        [data(log["address"]), [data(topic) for topic in log["topics"]], data(log["data"])] for log in receipt["logs"]
    ]
    parts: list[rlp.Item] = [outcome, minimal(receipt["cumulativeGasUsed"]), data(receipt["logsBloom"]), logs]
    if "baseFee" in receipt:
        parts.append(minimal(receipt["baseFee"]))
    if "depositReceiptVersion" in receipt:
        parts += [minimal(receipt["depositNonce"]), minimal(receipt["depositReceiptVersion"])]
    kind = int(receipt["type"], 16)
    return rlp.encode(parts) if kind == 0 else bytes((kind,)) + rlp.encode(parts)


def header_bytes(header: Json) -> bytes:
    """The bytes whose hash names a block; a chain of authorities has step and signature for mixHash and nonce."""
    names = [*HEADER, *[name for name in LATER if name in header]]
    if "signature" in header:
        names[names.index("mixHash") : names.index("nonce") + 1] = ["step", "signature"]
    return rlp.encode([minimal(header[name]) if name in AMOUNTS | {"step"} else data(header[name]) for name in names])


def withdrawal_bytes(shown: Json) -> bytes:
    amounts = [minimal(shown["index"]), minimal(shown["validatorIndex"])]
    return rlp.encode([*amounts, data(shown["address"]), minimal(shown["amount"])])


def contract_of(transaction: Json, outcome: Json) -> str | None:
    """The contract of a creation, where it follows from bytes under a root."""
    kind = int(transaction["type"], 16)
    if kind in (0x66, 0x68) or (kind == DEPOSIT and "depositReceiptVersion" not in outcome):
        return None
    return created(transaction["from"], outcome.get("depositNonce", transaction["nonce"]))


def receipts_of(transactions: Sequence[Json], outcomes: Sequence[Json]) -> list[Json]:
    """Receipts with what follows from their order; an outcome has gasUsed, logs, and status or root."""
    made: list[Json] = []
    gas = logs = 0
    for transaction, outcome in zip(transactions, outcomes, strict=True):
        gas += int(outcome["gasUsed"], 16)
        listed = [log | {"logIndex": hex(logs + at)} for at, log in enumerate(outcome["logs"])]
        logs += len(listed)
        contract = None if transaction["to"] else contract_of(transaction, outcome)
        own = {"transactionHash": transaction["hash"], "type": transaction["type"], "contractAddress": contract}
        made.append({**outcome, **own, "cumulativeGasUsed": hex(gas), "logs": listed, "logsBloom": bloom(listed)})
    return made


def sealed(
    header: Json, transactions: Sequence[Json], receipts: Sequence[Json], uncles: Sequence[Json] = ()
) -> tuple[Json, list[Json]]:
    """A block of these parts, and its receipts, that say its hash.

    The header's own fields are completed by what follows from the parts; ``withdrawals`` go in where it has them.
    """
    block = dict(header)
    block["transactionsRoot"] = root([canonical(one) for one in transactions])
    block["receiptsRoot"] = root([consensus(one) for one in receipts])
    block["logsBloom"] = bloom([log for receipt in receipts for log in receipt["logs"]])
    block["gasUsed"] = receipts[-1]["cumulativeGasUsed"] if receipts else "0x0"
    block["sha3Uncles"] = text(keccak(rlp.encode([rlp.decode(header_bytes(one)) for one in uncles])))
    if "withdrawals" in header:
        block["withdrawalsRoot"] = root([withdrawal_bytes(one) for one in header["withdrawals"]])
    block["hash"] = text(keccak(header_bytes(block)))
    block["transactions"] = list(transactions)
    block["uncles"] = [text(keccak(header_bytes(one))) for one in uncles]
    return block, [{**receipt, "blockHash": block["hash"]} for receipt in receipts]
