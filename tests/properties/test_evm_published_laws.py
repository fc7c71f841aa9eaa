"""Published blocks: whatever an honest publisher makes of a block is accepted, and no change of one value of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cardinal.errors import ApplicationError
from cardinal.protocols.streams import Finality, Payload
from cardinal_ethereum import payload_from_rpc, rlp, verify_payload
from cardinal_ethereum.chains import CHAINS, Chain
from cardinal_ethereum.keccak import keccak
from cardinal_ethereum.model.state import StateDelta
from cardinal_ingest.body import items_of, payload_of
from evm_generated import Shown, blocks
from examples import examples, few
from recorded_blocks import RecordedBlock, cases, mainnet, real, recordings

EVERY = pytest.mark.parametrize("chain", few(9, CHAINS.values()), ids=lambda chain: chain.name)

names = st.binary(min_size=32, max_size=32).map(bytes.hex)
codes = st.binary(max_size=40)


@st.composite
def states(draw: st.DrawFn, chain: Chain) -> StateDelta:
    root = f"c/{chain.chain_id:x}"
    accounts = draw(st.dictionaries(names, st.binary(min_size=1, max_size=9), max_size=2))
    updates = {f"{root}/a/{name}/d": value for name, value in accounts.items()}
    updates |= {f"{root}/c/{keccak(code).hex()}": code for code in draw(st.lists(codes, max_size=2))}
    storage = {f"{root}/a/{draw(names)}/s/{draw(names)}": draw(codes) for _ in range(draw(st.integers(0, 2)))}
    return StateDelta(updates, frozenset(f"{root}/a/{name}" for name in draw(st.sets(names, max_size=2))), storage)


@st.composite
def published(draw: st.DrawFn, chain: Chain) -> Payload:
    """A block of a chain as an honest publisher makes it of its node's."""
    shown: Shown = draw(blocks(chain))
    rooted = any("root" in receipt for receipt in shown.receipts)
    assume(not rooted or int(shown.block["number"], 16) < chain.status_from)
    total = int(shown.block.get("totalDifficulty", "0x0"), 16)
    return payload_from_rpc(
        *(shown.block, shown.receipts),
        chain_id=chain.chain_id,
        finality=draw(st.none() | st.builds(Finality, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))),
        state=draw(st.none() | states(chain)),
        uncles=shown.uncles,
        total_difficulty=None if shown.merged else max(total, int(shown.block["difficulty"], 16)),
    )


def refusal(payload: Payload, chain: Chain) -> str | None:
    """Why a payload is refused; None where it is accepted."""
    try:
        verify_payload(payload, chain)
    except ApplicationError as error:
        return str(error)
    return None


@EVERY
@settings(max_examples=6, deadline=None)
@given(drawn=st.data())
def test_a_block_that_an_honest_publisher_sends_is_accepted(chain: Chain, drawn: st.DataObject) -> None:
    payload = drawn.draw(published(chain))
    verify_payload(payload_of(items_of(payload, chain_id=chain.chain_id)).payload, chain)


@cache
def payloads(client: Callable[[], list[RecordedBlock]]) -> list[tuple[Payload, Chain]]:
    return [(one.payload(), one.chain) for one in client()]


@pytest.mark.parametrize("recorded", [*cases(), *real(mainnet())])
def test_recorded_blocks_are_accepted(recorded: RecordedBlock) -> None:
    chain = recorded.chain
    verify_payload(payload_of(items_of(recorded.payload(), chain_id=chain.chain_id)).payload, chain)


# --- one value changed ------------------------------------------------------------------------------------------


