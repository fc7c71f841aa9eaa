"""State deltas of a feed, and the state of the first block."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anvil_node import anvil
from ethereum_blocks import grow, keccak, minimal, raw, replay, rlp, text
from feeding import QUICK, asynchronous, connected, everything, serving, take
from geth_chains import CHAIN_ID, STORED_AT, prague, prague_of_many
from geth_node import Geth, geth
from hypothesis import given, settings
from recording_proxy import recording_proxy
from storage_contract import CREATING, STORING, TRACER, word

from cardinal.errors import ConfigurationError, IntegrityError, NodeAnswerError
from cardinal_devkit.testing.replay import ReplayChain
from cardinal_ethereum import Account, decode
from cardinal_ethereum.chains import chain_of
from cardinal_ethereum.feed.feed import NodeFeed
from cardinal_ethereum.feed.url import read_url
from cardinal_ethereum.feed.verify.worker_pool import worker_count
from evm_blocks import STATE_SYNC
from evm_generated import Shown, blocks

if TYPE_CHECKING:
    from node_values import Asked

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
    published = Account.decode(payload.updates[f"{path(chain_id, address)}/d"])
    assert published.leaf() == account
    assert published.slim() == payload.updates[f"{path(chain_id, address)}/d"]


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
async def test_states_of_many_blocks_are_requested_at_once_and_nothing_is_requested_twice() -> None:
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
        assert Account.decode(payload.updates[f"{root}/a/{keccak(raw(address)).hex()}/d"]).leaf() == written
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


BEACON_ROOTS = "0x000f3df6d732807ef1319fb7b8bb8522d0beac02"


HISTORY = "0x0000f90827f1c53a10cb7a02335b175320002935"


WITHDRAWALS = "0x00000961ef480eb55e80d19ad83579a64c007002"


CONSOLIDATIONS = "0x0000bbddc7ce488642fb579f8b00f3a590007251"


ONE_WITHDRAWAL = b"\x01" * 48 + (5).to_bytes(8, "big")


ONE_CONSOLIDATION = b"\x01" * 48 + b"\x02" * 48


FEE = 1


RING = 8191


def slots_of(payload: Payload, address: str, chain_id: int) -> dict[str, bytes]:
    """The slots that a payload has of an account, by the hash of their names."""
    own = f"c/{chain_id:x}/a/{keccak(raw(address)).hex()}/s/"
    (batch,) = payload.sub_batches.values()
    assert batch is not None
    return {path.removeprefix(own): value for path, value in batch.updates.items() if path.startswith(own)}


async def assert_slots(node: Asked, payload: Payload, address: str, chain_id: int, slots: set[int]) -> None:
    """These slots, and no other, changed in the block, to what the node says of them."""
    found = slots_of(payload, address, chain_id)
    for slot in slots:
        value = int(await node.ask("eth_getStorageAt", address, hex(slot), hex(payload.number)), 16)
        assert found.pop(keccak(word(slot)).hex()) == (rlp(minimal(value)) if value else b""), (address, slot)
    assert not found, address


async def changed(node: Asked, address: str, number: int, slots: range) -> set[int]:
    """Of these slots, those that differ between a block and the one before it."""

    async def at(slot: int, block: int) -> str:
        return str(await node.ask("eth_getStorageAt", address, hex(slot), hex(block)))

    return {slot for slot in slots if await at(slot, number) != await at(slot, number - 1)}


async def traced(node: Asked, block: dict[str, Any]) -> set[str]:
    """The accounts that traces of transactions name."""
    traces = await node.ask("debug_traceBlockByHash", block["hash"], TRACER)
    return {address for one in traces for side in ("pre", "post") for address in one["result"][side]}


async def built(node: Geth) -> None:
    """Blocks 1 to 5: nothing, a transfer, three requests of one kind and two of the other, and nothing again twice."""
    wallet = node.wallet
    await node.build([], withdrawals=0)
    await node.build([wallet.legacy(SOMEBODY)])
    requests = [wallet.legacy(raw(WITHDRAWALS), FEE, ONE_WITHDRAWAL) for _ in range(3)]
    requests += [wallet.legacy(raw(CONSOLIDATIONS), FEE, ONE_CONSOLIDATION) for _ in range(2)]
    await node.build(requests, withdrawals=0)
    await node.build([], withdrawals=0)
    await node.build([], withdrawals=0)


@pytest.mark.slow  # compiles geth
@pytest.mark.node
@asynchronous
async def test_system_contracts_of_geth_are_in_the_delta_and_nothing_else_of_them(tmp_path: Path) -> None:
    async with geth(tmp_path, prague) as node, connected(node.url + "#state=yes", QUICK) as feed:
        await built(node)
        payloads = await everything(feed.follow(start=1, until=5))
        assert [payload.number for payload in payloads] == [1, 2, 3, 4, 5]
        for payload in payloads:
            block = await node.block(hex(payload.number))
            assert not await traced(node, block) & {BEACON_ROOTS, HISTORY}
            place = int(block["timestamp"], 16) % RING
            await assert_slots(node, payload, BEACON_ROOTS, CHAIN_ID, {place, place + RING})
            root = slots_of(payload, BEACON_ROOTS, CHAIN_ID)[keccak(word(place + RING)).hex()]
            assert root == rlp(minimal(payload.number)), "the beacon root that the chain was told"
            before = payload.number - 1
            hashes = slots_of(payload, HISTORY, CHAIN_ID)
            if before:  # the hash of the first block may already be there
                assert hashes == {keccak(word(before)).hex(): rlp(raw(block["parentHash"]))}
            for queue in (WITHDRAWALS, CONSOLIDATIONS):
                await assert_slots(
                    node, payload, queue, CHAIN_ID, await changed(node, queue, payload.number, range(24))
                )
        asked = payloads[2]
        assert len(slots_of(asked, WITHDRAWALS, CHAIN_ID)) > 3, "a queue that was filled"
        assert len(slots_of(asked, CONSOLIDATIONS, CHAIN_ID)) > 3
        assert slots_of(payloads[3], WITHDRAWALS, CHAIN_ID), "a queue that was emptied by a block of no transaction"


@pytest.mark.node
@asynchronous
async def test_system_contracts_of_anvil_are_in_the_delta_as_far_as_it_has_them() -> None:
    async with anvil("--hardfork", "prague") as node, connected(node.url + "#state=yes", QUICK) as feed:
        await node.mine(3, 1)
        await node.mine(2, 0)
        payloads = await everything(feed.follow(start=2, until=5))
        for payload in payloads:
            block = await node.ask("eth_getBlockByNumber", hex(payload.number), *(False,))
            place, before = int(block["timestamp"], 16) % RING, payload.number - 1
            for address, near in (
                (BEACON_ROOTS, (place, place + RING)),
                (HISTORY, (before, before + 1)),
                (WITHDRAWALS, range(4)),
                (CONSOLIDATIONS, range(4)),
            ):
                due = {slot for slot in near if await changed(node, address, payload.number, range(slot, slot + 1))}
                await assert_slots(node, payload, address, 31337, due)
                assert due == ({before} if address == HISTORY else set()), "what this anvil writes"


POLYGON = 137


def _synced(shown: Shown) -> bool:
    transactions = shown.block["transactions"]
    return bool(transactions) and transactions[-1]["type"] == hex(STATE_SYNC)


async def _published(shown: Shown) -> None:
    last = shown.block["transactions"][-1]
    hidden = {name: value for name, value in last.items() if name != "raw"}
    as_nodes_show_it = shown.block | {"transactions": [*shown.block["transactions"][:-1], hidden]}
    chain = ReplayChain(chain_id=POLYGON)
    chain.set_head(chain.add(as_nodes_show_it, shown.receipts, shown.uncles), announce="silent")
    answers: dict[object, Any] = {last["hash"]: last["raw"]}
    async with serving(chain) as node, connected(node.url, QUICK) as feed:
        assert isinstance(feed, NodeFeed)
        block_hash = bytes.fromhex(shown.block["hash"][2:])
        with pytest.raises(IntegrityError, match="eth_getRawTransactionByHash"):  # a node without the method
            await feed.block(block_hash)
        node._handlers["eth_getRawTransactionByHash"] = lambda params: answers.get(params[0])
        payload = await feed.block(block_hash)
        assert payload is not None
        path = f"c/{POLYGON:x}/b/{block_hash.hex()}/t/{len(shown.block['transactions']) - 1:x}"
        assert payload.updates[path].hex() == last["raw"][2:]
        for wrong in (last["raw"] + "00", "0x7e" + last["raw"][4:], None, "0xzz"):
            answers[last["hash"]] = wrong
            with pytest.raises(IntegrityError):
                await feed.block(block_hash)


@given(blocks(chain_of(POLYGON)).filter(_synced))
@settings(max_examples=5, deadline=None)
def test_bytes_of_a_state_sync_are_the_nodes_and_fit_the_block(shown: Shown) -> None:
    asyncio.run(_published(shown))
