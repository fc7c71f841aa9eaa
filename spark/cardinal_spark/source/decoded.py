"""ABI of ``decoded_logs``, parsed from the text of its option."""

from __future__ import annotations

import json
from functools import lru_cache

from cardinal.errors import ConfigurationError
from cardinal_ethereum import Abi


@lru_cache(maxsize=4)
def abi_of(text: str) -> Abi:
    """The signatures in a text: separated by ``;``, or a JSON ABI, also within a compiler's output.

    Raises:
        ConfigurationError: it holds no event.

    """
    if text.lstrip().startswith(("[", "{")):
        try:
            parsed = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"abi is not JSON: {error}", setting="abi") from None
        abi = Abi.from_json(parsed.get("abi", ()) if isinstance(parsed, dict) else parsed)
    else:
        abi = Abi.from_signatures(part for part in map(str.strip, text.split(";")) if part)
    if not any(signature.kind == "event" for signature in abi.signatures):
        raise ConfigurationError(
            "abi must hold an event, as in 'event Transfer(address indexed from, address indexed to, uint256 value)'",
            setting="abi",
        )
    return abi
