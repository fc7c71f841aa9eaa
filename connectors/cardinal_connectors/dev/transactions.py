"""Signed transactions for a development chain, as JSON-RPC shows them.

Nothing executes them: what they do (who sends, what is created, which logs appear) is drawn from the block's random
source. The signatures are real, so senders can be recovered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cardinal.apps.evm import rlp
from cardinal.apps.evm.keccak import keccak
from cardinal.apps.evm.transactions import encode_transaction
from cardinal.errors import MissingExtraError

try:
    from coincurve import PrivateKey
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("A development chain", "evm") from absent

_GAS_TRANSFER: Final = 21_000
_GAS_CALL: Final = 60_000
_GAS_CREATE: Final = 200_000
_TOKEN_TRANSFER: Final = keccak(b"Transfer(address,address,uint256)")
_LEGACY, _ACCESS_LIST, _FEE_MARKET = 0, 1, 2
_CREATION_ONE_IN: Final = 12


@dataclass(frozen=True, slots=True)
class Account:
    """A sender: its key and its address (20 bytes)."""

    key: PrivateKey
    address: bytes


def accounts(chain_id: int, count: int = 8) -> tuple[Account, ...]:
    """The senders of a development chain; the same on every run."""
    out = []
    for index in range(count):
        key = PrivateKey(keccak(f"cardinal development account {chain_id} {index}".encode()))
        out.append(Account(key, keccak(key.public_key.format(compressed=False)[1:])[12:]))
    return tuple(out)


def quantity(value: int) -> str:
    """A JSON-RPC quantity."""
    return hex(value)


def text(data: bytes) -> str:
    """JSON-RPC data."""
    return "0x" + data.hex()


def minimal(value: int) -> bytes:
    """The big-endian bytes of a number, none for zero."""
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


class TransactionMaker:
    """Draws signed transactions and their logs. ``nonces`` are the accounts' next ones on this branch."""

    def __init__(self, source: random.Random, senders: Sequence[Account], chain_id: int, base_fee: int) -> None:
        self._random = source
        self._senders = senders
        self._chain_id = chain_id
        self._base_fee = base_fee

    def make(self, nonces: list[int]) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
        """One transaction as JSON-RPC shows it, its logs (address, topics, data), and the gas that it used."""
        which = self._random.randrange(len(self._senders))
        sender, nonce = self._senders[which], nonces[which]
        nonces[which] += 1
        creates = self._random.randrange(_CREATION_ONE_IN) == 0
        calls = not creates and self._random.random() < 0.5  # noqa: PLR2004 - half of them are calls
        to = None if creates else self._random.choice(self._senders).address
        gas_used = _GAS_CREATE if creates else _GAS_CALL if calls else _GAS_TRANSFER
        data = self._random.randbytes(self._random.randint(4, 100)) if creates or calls else b""
        transaction: dict[str, Any] = {
            "type": quantity(self._random.choice((_LEGACY, _ACCESS_LIST, _FEE_MARKET, _FEE_MARKET))),
            "chainId": quantity(self._chain_id),
            "nonce": quantity(nonce),
            "gas": quantity(2 * gas_used),
            "to": None if to is None else text(to),
            "value": quantity(self._random.randint(0, 10**18)),
            "input": text(data),
            "from": text(sender.address),
        }
        self._price(transaction)
        self._sign(transaction, sender)
        logs = [self._log(sender.address) for _ in range(self._random.randint(1, 3))] if calls else []
        return transaction, logs, gas_used

    def _price(self, transaction: dict[str, Any]) -> None:
        tip = self._random.randint(1, 10**9)
        kind = int(transaction["type"], 16)
        transaction["gasPrice"] = quantity(self._base_fee + tip)
        if kind != _LEGACY:
            key, address = text(self._random.randbytes(32)), text(self._random.choice(self._senders).address)
            transaction["accessList"] = [{"address": address, "storageKeys": [key]}] if kind == _ACCESS_LIST else []
        if kind == _FEE_MARKET:
            transaction["maxFeePerGas"] = quantity(2 * self._base_fee + tip)
            transaction["maxPriorityFeePerGas"] = quantity(tip)

    def _sign(self, transaction: dict[str, Any], sender: Account) -> None:
        signature = sender.key.sign_recoverable(keccak(signing_bytes(transaction)), hasher=None)
        parity = signature[64]
        transaction["r"] = quantity(int.from_bytes(signature[:32], "big"))
        transaction["s"] = quantity(int.from_bytes(signature[32:64], "big"))
        if int(transaction["type"], 16) == _LEGACY:
            transaction["v"] = quantity(35 + 2 * self._chain_id + parity)
        else:
            transaction["v"] = transaction["yParity"] = quantity(parity)
        transaction["hash"] = text(keccak(encode_transaction(transaction)))

    def _log(self, sender: bytes) -> dict[str, Any]:
        receiver = self._random.choice(self._senders).address
        return {
            "address": text(self._random.choice(self._senders).address),
            "topics": [text(_TOKEN_TRANSFER), text(sender.rjust(32, b"\0")), text(receiver.rjust(32, b"\0"))],
            "data": text(self._random.randint(1, 10**24).to_bytes(32, "big")),
        }


def signing_bytes(transaction: dict[str, Any]) -> bytes:
    """What a sender signs (EIP-155, EIP-2930, EIP-1559)."""

    def number(name: str) -> bytes:
        return minimal(int(transaction[name], 16))

    to = bytes.fromhex(transaction["to"][2:]) if transaction["to"] else b""
    data = bytes.fromhex(transaction["input"][2:])
    tail: list[Any] = [number("gas"), to, number("value"), data]
    kind = int(transaction["type"], 16)
    if kind == _LEGACY:
        return rlp.encode([number("nonce"), number("gasPrice"), *tail, number("chainId"), b"", b""])
    listed: list[rlp.Item] = [
        [bytes.fromhex(entry["address"][2:]), [bytes.fromhex(key[2:]) for key in entry["storageKeys"]]]
        for entry in transaction["accessList"]
    ]
    names = ("gasPrice",) if kind == _ACCESS_LIST else ("maxPriorityFeePerGas", "maxFeePerGas")
    prices = [number(name) for name in names]
    return bytes((kind,)) + rlp.encode([number("chainId"), number("nonce"), *prices, *tail, listed])
