"""Blocks from files: ``archive:///folder?chain-id=1``.

A folder holds one file for each block, ``<number>.json.gz``: an object with the members ``block`` and ``receipts`` in
the form of JSON-RPC, and ``uncles`` where the block has any.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, unquote

from pydantic import Field, PositiveInt

from cardinal.config.options import Options
from cardinal.config.url import NodeUrl, parse_node_url
from cardinal.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from cardinal.feeds import BlockFeed

__all__ = ["open_feed"]


class _ArchiveOptions(Options):
    chain_id: Annotated[PositiveInt | None, Field(alias="chain-id")] = None


def open_feed(url: str | NodeUrl, *, chain_id: int | None = None) -> BlockFeed:
    """Open the feed of a folder.

    Arguments:
        url: ``archive:///folder``, with ``?chain-id=`` where ``chain_id`` is None.
        chain_id: the chain of these blocks, which do not contain it. A different one in the URL is refused.

    Raises:
        ConfigurationError: no folder, one without a block, an unknown option, or no chain id.
        MissingExtraError: the extra ``evm`` is not installed.

    """
    url = parse_node_url(url)
    parts = url.nodes[0].parts
    if len(url.nodes) > 1 or parts.netloc or not parts.path.startswith("/"):
        raise ConfigurationError("an archive is named by its absolute path: write archive:///folder", setting="from")
    options = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **url.options}
    named = _ArchiveOptions.read(options, "archive:// URLs").chain_id
    chosen = named or chain_id
    if chosen is None:
        raise ConfigurationError(
            "blocks of an archive do not contain their chain id: write archive:///folder?chain-id=1",
            setting="chain-id",
        )
    if chain_id is not None and chosen != chain_id:
        raise ConfigurationError(f"the archive is of chain {chosen}, and {chain_id} is required", setting="chain-id")
    try:
        from .feed import ArchiveFeed, check_folder  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as absent:
        raise MissingExtraError("a feed of recorded blocks", "evm") from absent
    folder = Path(unquote(parts.path))
    check_folder(folder)
    return ArchiveFeed(folder, chain_id=chosen)
