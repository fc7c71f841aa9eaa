"""The state that a chain begins with: listed by a real geth, read from its genesis file, or refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anvil_node import anvil
from ethereum_blocks import grow, keccak, minimal, raw, replay, rlp
from feeding import QUICK, asynchronous, connected, serving, take
from geth_chains import STORED_AT, prague, prague_of_many
from geth_node import CHAIN_ID, Geth, geth
from storing import STORING, word

from cardinal.apps.evm import decode
from cardinal.errors import ConfigurationError, IntegrityError, NodeAnswerError

if TYPE_CHECKING:
    from cardinal.protocols.streams import Payload

SYSTEM = (
    "0x000f3df6d732807ef1319fb7b8bb8522d0beac02",
    "0x0000f90827f1c53a10cb7a02335b175320002935",
    "0x00000961ef480eb55e80d19ad83579a64c007002",
    "0x0000bbddc7ce488642fb579f8b00f3a590007251",
)


async def first(url: str) -> Payload:
    async with connected(url, QUICK) as feed:
        return (await take(feed.follow(start=0), 1))[0]


async def assert_state(node: Geth, payload: Payload, folder: Path) -> None:
    """Every account of the genesis file is there as the node has it, and nothing else."""
    alloc = json.loads((folder / "genesis.json").read_text())["alloc"]
    root = f"c/{CHAIN_ID:x}"
    accounts = {path for path in payload.updates if path.startswith(f"{root}/a/") and path.endswith("/d")}
    assert accounts == {f"{root}/a/{keccak(raw(address)).hex()}/d" for address in alloc}
    for address in [*SYSTEM, *list(alloc)[-20:]]:
        proof = await node.ask("eth_getProof", address, [], "0x0")
        numbers = [minimal(int(proof[name], 16)) for name in ("nonce", "balance")]
        written = rlp([*numbers, raw(proof["storageHash"]), raw(proof["codeHash"])])
        assert payload.updates[f"{root}/a/{keccak(raw(address)).hex()}/d"] == written
        code = raw(await node.ask("eth_getCode", address, "0x0"))
        assert not code or payload.updates[f"{root}/c/{keccak(code).hex()}"] == code
    assert not payload.sub_batches
    assert decode(payload).encode() == payload


def slots(payload: Payload) -> dict[str, bytes]:
    return {path: value for path, value in payload.updates.items() if "/s/" in path}


@pytest.mark.node
@asynchronous
async def test_geth_lists_all_accounts_a_page_at_a_time(tmp_path: Path) -> None:
    async with geth(tmp_path, prague_of_many) as node:
        payload = await first(node.url + "#state=yes")
        await assert_state(node, payload, tmp_path)
        assert not slots(payload)


@pytest.mark.node
@asynchronous
async def test_slots_are_listed_where_the_node_keeps_their_names(tmp_path: Path) -> None:
    async with geth(tmp_path, prague, "--cache.preimages") as node:
        payload = await first(node.url + "#state=yes")
        await assert_state(node, payload, tmp_path)
    own = f"c/{CHAIN_ID:x}/a/{keccak(raw(STORED_AT)).hex()}/s/"
    assert slots(payload) == {own + keccak(word(slot)).hex(): rlp(minimal(slot * 300 + 1)) for slot in range(5)}
    assert STORING in payload.updates.values()


@pytest.mark.node
@asynchronous
async def test_genesis_file_is_read_where_the_node_does_not_keep_them(tmp_path: Path) -> None:
    async with geth(tmp_path, prague) as node:
        with pytest.raises(IntegrityError, match=r"genesis=/path/genesis\.json.*--start 1") as refused:
            await first(node.url + "#state=yes")
        assert refused.value.check == "state"
        named = f"{node.url}#state=yes&genesis={tmp_path / 'genesis.json'}"
        payload = await first(named)
        await assert_state(node, payload, tmp_path)
        assert len(slots(payload)) == 5
        other = json.loads((tmp_path / "genesis.json").read_text())
        other["alloc"][STORED_AT]["balance"] = "0x1"
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(ConfigurationError, match=r"other\.json has the root .* the genesis file of this chain"):
            await first(f"{node.url}#state=yes&genesis={tmp_path / 'other.json'}")


@pytest.mark.node
@asynchronous
async def test_chain_that_begins_with_nothing_by_its_root_needs_no_list() -> None:
    """So says the first header of anvil, which has accounts all the same: its next block is refused for it."""
    async with anvil() as node, connected(node.url + "#state=yes", QUICK) as feed:
        await node.mine(1)
        payloads = feed.follow(start=0)
        (payload,) = await take(payloads, 1)
        assert not [path for path in payload.updates if "/a/" in path]
        with pytest.raises(IntegrityError, match=r"is empty.*--start 2"):
            await take(payloads, 1)


@asynchronous
async def test_node_that_lists_nothing_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with serving(replay(grow(None, 4))) as node:
        with pytest.raises(NodeAnswerError, match=r"debug_accountRange.*genesis=/path/genesis\.json.*--start 1"):
            await first(node.url + "#state=yes")
        for text, says in (("{", "is not a genesis file"), ('{"alloc": {"0xx": {}}}', "is no genesis file")):
            (tmp_path / "g.json").write_text(text)
            with pytest.raises(ConfigurationError, match=says):
                await first(f"{node.url}#state=yes&genesis={tmp_path / 'g.json'}")
        with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
            await first(f"{node.url}#state=yes&genesis={tmp_path / 'none.json'}")


@pytest.mark.parametrize(
    "answer",
    [
        {"accounts": {"0x" + "11" * 20: {"balance": "1"}}, "next": "not base64!"},
        {"accounts": {"0x" + "11" * 20: {"balance": "one"}}},
        {"accounts": {"0x" + "11" * 20: {"balance": "1", "code": "0xzz"}}},
        {"accounts": {"0x" + "11" * 20: {"balance": "1"}}, "next": "ESIz"},
        {"accounts": {}},
        [],
        None,
    ],
    ids=["next", "balance", "code", "the same for ever", "nobody", "list", "null"],
)
@asynchronous
async def test_lists_of_any_form_are_refused_and_end(answer: object) -> None:
    async with serving(replay(grow(None, 4))) as node:
        node._handlers["debug_accountRange"] = lambda _: answer
        with pytest.raises((IntegrityError, NodeAnswerError)):
            await first(node.url + "#state=yes")
