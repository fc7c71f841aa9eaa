"""Signed transactions of a development chain, as JSON-RPC objects.

Rules:

1. A transaction depends only on the chain's seed, its sender and its nonce: two branches that include the same one have
   the same bytes, as on a real chain.
2. Signatures are valid: senders can be recovered. A sender's nonces count up along every branch.
3. Nothing is executed. The outcome of a transaction (success, gas, logs) is random per block, so a transaction may fail
   on one branch and succeed on the other.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from cardinal.errors import MissingExtraError
from cardinal_ethereum import rlp
from cardinal_ethereum.from_rpc.transactions import encode_transaction
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp import minimal_bytes

try:
    from coincurve import PrivateKey
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("a development chain", "evm") from absent

JsonDict: TypeAlias = dict[str, Any]
Shape: TypeAlias = Literal["transfer", "call", "create"]

_SHAPES: Final[tuple[Shape, ...]] = ("transfer", "call", "create")
_SHAPE_ODDS: Final = (5, 6, 1)
_KINDS: Final = (0, 1, 2)
_KIND_ODDS: Final = (2, 1, 3)
_LEGACY, _ACCESS_LIST, _FEE_MARKET = _KINDS
_GAS_LIMITS: Final[dict[Shape, int]] = {"transfer": 21_000, "call": 120_000, "create": 300_000}
_GWEI: Final = 10**9
_ACCOUNTS: Final = 8
_CONTRACTS: Final = 4


@dataclass(frozen=True, slots=True)
class Account:
    """Sender: key and address (20 bytes)."""

    key: PrivateKey
    address: bytes


@dataclass(frozen=True, slots=True)
class DevTransaction:
    """Signed transaction outside of a block: JSON object, bytes and purpose."""

    shown: JsonDict
    raw: bytes
    shape: Shape
    created: bytes | None
    """Address of the contract that it creates."""

    def effective_price(self, base_fee: int) -> int | None:
        """Price of a unit of gas in wei at this base fee; None where the block cannot include it."""
        if "maxFeePerGas" in self.shown:
            ceiling, tip = int(self.shown["maxFeePerGas"], 16), int(self.shown["maxPriorityFeePerGas"], 16)
            price = min(ceiling, base_fee + tip)
        else:
            price = int(self.shown["gasPrice"], 16)
        return price if price >= base_fee else None


def text(raw: bytes) -> str:
    """JSON-RPC data."""
    return "0x" + raw.hex()


class TransactionPool:
    """Generator of the transactions of one chain.

    Arguments:
        seed: seed of the chain.
        chain_id: chain id of the signatures.

    """

    def __init__(self, seed: int, chain_id: int) -> None:
        self._seed = seed
        self._chain_id = chain_id
        self.accounts = tuple(_account(f"cardinal development account {index}") for index in range(_ACCOUNTS))
        self.contracts = tuple(keccak(f"cardinal contract {index}".encode())[12:] for index in range(_CONTRACTS))

    def transaction(self, sender: int, nonce: int) -> DevTransaction:
        """The transaction with this nonce of the sender with this index."""
        source = random.Random(f"{self._seed}/{sender}/{nonce}")  # noqa: S311 - repeatable, no secret
        shape = source.choices(_SHAPES, _SHAPE_ODDS)[0]
        kind = source.choices(_KINDS, _KIND_ODDS)[0]
        account = self.accounts[sender]
        shown: JsonDict = {
            "type": hex(kind),
            "chainId": hex(self._chain_id),
            "nonce": hex(nonce),
            "gas": hex(_GAS_LIMITS[shape]),
            "from": text(account.address),
            "to": self._recipient(source, shape),
            "value": hex(source.randrange(10**19) if shape == "transfer" else 0),
            "input": text(b"" if shape == "transfer" else source.randbytes(4 + 32 * source.randint(0, 3))),
        }
        self._price(source, shown, kind)
        if kind != _LEGACY:
            shown["accessList"] = self._access_list(source) if kind == _ACCESS_LIST else []
        self._sign(shown, kind, account)
        raw = encode_transaction(shown)
        shown["hash"] = text(keccak(raw))
        created = keccak(rlp.encode([account.address, minimal_bytes(nonce)]))[12:] if shape == "create" else None
        return DevTransaction(shown, raw, shape, created)

    def outcome(self, source: random.Random, transaction: DevTransaction) -> tuple[bool, int, list[JsonDict]]:
        """Outcome of a transaction in a block: success, used gas, logs."""
        limit = int(transaction.shown["gas"], 16)
        if transaction.shape == "transfer":
            return True, limit, []
        used = source.randint(limit // 4, limit)
        if source.randrange(16) == 0:
            return False, used, []
        emitter = transaction.created or bytes.fromhex(transaction.shown["to"][2:])
        return True, used, [self._log(source, emitter) for _ in range(source.randint(0, 3))]

    def _recipient(self, source: random.Random, shape: Shape) -> str | None:
        match shape:
            case "transfer":
                return text(source.choice(self.accounts).address)
            case "call":
                return text(source.choice(self.contracts))
            case "create":
                return None

    def _price(self, source: random.Random, shown: JsonDict, kind: int) -> None:
        tip, ceiling = source.randrange(2 * _GWEI), source.randint(20, 100) * _GWEI
        if kind == _FEE_MARKET:
            shown["maxFeePerGas"] = hex(ceiling)
            shown["maxPriorityFeePerGas"] = hex(tip)
        else:
            shown["gasPrice"] = hex(ceiling)

    def _access_list(self, source: random.Random) -> list[JsonDict]:
        return [
            {
                "address": text(source.choice(self.contracts)),
                "storageKeys": [text(source.randbytes(32)) for _ in range(source.randint(0, 2))],
            }
            for _ in range(source.randint(0, 2))
        ]

    def _sign(self, shown: JsonDict, kind: int, account: Account) -> None:
        signature = account.key.sign_recoverable(keccak(signing_bytes(shown)), hasher=None)
        parity = signature[64]
        shown["r"] = hex(int.from_bytes(signature[:32], "big"))
        shown["s"] = hex(int.from_bytes(signature[32:64], "big"))
        shown["v"] = hex(35 + 2 * self._chain_id + parity if kind == _LEGACY else parity)
        if kind != _LEGACY:
            shown["yParity"] = shown["v"]

    def _log(self, source: random.Random, emitter: bytes) -> JsonDict:
        """Random log: a token transfer, or any number of topics with any data."""
        if source.random() < 0.5:  # noqa: PLR2004 - probability
            parties = [source.choice(self.accounts).address.rjust(32, b"\0") for _ in range(2)]
            topics = [keccak(b"Transfer(address,address,uint256)"), *parties]
            content = source.randrange(1 << 256).to_bytes(32, "big")
        else:
            topics = [source.randbytes(32) for _ in range(source.randint(0, 4))]
            content = source.randbytes(source.choice((0, 1, 32, 100)))
        return {"address": text(emitter), "topics": [text(topic) for topic in topics], "data": text(content)}


def _account(secret: str) -> Account:
    key = PrivateKey(keccak(secret.encode()))
    return Account(key, keccak(key.public_key.format(compressed=False)[1:])[12:])


def signing_bytes(transaction: JsonDict) -> bytes:
    """Bytes that a sender signs (EIP-155, EIP-2930, EIP-1559)."""
    to = _data(transaction, "to") if transaction["to"] else b""
    call = [_quantity(transaction, "gas"), to, _quantity(transaction, "value"), _data(transaction, "input")]
    kind = int(transaction["type"], 16)
    if kind == _LEGACY:
        prices = [_quantity(transaction, "nonce"), _quantity(transaction, "gasPrice")]
        return rlp.encode([*prices, *call, _quantity(transaction, "chainId"), b"", b""])
    names = ("gasPrice",) if kind == _ACCESS_LIST else ("maxPriorityFeePerGas", "maxFeePerGas")
    head = [_quantity(transaction, name) for name in ("chainId", "nonce", *names)]
    listed: list[rlp.Item] = [
        [_data(entry, "address"), [bytes.fromhex(key[2:]) for key in entry["storageKeys"]]]
        for entry in transaction["accessList"]
    ]
    return bytes((kind,)) + rlp.encode([*head, *call, listed])


def _data(transaction: JsonDict, name: str) -> bytes:
    return bytes.fromhex(transaction[name][2:])


def _quantity(transaction: JsonDict, name: str) -> bytes:
    return rlp.minimal_bytes(int(transaction[name], 16))
