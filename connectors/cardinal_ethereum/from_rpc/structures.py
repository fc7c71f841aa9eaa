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
from typing import Any, Final, TypeAlias, TypeVar

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


class RpcSignature(msgspec.Struct, gc=False):
    """Signature of an authorization, as Substrate nodes nest it."""

    odd_y_parity: bool
    r: str
    s: str


class RpcAuthorization(msgspec.Struct, rename="camel", gc=False):
    """Authorization list entry (EIP-7702). Substrate nodes (Frontier) nest the signature and use the names below."""

    chain_id: str | None = None
    address: str | None = None
    nonce: str | None = None
    r: str | None = None
    s: str | None = None
    y_parity: str | None = None
    v: str | None = None
    chain_number: int | None = msgspec.field(name="chain_id", default=None)
    signature: RpcSignature | None = None

    def __post_init__(self) -> None:
        """Take the values of a nested signature."""
        if self.chain_id is None and self.chain_number is not None:
            self.chain_id = hex(self.chain_number)
        if self.signature is not None and self.r is None:
            self.r, self.s = self.signature.r, self.signature.s
            self.y_parity = hex(self.signature.odd_y_parity)

    @property
    def parity(self) -> str | None:
        """Parity of the signature; some nodes return only its older name."""
        return self.v if self.y_parity is None else self.y_parity


class RpcTransaction(msgspec.Struct, rename="camel", gc=False):
    """Transaction in a block. Which fields are required depends on its type (:mod:`.transactions`).

    ``raw`` holds the canonical bytes, which no node returns in a block: the caller adds them where the fields do not
    suffice (:func:`.transactions.lacking_bytes`).
    """

    nonce: str | None = None
    gas: str | None = None
    value: str | None = None
    input: str | None = None
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
    is_system_tx: bool | None = None
    request_id: str | None = None
    ticket_id: str | None = None
    refund_to: str | None = None
    max_refund: str | None = None
    submission_fee_refund: str | None = None
    l1_base_fee: str | None = msgspec.field(name="l1BaseFee", default=None)
    deposit_value: str | None = None
    retry_to: str | None = None
    retry_value: str | None = None
    retry_data: str | None = None
    beneficiary: str | None = None
    max_submission_fee: str | None = None
    fee_currency: str | None = None
    gateway_fee: str | None = None
    gateway_fee_recipient: str | None = None
    queue_index: str | None = None
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
    """Receipt. ``root`` replaces ``status`` before Byzantium.

    Only deposits have a nonce and a version (OP Stack), only fees in another currency a base fee of their own (Celo).
    """

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
    base_fee: str | None = None


class RpcWithdrawal(msgspec.Struct, rename="camel", gc=False):
    """Withdrawal (EIP-4895). ``amount`` is in gwei."""

    index: str
    validator_index: str
    address: str
    amount: str


class RpcHeader(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """Header of a block or an uncle.

    A proof-of-authority (AuRa) header has ``step`` and ``signature`` instead of ``mix_hash`` and ``nonce``, or the RLP
    of them as ``seal_fields``. Other names of the same fields: :data:`ALIASES`.

    ``more`` holds the fields that this release does not know, in the order of their encoding, with the RLP of each;
    ``unknown`` the names where they do not make up the hash. No node returns either (:mod:`.unknown_fields`).
    """

    parent_hash: str
    sha3_uncles: str
    miner: str | None = None
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
    seal_fields: list[str] | None = None
    base_fee_per_gas: str | None = None
    withdrawals_root: str | None = None
    blob_gas_used: str | None = None
    excess_blob_gas: str | None = None
    parent_beacon_block_root: str | None = None
    requests_hash: str | None = None
    block_access_list_hash: str | None = None
    slot_number: str | None = None
    hash: str = ""
    total_difficulty: str | None = None
    author: str | None = None
    aura_step: str | None = None
    aura_seal: str | None = None
    requests_root: str | None = None
    data_gas_used: str | None = None
    excess_data_gas: str | None = None
    more: tuple[tuple[str, str], ...] = msgspec.field(name=" more", default=())
    unknown: tuple[str, ...] = msgspec.field(name=" unknown", default=())

    def __post_init__(self) -> None:
        """Take the values of fields under other names."""
        for alias, name in ALIASES:
            if (value := getattr(self, alias)) is not None and getattr(self, name) is None:
                setattr(self, name, value)
        if self.signature is not None:
            self._read_seal(self.signature)

    def _read_seal(self, signature: str) -> None:
        """Bring a seal into the form of JSON-RPC: OpenEthereum has a decimal step, and no prefix of the signature."""
        if not signature.startswith("0x"):
            self.signature = f"0x{signature}"
        if self.step is not None and self.step.isdecimal():
            self.step = hex(int(self.step[:_LONGEST_STEP]))


ALIASES: Final = (
    ("author", "miner"),  # OpenEthereum, Substrate
    ("aura_step", "step"),  # Erigon; Nethermind has the other name
    ("aura_seal", "signature"),
    ("requests_root", "requests_hash"),  # names in drafts of the forks, as early clients have them
    ("data_gas_used", "blob_gas_used"),
    ("excess_data_gas", "excess_blob_gas"),
)
"""Other names of header fields, with the name that this package uses."""

_LONGEST_STEP: Final = 78


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


UNREADABLE: Final = (ValueError, TypeError, OverflowError, AttributeError)
"""Errors of a conversion from text."""


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
        if isinstance(error, UNREADABLE):
            raise ApplicationError(f"{self._what} holds a value that cannot be read: {error}") from None


def raw(text: str | None) -> bytes:
    """Bytes of a data text."""
    if text is None:
        raise ValueError("a value is missing")
    if not text.startswith("0x"):
        raise ValueError(f"{text[:20]!r} does not begin with 0x")
    return bytes.fromhex(text[2:])
