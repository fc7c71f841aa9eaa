"""JSON-RPC blocks and receipts as typed structures.

Rules:

1. A structure holds a node's texts unchanged; the encoders convert them to numbers or bytes, once. Unknown fields are
   ignored; null equals absence.
2. Every encoder of this package accepts dictionaries too (:func:`read`). Parsing JSON into the structures takes less
   than half the time of parsing it into dictionaries.
3. A text that is not hexadecimal raises :class:`~cardinal.errors.ApplicationError`, never another exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from cardinal.errors import ApplicationError, MissingExtraError

try:
    import msgspec
except ImportError as absent:  # pragma: no cover - the development environment has every extra
    raise MissingExtraError("Reading blocks from a node", "evm") from absent

JsonObject: TypeAlias = Mapping[str, Any]


class RpcAccess(msgspec.Struct, rename="camel", gc=False):
    """Access list entry (EIP-2930)."""

    address: str
    storage_keys: list[str]


class RpcAuthorization(msgspec.Struct, rename="camel", gc=False):
    """Authorization list entry (EIP-7702)."""

    chain_id: str
    address: str
    nonce: str
    r: str
    s: str
    y_parity: str | None = None
    v: str | None = None

    @property
    def parity(self) -> str | None:
        """Parity of the signature; some nodes return only its older name."""
        return self.v if self.y_parity is None else self.y_parity


class RpcTransaction(msgspec.Struct, rename="camel", gc=False):
    """Transaction in a block.

    ``raw`` holds the canonical bytes, which no node returns in a block: the caller adds them to a transaction of type
    127 (:mod:`.state_sync`).
    """

    nonce: str
    gas: str
    value: str
    input: str
    r: str | None = None
    s: str | None = None
    hash: str = ""
    type: str | None = None
    to: str | None = None
    from_: str | None = msgspec.field(name="from", default=None)
    v: str | None = None
    y_parity: str | None = None
    chain_id: str | None = None
    gas_price: str | None = None
    max_priority_fee_per_gas: str | None = None
    max_fee_per_gas: str | None = None
    max_fee_per_blob_gas: str | None = None
    access_list: list[RpcAccess] | None = None
    blob_versioned_hashes: list[str] | None = None
    authorization_list: list[RpcAuthorization] | None = None
    source_hash: str | None = None
    mint: str | None = None
    is_system_tx: bool = False
    raw: str | None = None

    @property
    def parity(self) -> str | None:
        """Parity of the signature; some nodes return only its older name."""
        return self.v if self.y_parity is None else self.y_parity


class RpcLog(msgspec.Struct, rename="camel", gc=False):
    """Log in a receipt."""

    address: str
    topics: list[str]
    data: str
    log_index: str | None = None


class RpcReceipt(msgspec.Struct, rename="camel", gc=False):
    """Receipt. ``root`` replaces ``status`` before Byzantium; only deposits have the last two (OP Stack)."""

    cumulative_gas_used: str
    logs_bloom: str
    logs: list[RpcLog]
    gas_used: str = "0x0"
    status: str | None = None
    root: str | None = None
    type: str | None = None
    contract_address: str | None = None
    transaction_hash: str | None = None
    block_hash: str | None = None
    deposit_nonce: str | None = None
    deposit_receipt_version: str | None = None


class RpcWithdrawal(msgspec.Struct, rename="camel", gc=False):
    """Withdrawal (EIP-4895). ``amount`` is in gwei."""

    index: str
    validator_index: str
    address: str
    amount: str


class RpcHeader(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """Header of a block or an uncle.

    A proof-of-authority (AuRa) header has ``step`` and ``signature`` instead of ``mix_hash`` and ``nonce``.
    """

    parent_hash: str
    sha3_uncles: str
    miner: str
    state_root: str
    transactions_root: str
    receipts_root: str
    logs_bloom: str
    difficulty: str
    number: str
    gas_limit: str
    gas_used: str
    timestamp: str
    extra_data: str
    mix_hash: str | None = None
    nonce: str | None = None
    step: str | None = None
    signature: str | None = None
    base_fee_per_gas: str | None = None
    withdrawals_root: str | None = None
    blob_gas_used: str | None = None
    excess_blob_gas: str | None = None
    parent_beacon_block_root: str | None = None
    requests_hash: str | None = None
    hash: str = ""
    total_difficulty: str | None = None


class RpcBlock(RpcHeader, rename="camel", gc=False, kw_only=True):
    """Block with full transactions. ``uncles`` are hashes."""

    transactions: list[RpcTransaction]
    uncles: list[str] = []
    withdrawals: list[RpcWithdrawal] | None = None


_Kind = TypeVar("_Kind", bound=msgspec.Struct)


def read(kind: type[_Kind], value: _Kind | Mapping[str, Any]) -> _Kind:
    """Convert a node's result to a structure of ``kind``; a structure is returned unchanged.

    Raises:
        ApplicationError: a field is missing or not text.

    """
    if isinstance(value, kind):
        return value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        name = kind.__name__.removeprefix("Rpc").lower()
        raise ApplicationError(f"the node's {name} does not have the form of JSON-RPC: {error}") from None


class hexadecimal:  # noqa: N801 - a context manager, used like a function
    """Context manager that maps conversion errors to an ApplicationError naming the converted thing."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Map a conversion error."""
        if isinstance(error, (ValueError, TypeError, OverflowError, AttributeError)):
            raise ApplicationError(f"{self._what} holds a value that cannot be read: {error}") from None


def raw(text: str) -> bytes:
    """Bytes of a data text."""
    if not text.startswith("0x"):
        raise ValueError(f"{text[:20]!r} does not begin with 0x")
    return bytes.fromhex(text[2:])
