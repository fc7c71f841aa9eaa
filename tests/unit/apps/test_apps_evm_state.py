"""State deltas of generated states: created and removed accounts, code, and slots; complete or refused."""

from __future__ import annotations

from typing import Any

import pytest

from cardinal.errors import ApplicationError, IntegrityError
from cardinal_ethereum import Account, payload_from_rpc, rlp, state_delta, touched, verify
from cardinal_ethereum.checks.trie import EMPTY_ROOT
from cardinal_ethereum.from_rpc.block import EncodedBlock
from cardinal_ethereum.from_rpc.header import encode_header
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.rlp import minimal_bytes
from tries import Grown

NO_CODE = keccak(b"")
CODE = b"\x60\x01"
EMPTY = "0x" + EMPTY_ROOT.hex()
ADDRESSES = [bytes([number]) * 20 for number in range(1, 30)]
OLD, NEW, GONE, RICH = ADDRESSES[:4]


def account(nonce: int, balance: int, storage: bytes = EMPTY_ROOT, code: bytes = b"") -> bytes:
    return rlp.encode([minimal_bytes(nonce), minimal_bytes(balance), storage, keccak(code)])


def slot(number: int) -> bytes:
    return keccak(number.to_bytes(32, "big"))


def header(root: bytes, number: int, parent: bytes) -> dict[str, Any]:
    zero, nothing = "0x" + "00" * 32, "0x0"
    made = {"parentHash": "0x" + parent.hex(), "miner": "0x" + RICH.hex(), "stateRoot": "0x" + root.hex()}
    made |= {"sha3Uncles": "0x" + keccak(b"\xc0").hex(), "transactionsRoot": EMPTY, "receiptsRoot": EMPTY}
    made |= {"logsBloom": "0x" + "00" * 256, "number": hex(number), "extraData": "0x", "mixHash": zero}
    made |= dict.fromkeys(("difficulty", "gasLimit", "gasUsed", "timestamp"), nothing) | {"nonce": "0x" + "00" * 8}
    return made | {"hash": "0x" + keccak(encode_header(made)).hex(), "transactions": [], "uncles": []}


