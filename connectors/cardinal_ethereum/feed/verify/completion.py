"""Parts of a block that a node's JSON lacks, or that this release does not know: bytes of transactions, header fields.

Rules:

1. Bytes are requested only for transactions whose fields do not make up their hash, in the ways of :data:`_WAYS`. Only
   bytes with the transaction's hash are taken: the checks decide, as for all other parts.
2. Unknown header fields are looked for only where the known ones do not make up the block's hash.
3. A part that cannot be had is left out, and the checks name it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from cardinal.errors import ApplicationError, NodeAnswerError
from cardinal_ethereum import rlp
from cardinal_ethereum.feed.chain.blocks import header_of, is_named
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcTransaction, raw
from cardinal_ethereum.from_rpc.transactions import lacking_bytes
from cardinal_ethereum.from_rpc.unknown_fields import with_unknown_fields
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp.fields import list_of

if TYPE_CHECKING:
    from cardinal_ethereum.chains import Chain
    from cardinal_ethereum.feed.chain.blocks import Fetched
    from cardinal_ethereum.feed.chain.fetch import BlockFetcher

_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")
_WAYS: Final = ("eth_getRawTransactionByHash", "debug_getRawTransaction")
_WHOLE: Final = "debug_getRawBlock"


def with_header(block: RpcBlock, text: msgspec.Raw | bytes, hint: tuple[str, ...] = ()) -> RpcBlock:
    """The block with the unknown fields of its header, from its JSON, which is parsed again only if they are needed."""
    try:
        if is_named(block, header_of(block).id):
            return block
        answer: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return with_unknown_fields(block, answer, hint)
    except (NodeAnswerError, msgspec.DecodeError, RecursionError):
        return block  # the checks name what is malformed


class Completion:
    """Completion of the blocks of one chain.

    Arguments:
        chain: parameters of the chain.

    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._fields: tuple[str, ...] = ()

    async def of(self, fetched: Fetched, fetcher: BlockFetcher) -> Fetched:
        """The block with what could be had of its missing parts."""
        block = self._with_header(fetched.block, fetched.text)
        if lacking := lacking_bytes(block.transactions, self._chain.family):
            block = await _with_bytes(block, lacking, fetcher)
        return fetched if block is fetched.block else replace(fetched, block=block)

    def _with_header(self, block: RpcBlock, text: msgspec.Raw | bytes) -> RpcBlock:
        completed = with_header(block, text, self._fields)
        names = tuple(name for name, _ in completed.more)
        if names and names != self._fields:
            self._fields = names
            _LOG.info(
                "headers of %s have fields that this release does not know: %s; their hashes fit, so they are "
                "published",
                *(self._chain.name, ", ".join(names)),
            )
        return completed


async def _with_bytes(block: RpcBlock, lacking: Sequence[int], fetcher: BlockFetcher) -> RpcBlock:
    """The block with the bytes of some of its transactions, as far as the node serves them."""
    transactions = list(block.transactions)
    for at in lacking:
        written = await _bytes_of(transactions[at], fetcher)
        if written is None:
            break
        transactions[at] = structs.replace(transactions[at], raw=written)
    else:
        return structs.replace(block, transactions=transactions)
    whole = await _whole(block, fetcher)
    for at in lacking:
        if at < len(whole) and _is_of(transactions[at], whole[at]):
            transactions[at] = structs.replace(transactions[at], raw=f"0x{whole[at].hex()}")
    return structs.replace(block, transactions=transactions)


async def _bytes_of(transaction: RpcTransaction, fetcher: BlockFetcher) -> str | None:
    """Bytes of a transaction as text; None where the node has no right ones."""
    for method in _WAYS:
        try:
            text = await fetcher.call(str, method, transaction.hash)
            if text is not None and _is_of(transaction, raw(text)):
                return text
        except (NodeAnswerError, ValueError):
            continue  # it lacks the method, or served no bytes
    return None


async def _whole(block: RpcBlock, fetcher: BlockFetcher) -> list[bytes]:
    """Bytes of all transactions of a block, in order; empty where the node does not serve them."""
    try:
        text = await fetcher.call(str, _WHOLE, block.number)
        listed = list_of(rlp.decode_list(raw(text))[1])
    except (NodeAnswerError, ApplicationError, ValueError, IndexError):
        return []
    return [one if isinstance(one, bytes) else rlp.encode(one) for one in listed]


def _is_of(transaction: RpcTransaction, written: bytes) -> bool:
    return f"0x{keccak(written).hex()}" == transaction.hash.lower()
