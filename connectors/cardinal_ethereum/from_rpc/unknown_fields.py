"""Header fields of forks that this release does not know.

A node's answer has them beside fields that are no part of the header, and in no order: the block's hash decides which
of them the header has, in which order, and whether each is a number or data. They follow the known ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, permutations, product
from typing import Any, Final

import msgspec

from cardinal.errors import ApplicationError
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp import encode_bytes, encode_int, list_head

from .header import encode_header, known_fields
from .structures import RpcBlock, RpcHeader

MOST_FIELDS: Final = 5
"""Unknown fields that a header can have."""

MOST_ATTEMPTS: Final = 20_000
"""Hashes that are computed for a block: enough for five of nine unknown fields."""

_LONGEST: Final = 4096
_WORD: Final = 32
_LONG_LIST: Final = 0xF7
"""A first byte above it counts the bytes of a list's length."""

NOT_IN_HEADERS: Final = frozenset(
    {
        *("hash", "size", "totalDifficulty", "transactions", "uncles", "withdrawals", "author", "sealFields"),
        *("step", "signature", "auraStep", "auraSeal", "requestsRoot", "dataGasUsed", "excessDataGas"),
        *("l1BlockNumber", "sendCount", "sendRoot"),  # Arbitrum: parts of the mix hash and the extra data
        *("milliTimestamp", "timestampMillis", "timestampMillisPart", "blockTimestamp"),
        *("mainBlockGeneralGasLimit", "sharedGasLimit"),  # Tempo: in a list around the header
        *("requests", "blockAccessList", "epochSnarkData", "randomness", "isFinalized", "proposerIndex"),
        *("validators", "nextValidators", "committedSeals", "calls", "baseFeePerBlobGas", "blobGasPrice"),
    }
)
"""Names in answers for blocks that no header has."""

_KNOWN: Final = frozenset(RpcHeader.__struct_encode_fields__)


def with_unknown_fields(block: RpcBlock, answer: Mapping[str, Any], hint: tuple[str, ...] = ()) -> RpcBlock:
    """The block with the unknown fields of its header, if they make up its hash; else with their names alone.

    Arguments:
        block: from ``answer``.
        answer: the node's answer for it; values may be unparsed.
        hint: names of the fields of another block of the chain, tried first.

    """
    beyond = known_fields(block)[1]
    texts = {name: _text(value) for name, value in answer.items() if name not in NOT_IN_HEADERS and name not in _KNOWN}
    texts |= {name: _text(answer.get(name)) for name in beyond}
    encodings = {name: _encodings(text) for name, text in texts.items() if text is not None}
    unknown = tuple(sorted(name for name, items in encodings.items() if items))
    if not unknown:
        return block
    try:
        wanted, plain = bytes.fromhex(block.hash[2:]), encode_header(block)
    except (ApplicationError, ValueError):
        return block  # the checks name what is malformed
    if keccak(plain) == wanted:
        return block
    # The known fields stay as they are: only what follows them is encoded for each attempt.
    fields = plain[1 if plain[0] < _LONG_LIST else 1 + plain[0] - _LONG_LIST :]
    for more in islice(_choices(encodings, unknown, hint), MOST_ATTEMPTS):
        items = fields + bytes.fromhex("".join(item for _, item in more))
        if keccak(list_head[len(items)] + items) == wanted:
            return msgspec.structs.replace(block, more=more)
    return msgspec.structs.replace(block, unknown=unknown)


def _choices(
    encodings: Mapping[str, tuple[str, ...]], unknown: tuple[str, ...], hint: tuple[str, ...]
) -> Iterator[tuple[tuple[str, str], ...]]:
    """Ordered subsets of the unknown fields with their encodings, the smallest first: a fork adds one or two."""
    orders: list[Iterator[tuple[str, ...]]] = [iter([hint])] if hint and encodings.keys() >= set(hint) else []
    orders += [permutations(unknown, count) for count in range(1, min(MOST_FIELDS, len(unknown)) + 1)]
    for names in (each for some in orders for each in some):
        for items in product(*[encodings[name] for name in names]):
            yield tuple(zip(names, items, strict=True))


def _text(value: Any) -> str | None:  # noqa: ANN401 -- JSON
    """A text, parsed or not; None for anything else."""
    if isinstance(value, msgspec.Raw):
        if len(value) > _LONGEST:
            return None
        value = msgspec.json.decode(value)
    return value if isinstance(value, str) and len(value) <= _LONGEST else None


def _encodings(text: str | None) -> tuple[str, ...]:
    """RLP of a text as a number and as data, as hexadecimal text; none for another text."""
    if text is None or not text.startswith("0x"):
        return ()
    digits = text[2:]
    try:
        number = bytes.fromhex(digits.rjust(len(digits) + len(digits) % 2, "0"))
    except ValueError:
        return ()
    found: dict[str, None] = {}
    if digits and len(number.lstrip(b"\0")) <= _WORD:
        found[encode_int(int.from_bytes(number, "big")).hex()] = None
    if len(digits) % 2 == 0:
        found[encode_bytes(number).hex()] = None
    return tuple(found)
