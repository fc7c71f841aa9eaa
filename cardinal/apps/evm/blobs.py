"""What a unit of blob gas costs in a block (EIP-4844).

It follows from the header's ``excess_blob_gas`` by a factor that forks change at times of their own on every chain
(EIP-7840): no block says it, so whoever wants the price says the factor.
"""

from __future__ import annotations

from typing import Final

from cardinal.errors import ConfigurationError

CANCUN: Final = 3_338_477
"""The factor of Cancun (EIP-4844)."""
PRAGUE: Final = 5_007_716
"""The factor of Prague (EIP-7691)."""


def blob_gas_price(excess_blob_gas: int, update_fraction: int, *, least: int = 1) -> int:
    """Wei for each unit of blob gas, of which a blob has 131,072.

    Arguments:
        excess_blob_gas: as the block's header has it.
        update_fraction: the chain's ``baseFeeUpdateFraction`` at the block's time.
        least: the chain's lowest price in wei.

    Raises:
        ConfigurationError: a fraction or price that no chain can have.

    """
    if update_fraction < 1 or least < 1:
        raise ConfigurationError(
            f"a chain's update fraction and lowest price are 1 or more, not {update_fraction} and {least}",
            setting="update_fraction",
        )
    # e to the power of excess / fraction in whole numbers, by its series, as the EIP writes it.
    total, term, step = 0, least * update_fraction, 1
    while term:
        total += term
        term = term * excess_blob_gas // (update_fraction * step)
        step += 1
    return total // update_fraction
