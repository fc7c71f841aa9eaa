"""State of a chain's first block, from a node that lists its accounts or from the chain's genesis file.

Rules:

1. The state must have the recomputed state root of the first block: any other account or slot gives another root.
2. A node lists accounts by ``debug_accountRange`` (geth), page by page. For other nodes, and for those that know slots
   only by the hash of their names, the file is required: ``#genesis=FILE``, the ``genesis.json`` that the chain's nodes
   start with.
3. An empty state needs neither.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from cardinal.errors import ConfigurationError, IntegrityError, NodeAnswerError
from cardinal_ethereum import StateDelta, rlp
from cardinal_ethereum.checks.trie import EMPTY_ROOT, keyed_root
from cardinal_ethereum.feed.chain.fetch import BlockFetcher
from cardinal_ethereum.from_rpc.block import EncodedBlock
from cardinal_ethereum.from_rpc.structures import hexadecimal, raw
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.account import Account

_ACCOUNTS: Final = 256
"""Accounts in a page; geth returns no more."""

_REMEDY: Final = (
    "name the genesis file of the chain behind # of the node's URL (genesis=/path/genesis.json), or start above that "
    "block (--start 1)"
)


@dataclass(frozen=True, slots=True)
class GenesisAccount:
    """Account of the first block's state; ``storage`` maps the hash of a slot's name to its RLP."""

    nonce: int = 0
    balance: int = 0
    code: bytes = b""
    storage: Mapping[bytes, bytes] = field(default_factory=dict)


class _Listed(msgspec.Struct):
    """Account in the result of ``debug_accountRange``: under its address, or with the address's hash as ``key``."""

    balance: str
    nonce: int = 0
    code: str = "0x"
    storage: dict[str, str] = {}
    key: str | None = None
    address: str | None = None


class _Page(msgspec.Struct):
    accounts: dict[str, _Listed]
    next: str | None = None


class _Allocated(msgspec.Struct):
    """Account in a genesis file. Numbers are hexadecimal or decimal texts, or numbers."""

    balance: str | int = 0
    nonce: str | int = 0
    code: str = "0x"
    storage: dict[str, str] = {}


class _Genesis(msgspec.Struct):
    alloc: dict[str, _Allocated]


async def first_state(fetcher: BlockFetcher, written: EncodedBlock, file: Path | None, chain_id: int) -> StateDelta:
    """Make the state delta of a chain's first block, which is its complete state.

    Arguments:
        fetcher: sends the requests.
        written: the verified first block.
        file: the chain's genesis file; None requests the accounts from the node.
        chain_id: chain id in the paths.

    Raises:
        ConfigurationError: the file is not a genesis file, or of another chain.
        NodeAnswerError: the node does not list its accounts.
        IntegrityError: the listed accounts are not the state of the first block.

    """
    root = raw(written.rpc.state_root)
    if root == EMPTY_ROOT:
        return StateDelta()
    if file is not None:
        accounts = await asyncio.to_thread(_of_file, file)
    else:
        accounts = await _of_node(fetcher)
    delta, actual = _written(accounts, chain_id)
    if actual == root:
        return delta
    if file is not None:
        raise ConfigurationError(
            f"the state of {file} has the root 0x{actual.hex()}, but the node's chain begins with 0x{root.hex()}: name "
            "the genesis file of this chain",
            setting="genesis",
        )
    raise IntegrityError(
        f"the accounts that the node lists for the first block do not match its state root: {_REMEDY}",
        number=written.number,
        block_hash=written.hash,
        check="state",
    )


def _written(accounts: Mapping[bytes, GenesisAccount], chain_id: int) -> tuple[StateDelta, bytes]:
    """The state as paths and values, and its root, which is over the accounts' leaves."""
    updates: dict[str, bytes] = {}
    storage: dict[str, bytes] = {}
    leaves: dict[bytes, bytes] = {}
    for name, listed in sorted(accounts.items()):
        path = f"c/{chain_id:x}/a/{name.hex()}"
        root = keyed_root(dict(sorted(listed.storage.items())))
        account = Account(listed.nonce, listed.balance, root, keccak(listed.code))
        updates[f"{path}/d"], leaves[name] = account.slim(), account.leaf()
        if listed.code:
            updates[f"c/{chain_id:x}/c/{account.code_hash.hex()}"] = listed.code
        storage.update({f"{path}/s/{slot.hex()}": value for slot, value in listed.storage.items()})
    return StateDelta(updates, frozenset(), storage), keyed_root(leaves)


def _slots(named: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """RLP of the values by the hash of the slots' names, as in a trie; zero values are omitted."""
    return {
        keccak(name.rjust(32, b"\0")): rlp.encode_bytes(value.lstrip(b"\0"))
        for name, value in named
        if value.strip(b"\0")
    }


async def _of_node(fetcher: BlockFetcher) -> dict[bytes, GenesisAccount]:
    accounts: dict[bytes, GenesisAccount] = {}
    after: str = ""
    while True:
        page = await _page(fetcher, after)
        with hexadecimal("the list of accounts"):
            fresh = dict(_listed(page))
        if page.next is None or not fresh.keys() - accounts.keys():
            return accounts | fresh
        accounts |= fresh
        after = page.next


async def _page(fetcher: BlockFetcher, after: str) -> _Page:
    """Request a page of accounts; a node returns the position of the next page in base64 and expects hexadecimal."""
    try:
        start = "0x" + base64.b64decode(after, validate=True).hex()
        page = await fetcher.call(_Page, "debug_accountRange", "0x0", start, _ACCOUNTS, *(False, False, True))
    except binascii.Error:
        raise NodeAnswerError("the node returned a malformed position of its next accounts; use another node") from None
    except NodeAnswerError as refused:
        raise NodeAnswerError(
            f"the state of the chain's first block is not available: {refused}; {_REMEDY}", code=refused.code
        ) from refused
    return page or _Page({})


def _listed(page: _Page) -> Iterator[tuple[bytes, GenesisAccount]]:
    for name, rpc in page.accounts.items():
        key = raw(rpc.key) if rpc.key else keccak(raw(rpc.address or name))
        storage = _slots((_bytes(slot), _bytes(value)) for slot, value in rpc.storage.items())
        yield key, GenesisAccount(rpc.nonce, int(rpc.balance), _bytes(rpc.code), storage)


def _of_file(file: Path) -> dict[bytes, GenesisAccount]:
    try:
        read = msgspec.json.decode(file.expanduser().read_bytes(), type=_Genesis)
        return {
            keccak(_bytes(address).rjust(20, b"\0")): GenesisAccount(
                _number(one.nonce),
                _number(one.balance),
                _bytes(one.code),
                _slots((_bytes(slot), _bytes(value)) for slot, value in one.storage.items()),
            )
            for address, one in read.alloc.items()
        }
    except OSError as absent:
        raise ConfigurationError(
            f"the genesis file {file} cannot be read: {absent.strerror}", setting="genesis"
        ) from None
    except (msgspec.DecodeError, ValueError) as wrong:
        raise ConfigurationError(
            f"{file} is not a genesis file, which lists accounts under alloc: {wrong}", setting="genesis"
        ) from wrong


def _bytes(text: str) -> bytes:
    """Bytes of hexadecimal digits, with or without 0x, also of an odd number of digits."""
    digits = text.removeprefix("0x")
    return bytes.fromhex(digits if len(digits) % 2 == 0 else "0" + digits)


def _number(text: str | int) -> int:
    return text if isinstance(text, int) else int(text, 0)
