"""SQL functions for the hex text of Ethereum's tables: ``uint256(hex)`` and ``address(topic)``, for DuckDB.

DuckDB reads at most 128 bits of hex, and its unbounded BIGNUM has no multiplication. So a word is four numbers of 64
bits, these become five numbers below 10^18, and the text of those is a BIGNUM.
"""

from __future__ import annotations

from typing import Final

_HEX_DIGITS: Final = 64
_LIMB_DIGITS: Final = 16
_LIMBS: Final = _HEX_DIGITS // _LIMB_DIGITS
_BASE: Final = 10**18
"""With it the sum of four products of 64 bits and a carry stay within HUGEINT: 4 * 2^64 * 10^18 < 2^127."""
_PARTS: Final = 5

_TEXT: Final = "CASE typeof(word) WHEN 'BLOB' THEN '0x' || hex(word) ELSE word::VARCHAR END"
_WORD: Final = "^(0[xX][0-9a-fA-F]{1,64}|[0-9a-fA-F]{64})$"
"""A number without 0x counts in full length only: a shorter one may be decimal."""
_PLACE: Final = "^(0[xX])?[0-9a-fA-F]*[0-9a-fA-F]{40}$"


def duckdb_macros(create: str, schema: str = "") -> tuple[str, ...]:
    """The statements that create the functions.

    Arguments:
        create: the beginning of each, such as ``CREATE TEMP MACRO``.
        schema: the schema with a dot at its end, empty for the default one.

    """
    digits = f"lpad(regexp_replace({_TEXT}, '^0[xX]', ''), {_HEX_DIGITS}, '0')"
    # Most amounts fit into 128 bits, which DuckDB reads by itself in a tenth of the time.
    low = f"('0x' || right({digits}, {_HEX_DIGITS // 2}))::UHUGEINT::BIGNUM"
    value = f"CASE WHEN left({digits}, {_HEX_DIGITS // 2}) = repeat('0', {_HEX_DIGITS // 2}) THEN {low} "
    value += f"ELSE {_decimal(digits)}::BIGNUM END"
    number = f"CASE WHEN regexp_full_match({_TEXT}, '{_WORD}') THEN {value} END"
    place = f"CASE WHEN regexp_full_match({_TEXT}, '{_PLACE}') THEN '0x' || lower(right({_TEXT}, 40)) END"
    return (f"{create} {schema}uint256(word) AS {number};", f"{create} {schema}address(word) AS {place};")


def _decimal(digits: str) -> str:
    """The decimal text of 64 hexadecimal digits."""
    limbs = [f"('0x' || substr(d, {1 + at * _LIMB_DIGITS}, {_LIMB_DIGITS}))::UBIGINT::HUGEINT" for at in range(_LIMBS)]
    weights = [1 << (64 * power) for power in reversed(range(_LIMBS))]
    parts = [
        " + ".join(f"l[{at}] * {weight // _BASE**part % _BASE}" for at, weight in enumerate(weights, 1))
        for part in range(_PARTS)
    ]
    # Every part takes from the one before it what that has above the base.
    carried = f"list_reduce([{', '.join(f'[{part}]' for part in parts)}], "
    carried += f"lambda c, p: list_append(c, p[1] + c[-1] // {_BASE}))"
    padded = f"list_transform(list_reverse({carried}), lambda c: lpad((c % {_BASE})::VARCHAR, 18, '0'))"
    per_limbs = f"list_transform([[{', '.join(limbs)}]], lambda l: array_to_string({padded}, ''))[1]"
    return f"list_transform([{digits}], lambda d: {per_limbs})[1]"