class States:
    """Two states, the blocks that hold them, and the proofs of some addresses and slots."""

    def __init__(self, before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
        self.tries = [Grown({keccak(address): leaf for address, leaf in state.items()}) for state in (before, after)]
        self.parent = header(self.tries[0].root, 6, bytes(32))
        block = header(self.tries[1].root, 7, bytes.fromhex(self.parent["hash"][2:]))
        self.block: EncodedBlock = verify(block, [])

    def proofs(self, *addresses: bytes, slots: tuple[tuple[Grown, Grown, bytes], ...] = ()) -> list[dict[str, Any]]:
        """As ``eth_getProof`` answers; a slot is named with the tries of its account."""
        found = [{"accountProof": self._texts(trie, keccak(one))} for one in addresses for trie in self.tries]
        storage = [{"proof": self._texts(trie, key)} for *both, key in slots for trie in both]
        return [*found, {"storageProof": storage}]

    @staticmethod
    def _texts(trie: Any, key: Any) -> list[str]:  # noqa: ANN401 -- both are what they are named
        return ["0x" + node.hex() for node in trie.proof(key)]

    def delta(self, proofs: list[dict[str, Any]], traces: list[dict[str, Any]] | None = None) -> Any:  # noqa: ANN401
        return state_delta(traces or [], proofs, block=self.block, parent=self.parent, chain_id=1)


def path(address: bytes, more: str = "") -> str:
    return f"c/1/a/{keccak(address).hex()}{more}"


CROWD = {address: account(1, 5) for address in ADDRESSES[4:]}


def test_accounts_that_changed_came_and_went() -> None:
    before = CROWD | {OLD: account(1, 10), GONE: account(3, 7, code=CODE)}
    after = CROWD | {OLD: account(2, 9), NEW: account(0, 8)}
    states = States(before, after)
    delta = states.delta(states.proofs(OLD, NEW, GONE))
    assert delta.updates == {path(OLD, "/d"): Account(2, 9).slim(), path(NEW, "/d"): Account(0, 8).slim()}
    assert {Account.decode(value).leaf() for value in delta.updates.values()} == {account(2, 9), account(0, 8)}
    assert delta.deletes == {path(GONE)}
    assert delta.storage == {}
    payload = payload_from_rpc(states.block.rpc, [], chain_id=1, state=delta)  # type: ignore[arg-type]  # a structure
    assert payload.deletes == delta.deletes


def test_slots_are_reported_one_by_one_and_a_cleared_one_is_empty() -> None:
    old = Grown({slot(1): rlp.encode(b"\x07"), slot(2): rlp.encode(b"\x08"), slot(9): b"\x09"})
    new = Grown({slot(2): rlp.encode(b"\xff\x01"), slot(3): b"\x80", slot(9): b"\x09"})
    states = States(CROWD | {OLD: account(1, 1, old.root)}, CROWD | {OLD: account(1, 1, new.root)})
    every = tuple((old, new, slot(number)) for number in (1, 2, 3))
    delta = states.delta(states.proofs(OLD, slots=every))
    values = {number: delta.storage.get(path(OLD, f"/s/{slot(number).hex()}")) for number in (1, 2, 3, 9)}
    assert values == {1: b"", 2: rlp.encode(b"\xff\x01"), 3: b"", 9: None}
    for left_out in range(3):
        some = (*every[:left_out], *every[left_out + 1 :])
        with pytest.raises(IntegrityError, match="changed"):
            states.delta(states.proofs(OLD, slots=some))


def test_new_code_must_be_there_and_is_published_under_its_hash() -> None:
    states = States(CROWD, CROWD | {NEW: account(1, 0, code=CODE)})
    proofs = states.proofs(NEW)
    said = {"pre": {}, "post": {"0x" + NEW.hex(): {"nonce": 1, "code": "0x" + CODE.hex()}}}
    for trace in (said, {"txHash": "0x01", "result": said}):
        assert states.delta(proofs, [trace]).updates[f"c/1/c/{keccak(CODE).hex()}"] == CODE
    said["post"]["0x" + NEW.hex()]["code"] = "0x6002"
    with pytest.raises(IntegrityError, match=f"code .*{keccak(CODE).hex()}"):
        states.delta(proofs, [said])


def test_what_changed_beside_the_proofs_is_refused_with_its_block() -> None:
    states = States(CROWD, CROWD | {OLD: account(1, 1), RICH: account(0, 1)})
    with pytest.raises(IntegrityError) as caught:
        states.delta(states.proofs(OLD))
    assert (caught.value.check, caught.value.number, caught.value.hash) == ("state", 7, states.block.hash)


def test_an_account_of_another_form_is_refused() -> None:
    slim = rlp.encode([b"\x01", b"", b"", b""])  # is published, and is never in a trie
    for other in (rlp.encode([b"", b"", b""]), rlp.encode([b"", b"", b"\1", b"\2"]), slim, b"\x01"):
        states = States(CROWD, CROWD | {OLD: other})
        with pytest.raises(ApplicationError, match="form"):
            states.delta(states.proofs(OLD))


def test_answers_that_are_no_proofs_are_refused() -> None:
    states = States(CROWD, CROWD | {OLD: account(1, 1)})
    with pytest.raises(ApplicationError, match="proof"):
        states.delta([{"accountProof": ["12"]}])
    with pytest.raises(ApplicationError, match="prestate"):
        states.delta([], [{"result": {"pre": 5}}])


def test_requests_cover_what_tracers_leave_out() -> None:
    states = States(CROWD, CROWD)
    trace = {"pre": {"0x" + OLD.hex(): {"storage": {"0x" + "00" * 31 + "05": "0x1"}}}, "post": {"0x" + NEW.hex(): {}}}
    requested = touched([trace], states.block)
    assert requested["0x" + OLD.hex()] == ["0x" + "00" * 31 + "05"]
    assert requested["0x" + NEW.hex()] == []
    assert "0x" + RICH.hex() in requested  # who earns the fees
    assert requested["0x0000f90827f1c53a10cb7a02335b175320002935"] == [f"0x{6:064x}"]
    assert requested["0x000f3df6d732807ef1319fb7b8bb8522d0beac02"] == [f"0x{0:064x}", f"0x{8191:064x}"]
    assert all(len(text) == 66 for slots in requested.values() for text in slots)