def leaves(item: rlp.Decoded, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Places of all byte strings in RLP; an empty list is one too."""
    if isinstance(item, bytes) or not item:
        return [path]
    return [found for at, part in enumerate(item) for found in leaves(part, (*path, at))]


@st.composite
def another(draw: st.DrawFn, value: bytes) -> bytes:
    """Another number or other data, of the same size where there is any: one that decodes."""
    if not value:
        return draw(st.sampled_from([b"\1", bytes(range(1, 21)), bytes(range(1, 33))]))
    at = draw(st.integers(0, len(value) - 1))
    return bytes((*value[:at], value[at] ^ draw(st.sampled_from([1, 2, 128])), *value[at + 1 :]))


@st.composite
def with_other_value(draw: st.DrawFn, value: bytes) -> bytes:
    """The same RLP, or bytes, with one of its values changed."""
    typed = value[:1] if value[:1] in {b"\1", b"\2", b"\3", b"\4", b"\x7e", b"\x7f"} else b""
    try:
        items: rlp.Decoded = rlp.decode_list(value[len(typed) :])
    except ApplicationError:
        return draw(another(value))
    path = draw(st.sampled_from(leaves(items)))
    at: rlp.Decoded = items
    for step in path[:-1]:
        at = at[step]  # type: ignore[assignment] -- the path goes through lists
    was = at[path[-1]] if path else b""
    if not path or was == []:
        return value + b"\0"
    assert isinstance(at, list)
    assert isinstance(was, bytes)
    at[path[-1]] = draw(another(was))
    return typed + rlp.encode(items)


def covered(payload: Payload, chain: Chain) -> list[str]:
    """All but what nothing covers: marks and state, a state sync outside the body, and receipts without their root.

    Before Byzantium receipts have state roots, and beside deposits nonces, which are not published.
    """
    rootless = payload.number < chain.status_from or any(
        value[:1] == b"\x7e" for path, value in payload.updates.items() if "/t/" in path
    )
    free = {"a", "br", "bl", *(("r", "l") if rootless else ())}
    root = f"c/{chain.chain_id:x}/"
    own = f"{root}b/{payload.hash.hex()}/"
    return sorted(
        path
        for path in payload.updates
        if not path.endswith(("/n/safe", "/n/finalized"))
        and path.removeprefix(own).removeprefix(root).partition("/")[0] not in free
    )


@st.composite
def changed(draw: st.DrawFn, payload: Payload, chain: Chain) -> Payload:
    """A payload with one change of something that is covered."""
    updates = dict(payload.updates)
    path = draw(st.sampled_from(covered(payload, chain)))
    kind = draw(st.sampled_from(["value", "value", "value", "value", "bytes", "absent", "elsewhere", "header"]))
    if kind == "value":
        updates[path] = draw(with_other_value(updates[path]))
    elif kind == "bytes":
        updates[path] = draw(another(updates[path]))
    elif kind == "absent":
        assume("/c/" not in path)
        del updates[path]
    elif kind == "elsewhere":
        updates[path + draw(st.sampled_from(["0", "/0", "x"]))] = updates.pop(path)
    else:
        return draw(
            st.sampled_from(
                [
                    replace(payload, number=payload.number + 1),
                    replace(payload, hash=keccak(payload.hash)),
                    replace(payload, parent=keccak(payload.parent)),
                    replace(payload, weight=payload.weight + 1),
                    replace(payload, deletes=payload.deletes | {"c/"}),
                    replace(payload, updates=updates | {f"{path}/more": b"1"}),
                    replace(payload, updates=updates | {"more": b""}),
                ]
            )
        )
    return replace(payload, updates=updates)


@EVERY
@settings(max_examples=examples(25), deadline=None)
@given(drawn=st.data())
def test_a_block_with_one_change_is_refused(chain: Chain, drawn: st.DataObject) -> None:
    payload = drawn.draw(published(chain))
    lie = drawn.draw(changed(payload, chain))
    assert f"block {lie.number}" in (refusal(lie, chain) or "accepted")


@pytest.mark.parametrize("client", recordings())
@settings(max_examples=examples(200), deadline=None)
@given(drawn=st.data())
def test_a_recorded_block_with_one_change_is_refused(
    client: Callable[[], list[RecordedBlock]], drawn: st.DataObject
) -> None:
    payload, chain = drawn.draw(st.sampled_from(payloads(client)))
    lie = drawn.draw(changed(payload, chain))
    assert f"block {lie.number}" in (refusal(lie, chain) or "accepted")


@EVERY
@settings(max_examples=6, deadline=None)
@given(drawn=st.data())
def test_whatever_a_publisher_sends_only_a_refusal_is_raised(chain: Chain, drawn: st.DataObject) -> None:
    payload = drawn.draw(published(chain))
    updates = dict(payload.updates)
    for path in drawn.draw(st.lists(st.sampled_from(sorted(updates)), max_size=4, unique=True)):
        value = updates.pop(path)
        there = path if drawn.draw(st.booleans()) else drawn.draw(st.sampled_from(sorted(payload.updates)))
        updates[there] = drawn.draw(st.binary(max_size=40) | with_other_value(value))
    refusal(replace(payload, updates=updates), chain)
