"""Gas of a block: the sum of its receipts against its header."""

from __future__ import annotations


def fits(header: int, receipts: int, *, amsterdam: bool) -> bool:
    """True if a header's gas follows from the sum of its receipts' gas.

    Until Amsterdam they are equal. From Amsterdam on, receipts count gas after refunds, and the header the larger one
    of two sums before refunds: gas of execution and gas of new state (EIP-7778, EIP-8037). Receipts do not have the
    parts, but bound the header: each sum is at most all the gas before refunds, which are at most a fifth of it, and
    both sums together are at least the receipts'.

    Arguments:
        header: gas of the header.
        receipts: sum of the receipts' gas.
        amsterdam: whether the header has a field of that fork.

    """
    if not amsterdam:
        return header == receipts
    return receipts <= 2 * header and 4 * header <= 5 * receipts
