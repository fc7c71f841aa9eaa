"""Block headers from JSON-RPC to the bytes whose hash names the block."""

from __future__ import annotations

from typing import Final

from . import rlp
from .jsonrpc import JsonObject, data, minimal

# Fields that came with a fork stand at the end, in the order of the forks; the first one absent ends the header.
_LATER: Final = (
    ("baseFeePerGas", minimal),  # London
    ("withdrawalsRoot", data),  # Shanghai
    ("blobGasUsed", minimal),  # Cancun
    ("excessBlobGas", minimal),
    ("parentBeaconBlockRoot", data),
    ("requestsHash", data),  # Prague
)


def encode_header(block: JsonObject) -> bytes:
    """The RLP of a block's header. ApplicationError where a field is missing."""
    fields = [data(block, name) for name in ("parentHash", "sha3Uncles", "miner", "stateRoot")]
    fields += [data(block, name) for name in ("transactionsRoot", "receiptsRoot", "logsBloom")]
    fields += [minimal(block, name) for name in ("difficulty", "number", "gasLimit", "gasUsed", "timestamp")]
    fields += [data(block, name) for name in ("extraData", "mixHash", "nonce")]
    for name, read in _LATER:
        if block.get(name) is None:
            break
        fields.append(read(block, name))
    return rlp.encode(fields)


def encode_withdrawal(withdrawal: JsonObject) -> bytes:
    """The RLP of one withdrawal (EIP-4895)."""
    return rlp.encode(withdrawal_fields(withdrawal))


def withdrawal_fields(withdrawal: JsonObject) -> list[bytes]:
    """Index, validator, address and amount."""
    return [
        minimal(withdrawal, "index"),
        minimal(withdrawal, "validatorIndex"),
        data(withdrawal, "address"),
        minimal(withdrawal, "amount"),
    ]
