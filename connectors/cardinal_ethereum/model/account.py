"""Account of the state: the trie's leaf, and the published (slim) value.

A stream carries the slim form, as the reference's producer and geth's snapshots do: an empty storage root and the hash
of empty code are empty strings there. State roots are over leaves. Both forms are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from cardinal.errors import ApplicationError
from cardinal.texts import Readable
from cardinal_ethereum import rlp
from cardinal_ethereum.checks.trie import EMPTY_ROOT
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp.fields import HASH, bytes_of, list_of, number

NO_CODE: Final = keccak(b"")
"""Code hash of an account without code."""
_FIELDS: Final = 4


@dataclass(frozen=True, slots=True, repr=False)
class Account(Readable):
    """Account of the state.

    Attributes:
        nonce: number of its transactions, or of the contracts that it created.
        balance: in wei.
        storage_root: root of its slots, 32 bytes.
        code_hash: hash of its code, 32 bytes.

    """

    nonce: int
    balance: int
    storage_root: bytes = EMPTY_ROOT
    code_hash: bytes = NO_CODE

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read a slim value or a leaf.

        Raises:
            ApplicationError: the value is no account.

        """
        try:
            nonce, balance, root, code = list_of(rlp.decode(value), _FIELDS)
            return cls(
                number(nonce),
                number(balance),
                EMPTY_ROOT if root == b"" else bytes_of(root, HASH),
                NO_CODE if code == b"" else bytes_of(code, HASH),
            )
        except ApplicationError as other:
            raise ApplicationError(f"an account of another form: {other}") from None

    def leaf(self) -> bytes:
        """The value in the state trie."""
        return self._encoded(self.storage_root, self.code_hash)

    def slim(self) -> bytes:
        """The published value."""
        root = b"" if self.storage_root == EMPTY_ROOT else self.storage_root
        return self._encoded(root, b"" if self.code_hash == NO_CODE else self.code_hash)

    def _encoded(self, root: bytes, code: bytes) -> bytes:
        numbers = (rlp.encode_int(self.nonce), rlp.encode_int(self.balance))
        return rlp.wrap([*numbers, rlp.encode_bytes(root), rlp.encode_bytes(code)])
