"""State deltas of a feed, and the state of the first block."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anvil_node import anvil
from ethereum_blocks import grow, keccak, minimal, raw, replay, rlp, text
from feeding import QUICK, asynchronous, connected, everything, serving, take
from geth_node import CHAIN_ID, geth
from recording_proxy import recording_proxy
from storage_contract import CREATING, word

from cardinal.errors import ConfigurationError, IntegrityError, NodeAnswerError
from cardinal_connectors.ethereum.url import read_url
from cardinal_connectors.ethereum.verify.worker_pool import worker_count

if TYPE_CHECKING:
    from node_values import Asked

    from cardinal.protocols.streams import Payload
import json
from typing import TYPE_CHECKING

from geth_chains import STORED_AT, prague, prague_of_many
from geth_node import Geth
from storage_contract import STORING

from cardinal.apps.evm import decode

if TYPE_CHECKING:
    from cardinal.protocols.streams import Payload


ANVIL = 31337
SOMEBODY = b"\x22" * 20
PAID = "0x" + "77" * 20
"""Who gets geth's withdrawals: an account that no transaction touches."""


def path(chain_id: int, address: str) -> str:
    return f"c/{chain_id:x}/a/{keccak(raw(address)).hex()}"


async def assert_account(node: Asked, chain_id: int, payload: Payload, address: str) -> None:
    """What is published of an account is what the node says of it at that block."""
    at = hex(payload.number)
    balance = int(await node.ask("eth_getBalance", address, at), 16)
    nonce = await node.ask("eth_getTransactionCount", address, at)
    proof = await node.ask("eth_getProof", address, [], at)
    account = rlp([minimal(int(nonce, 16)), minimal(balance), raw(proof["storageHash"]), raw(proof["codeHash"])])
    assert payload.updates[f"{path(chain_id, address)}/d"] == account


@pytest.mark.node
@asynchronous
async def test_anvil_accounts_code_and_storage_are_those_of_the_node() -> None:
    async with anvil() as node, connected(node.ws_url + "#state=yes", QUICK) as feed:
        accounts = await node.ask("eth_accounts")
        await node.ask("evm_mine")
        created = await node.ask(
            "eth_sendTransaction", {"from": accounts[1], "gas": hex(200_000), "data": text(CREATING)}
        )
        await node.ask("evm_mine")
        contract = (await node.ask("eth_getTransactionReceipt", created))["contractAddress"]
        for slot in range(3):
            stored = {"from": accounts[slot], "gas": hex(200_000), "to": contract}
            await node.ask("eth_sendTransaction", stored | {"data": text(word(slot) + word(slot * 300 + 1))})
        await node.ask("evm_mine")
        payloads = await everything(feed.follow(start=2, until=3))
        creation, storing = payloads
        await assert_account(node, ANVIL, creation, accounts[1])
        await assert_account(node, ANVIL, creation, contract)
        code = raw(await node.ask("eth_getCode", contract, "latest"))
        assert creation.updates[f"c/{ANVIL:x}/c/{keccak(code).hex()}"] == code
        for account in (*accounts[:3], contract):
            await assert_account(node, ANVIL, storing, account)
        (storage,) = [batch for batch in storing.sub_batches.values() if batch is not None]
        slots = [value for key, value in storage.updates.items() if key.startswith(path(ANVIL, contract))]
        assert len(slots) == 3


@pytest.mark.slow  # compiles geth
@pytest.mark.node
@asynchronous
async def test_geth_withdrawals_and_rewards_are_in_the_delta(tmp_path: Path) -> None:
    async with geth(tmp_path) as node, connected(node.url + "#state=yes", QUICK) as feed:
        for _ in range(3):
            await node.build([node.wallet.legacy(SOMEBODY)], withdrawals=2)
        payloads = await everything(feed.follow(start=1, until=3))
        for payload in payloads:
            for address in (PAID, text(SOMEBODY), text(node.wallet.address)):
                await assert_account(node, CHAIN_ID, payload, address)
            assert payload.sub_batches


