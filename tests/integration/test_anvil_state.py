"""State deltas on a real anvil node: complete or refused, and their sum is the node's state."""

from __future__ import annotations

from typing import Any

import pytest
from anvil_node import FULL, Anvil, anvil
from ethereum_blocks import keccak, minimal, raw, rlp
from feeding import asynchronous
from storage_contract import CREATING, STORING, TRACER, word

from cardinal.errors import ApplicationError, IntegrityError
from cardinal_ethereum import Account, payload_from_rpc, state_delta, touched, verify
from cardinal_ethereum.model.state import StateDelta

pytestmark = pytest.mark.node

CHAIN_ID = 31337
VANISHING = "0x33ff"
"""Init code that gives everything back and is gone: CALLER, SELFDESTRUCT."""
ELSEWHERE = "0x" + "e5" * 20


class Chain:
    """What one test does to its node."""

    def __init__(self, node: Anvil) -> None:
        self.node = node
        self.accounts: list[str] = []

    async def send(self, sender: int, **fields: str) -> str:
        self.accounts = self.accounts or await self.node.ask("eth_accounts")
        sent = {"from": self.accounts[sender], "gas": hex(200_000), **fields}
        hashed: str = await self.node.ask("eth_sendTransaction", sent)
        return hashed

    async def receipt(self, hashed: str) -> Any:  # noqa: ANN401 - JSON
        return await self.node.ask("eth_getTransactionReceipt", hashed)

    async def requested(self, number: int) -> tuple[Any, Any, Any, Any]:
        """The block with this number written down, its parent, its traces, and its proofs by address."""
        block = await self.node.ask("eth_getBlockByNumber", hex(number), *FULL)
        receipts = await self.node.ask("eth_getBlockReceipts", block["hash"])
        written = verify(block, receipts)
        parent = await self.node.ask("eth_getBlockByHash", block["parentHash"], *FULL)
        traces = await self.node.ask("debug_traceBlockByHash", block["hash"], TRACER)
        proofs = {
            address: [await self.node.ask("eth_getProof", address, slots, at["hash"]) for at in (parent, block)]
            for address, slots in touched(traces, written).items()
        }
        return written, parent, traces, proofs

    async def delta(self, number: int) -> StateDelta:
        written, parent, traces, proofs = await self.requested(number)
        requested = [proof for pair in proofs.values() for proof in pair]
        return state_delta(traces, requested, block=written, parent=parent, chain_id=CHAIN_ID)


async def busy(chain: Chain) -> str:
    """Blocks 2 to 5: transfers, a contract, slots that are set, changed and cleared, one that vanishes.

    The first header of anvil says that its state is empty, which it is not: no delta of block 1 can be proven.
    """
    node = chain.node
    await node.ask("evm_mine")
    await chain.send(0, to=ELSEWHERE, value="0x7")
    created = await chain.send(1, data="0x" + CREATING.hex())
    await node.ask("evm_mine")
    contract: str = (await chain.receipt(created))["contractAddress"]
    for slot in range(5):
        await chain.send(slot, to=contract, data="0x" + (word(slot) + word(slot * 300 + 1)).hex())
    await node.ask("evm_mine")
    await chain.send(2, to=contract, data="0x" + (word(1) + word(0)).hex())
    await chain.send(2, to=contract, data="0x" + (word(2) + word(9)).hex())
    await chain.send(3, to=contract, data="0x" + (word(4) + word(4 * 300 + 1)).hex())
    await chain.send(3, data=VANISHING, value="0x5")
    await node.ask("evm_mine")
    await node.ask("evm_mine")
    return contract


def applied(state: dict[str, bytes], delta: StateDelta) -> None:
    for gone in delta.deletes:
        for path in [path for path in state if path.startswith(gone)]:
            del state[path]
    state.update(delta.updates)
    state.update(delta.storage)


@asynchronous
async def test_the_deltas_of_a_chain_are_the_nodes_state() -> None:
    async with anvil() as node:
        chain = Chain(node)
        contract = await busy(chain)
        state: dict[str, bytes] = {}
        for number in range(2, 6):
            applied(state, await chain.delta(number))
        for address in (contract, ELSEWHERE, *chain.accounts[:4]):
            proof = await node.ask("eth_getProof", address, [], "latest")
            numbers = [minimal(int(proof[name], 16)) for name in ("nonce", "balance")]
            account = rlp([*numbers, raw(proof["storageHash"]), raw(proof["codeHash"])])
            assert Account.decode(state[f"c/7a69/a/{keccak(raw(address)).hex()}/d"]).leaf() == account, address
        assert state[f"c/7a69/c/{keccak(STORING).hex()}"] == STORING
        slots = f"c/7a69/a/{keccak(raw(contract)).hex()}/s/"
        for slot in range(5):
            value = int(await node.ask("eth_getStorageAt", contract, hex(slot), "latest"), 16)
            stored = state[slots + keccak(word(slot)).hex()]
            assert stored == (rlp(minimal(value)) if value else b""), slot
        assert sum(path.startswith(slots) for path in state) == 5


@asynchronous
async def test_what_changed_outside_of_the_hint_is_refused() -> None:
    async with anvil() as node:
        chain = Chain(node)
        await busy(chain)
        # An account that only the node's own command changed: no trace can name it.
        await chain.send(0, to=ELSEWHERE, value="0x1")
        await node.ask("anvil_setBalance", "0x" + "c4" * 20, "0x123456")
        await node.ask("evm_mine")
        with pytest.raises(IntegrityError, match="is incomplete") as caught:
            await chain.delta(6)
        assert (caught.value.check, caught.value.number) == ("state", 6)


@asynchronous
async def test_missing_parts_and_wrong_parents_are_refused() -> None:
    async with anvil() as node:
        chain = Chain(node)
        contract = await busy(chain)
        for number, left_out in ((2, ELSEWHERE), (3, contract), (4, contract)):
            written, parent, traces, proofs = await chain.requested(number)
            some = [proof for address, pair in proofs.items() if address != left_out.lower() for proof in pair]
            with pytest.raises(IntegrityError, match="changed"):
                state_delta(traces, some, block=written, parent=parent, chain_id=CHAIN_ID)
            every = [proof for pair in proofs.values() for proof in pair]
            with pytest.raises(IntegrityError, match="parent"):
                state_delta(traces, every, block=written, parent=parent | {"gasUsed": "0x1"}, chain_id=CHAIN_ID)
        written, parent, traces, proofs = await chain.requested(2)
        every = [proof for pair in proofs.values() for proof in pair]
        for trace in traces:
            trace["result"]["post"] = {}
        with pytest.raises(IntegrityError, match="code"):
            state_delta(traces, every, block=written, parent=parent, chain_id=CHAIN_ID)
        with pytest.raises(ApplicationError, match="prestate"):
            state_delta([{"error": "no"}], every, block=written, parent=parent, chain_id=CHAIN_ID)


@asynchronous
async def test_the_first_block_has_no_delta() -> None:
    async with anvil() as node:
        block = await node.ask("eth_getBlockByNumber", "0x0", *FULL)
        written = verify(block, [])
        with pytest.raises(ApplicationError, match="first block"):
            state_delta([], [], block=written, parent=block, chain_id=CHAIN_ID)
        assert payload_from_rpc(block, [], chain_id=CHAIN_ID, state=StateDelta()).sub_batches == {}
