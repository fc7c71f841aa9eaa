"""Blocks from files: ``archive:///folder?chain-id=1``.

A folder holds one file for each block, ``<number>.json.gz``: an object with the members ``block`` and ``receipts`` as
JSON-RPC shows them, and ``uncles`` where the block has any. Such a file is a node's answer, kept; the recorded mainnet
blocks of the tests have this form.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from cardinal.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from cardinal_connectors.base import BlockFeed

__all__ = ["open_feed"]


def open_feed(url: str, *, chain_id: int | None = None) -> BlockFeed:
    """Open the feed of a folder.

    Arguments:
        url: ``archive:///folder``, with ``?chain-id=`` where ``chain_id`` is None.
        chain_id: whose blocks these are: a block does not say it. Where the URL says another one, it is refused.

    Raises:
        ConfigurationError: no folder, one without a block, an option that there is not, or no chain id.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    parts = urlsplit(url)
    options = dict(parse_qsl(f"{parts.query}&{parts.fragment}", keep_blank_values=True))
    named = options.pop("chain-id", None)
    if options:
        raise ConfigurationError(
            f"an archive's URL has no option {min(options)!r}: there is chain-id", setting=min(options)
        )
    if parts.netloc or not parts.path.startswith("/"):
        raise ConfigurationError("an archive is named by its absolute path: archive:///folder", setting="from")
    if named is not None and not named.isdecimal():
        raise ConfigurationError(f"a chain id is a number, not {named[:20]!r}", setting="chain-id")
    chosen = chain_id if named is None else int(named)
    if chosen is None:
        raise ConfigurationError(
            "an archive does not say of which chain it is: write archive:///folder?chain-id=1", setting="chain-id"
        )
    if chain_id is not None and chosen != chain_id:
        raise ConfigurationError(f"the archive is of chain {chosen}, but {chain_id} is asked for", setting="chain-id")
    try:
        from .feed import ArchiveFeed, check_folder  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as absent:
        raise MissingExtraError("A feed of recorded blocks", "evm") from absent
    folder = Path(unquote(parts.path))
    check_folder(folder)
    return ArchiveFeed(folder, chain_id=chosen)