@pytest.mark.node
@asynchronous
async def test_orphan_that_is_gone_before_it_is_traced_is_left_for_the_chain() -> None:
    async with anvil() as node, connected(node.url + "#state=yes", QUICK) as feed:
        await node.mine(8)
        payloads = feed.follow(start=2, until=12)
        taken = await take(payloads, 4)
        await node.ask("anvil_reorg", 6, [])
        await node.mine(6)
        taken += await everything(payloads)
        final = await node.chain()
        by_hash = {payload.hash: payload for payload in taken}
        for block in final[3:13]:
            payload = by_hash[raw(block["hash"])]
            for address in {transaction["from"] for transaction in block["transactions"]}:
                await assert_account(node, ANVIL, payload, address)


@asynchronous
async def test_node_that_does_not_trace_is_refused_with_its_own_words() -> None:
    async with serving(replay(grow(None, 4))) as node, connected(node.url + "#state=yes", QUICK) as feed:
        payloads = feed.follow(start=1, until=3)
        with pytest.raises(NodeAnswerError, match=r"need a node that traces blocks.*debug_traceBlockByHash"):
            await take(payloads, 1)


@asynchronous
async def test_delta_that_does_not_explain_the_state_root_is_refused() -> None:
    served = replay(grow(None, 4))
    async with serving(served) as node, connected(node.url + "#state=yes", QUICK) as feed:
        made: dict[str, Any] = {"debug_traceBlockByHash": [], "eth_getProof": {"accountProof": [], "storageProof": []}}
        for method, answer in made.items():
            node._handlers[method] = lambda _, answer=answer: answer  # type: ignore[misc] # bound by the loop
        payloads = feed.follow(start=1, until=3)
        with pytest.raises(IntegrityError) as refused:
            await take(payloads, 1)
    assert refused.value.check == "state"


@pytest.mark.node
@asynchronous
async def test_states_of_many_blocks_are_asked_for_at_once_and_nothing_is_asked_twice() -> None:
    async with anvil() as node, recording_proxy(node.url) as proxy:
        await node.mine(81, 1)
        settings = replace(QUICK, walk=4)
        async with connected(proxy.url + "#state=yes", settings) as feed:
            payloads = await everything(feed.follow(start=2, until=81))
        assert len(payloads) == 80
        assert all(payload.sub_batches for payload in payloads)
        traces = [one["params"][0] for one in proxy.calls if one["method"] == "debug_traceBlockByHash"]
        assert sorted(traces) == sorted(f"0x{payload.hash.hex()}" for payload in payloads)
        proofs = [(one["params"][0], one["params"][2]) for one in proxy.calls if one["method"] == "eth_getProof"]
        assert len(proofs) < 1.2 * len(set(proofs)), "between two batches a block is asked for by both"
        assert len(proxy.requests) < len(payloads), "before, each block took three requests and more"


def test_deltas_are_made_without_other_processes() -> None:
    for options in ("state=yes", "state=yes&workers=0"):
        assert worker_count(10**6, read_url(f"http://a#{options}")[1]) == 0
    assert worker_count(10**6, read_url("http://a#workers=2")[1]) == 2
    with pytest.raises(ConfigurationError, match="leave workers out"):
        read_url("http://a#state=yes&workers=2")


# --- the state that a chain begins with: listed by a real geth, read from its genesis file, or refused with w ---


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


@pytest.mark.slow  # compiles geth
@pytest.mark.node
@asynchronous
async def test_geth_lists_all_accounts_a_page_at_a_time(tmp_path: Path) -> None:
    async with geth(tmp_path, prague_of_many) as node:
        payload = await first(node.url + "#state=yes")
        await assert_state(node, payload, tmp_path)
        assert not slots(payload)


@pytest.mark.slow  # compiles geth
@pytest.mark.node
@asynchronous
async def test_slots_are_listed_where_the_node_keeps_their_names(tmp_path: Path) -> None:
    async with geth(tmp_path, prague, "--cache.preimages") as node:
        payload = await first(node.url + "#state=yes")
        await assert_state(node, payload, tmp_path)
    own = f"c/{CHAIN_ID:x}/a/{keccak(raw(STORED_AT)).hex()}/s/"
    assert slots(payload) == {own + keccak(word(slot)).hex(): rlp(minimal(slot * 300 + 1)) for slot in range(5)}
    assert STORING in payload.updates.values()


@pytest.mark.slow  # compiles geth
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
        for text, says in (("{", "is not a genesis file"), ('{"alloc": {"0xx": {}}}', "is not a genesis file")):
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
