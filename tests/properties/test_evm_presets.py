"""For every chain with presets: what its node shows comes out of the stream as it went in, and a lie does not go in."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal import apps
from cardinal.errors import IntegrityError
from cardinal.protocols.streams import Completed, Finality, Payload, Reassembler, Record, split
from cardinal_ethereum import decode, frames, payload_from_rpc, verify
from cardinal_ethereum.chains import CHAINS, Chain
from cardinal_ethereum.from_rpc.payload import payload_of
from evm_blocks import Json, data, text
from evm_extra_fields import parts, with_more
from evm_generated import Shown, blocks, leaves
from evm_rows import tables_of
from evm_rpc import carried, shown_block, shown_header, shown_log, shown_receipts
from examples import few

EVERY = pytest.mark.parametrize("chain", few(4, CHAINS.values()), ids=lambda chain: chain.name)


def streamed(payload: Payload, chain: Chain, order: random.Random) -> Payload:
    """The payload after it was split, sent in any order, some of it twice, and put together again."""
    app = apps.get("evm", chain_id=chain.chain_id)
    routed = split(payload, app.topics, app.default_topic)
    routed += order.sample(routed, k=len(routed) // 3)
    order.shuffle(routed)
    records = [Record(one.topic, 0, at, one.key, one.value, 1, ()) for at, one in enumerate(routed)]
    done = [event for event in Reassembler().receive(records) if isinstance(event, Completed)]
    assert len(done) == 1
    return done[0].payload


@EVERY
@settings(max_examples=8, deadline=None)
@given(drawn=st.data())
def test_a_block_comes_out_of_the_stream_as_its_node_showed_it(chain: Chain, drawn: st.DataObject) -> None:
    shown: Shown = drawn.draw(blocks(chain))
    finality = drawn.draw(st.none() | st.builds(Finality, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)))
    encoded = verify(shown.block, shown.receipts, uncles=shown.uncles, chain=chain)
    payload = payload_of(encoded, chain_id=chain.chain_id, finality=finality, chain=chain)
    assert payload == payload_from_rpc(
        shown.block, shown.receipts, chain_id=chain.chain_id, finality=finality, uncles=shown.uncles
    )
    again = streamed(payload, chain, drawn.draw(st.randoms(use_true_random=False)))
    assert dict(again.updates) == dict(payload.updates)
    assert (again.number, again.hash, again.parent, again.weight) == (
        *(payload.number, payload.hash, payload.parent, payload.weight),
    )

    block = decode(again)
    assert block.encode() == payload
    kept = len(shown.receipts) - shown.derived
    wanted, receipts = carried(shown.block, shown.receipts)
    wanted["transactions"] = wanted["transactions"][:kept]
    assert shown_block(block) == wanted
    assert shown_receipts(block) == receipts[:kept]
    assert [shown_header(uncle) for uncle in block.uncles] == shown.uncles
    derived = [log for receipt in shown.receipts[kept:] for log in receipt["logs"]]
    assert [shown_log(log) for log in block.derived_logs] == derived

    root = f"c/{chain.chain_id:x}"
    assert {path for path in payload.updates if path.startswith(f"{root}/n/")} == {
        f"{root}/n/{payload.number:x}",
        *((f"{root}/n/safe", f"{root}/n/finalized") if shown.merged else ()),
    }
    assert payload.weight == (block.total_difficulty or 0) + (payload.number if shown.merged else 0)

    shown_total = {"totalDifficulty": hex(block.total_difficulty or 0)}
    expected = tables_of(wanted | shown_total, receipts, senders=False)
    if block.number < chain.status_from:
        expected["receipts"] = [row | {"status": None} for row in expected["receipts"]]
    if chain.family == "arbitrum" and not collects_tips(shown.block):
        paid = shown.block.get("baseFeePerGas")
        paid = None if paid is None else str(int(paid, 16))
        expected["receipts"] = [row | {"effective_gas_price": paid} for row in expected["receipts"]]
    for name, table in frames([again], senders=False).items():
        rows = [{column: row[column] for column in row if column != "size"} for row in table.to_pylist()]
        assert rows == expected[name], name


def collects_tips(block: Json) -> bool:
    """What an Arbitrum header says in its mix hash: version 9 of ArbOS, or the flag of later ones."""
    mix = data(block["mixHash"])
    return int.from_bytes(mix[16:24], "big") == 9 or mix[25] % 2 == 1


FREE = frozenset({"totalDifficulty"})
"""What nothing covers in a block: before the merge the total is the node's word."""


def covered(path: tuple[str | int, ...], shown: Shown) -> bool:
    """True when a root, a hash or another check covers a text of a block or receipt."""
    part, *rest = path
    if part == "receipts":
        index, name = rest[0], rest[1]
        receipt = shown.receipts[int(index)]
        if name == "depositNonce" and "depositReceiptVersion" not in receipt:
            return False
        derived = int(index) >= len(shown.receipts) - shown.derived
        return not derived and name not in FREE
    if rest[0] == "transactions" and int(rest[1]) >= len(shown.receipts) - shown.derived:
        return False
    return rest[0] not in FREE


def other(shown: str) -> str:
    """Another number or other data than a text says."""
    if len(shown) % 2:
        return hex(int(shown, 16) + 1)
    was = data(shown)
    return text(bytes((was[0] ^ 1, *was[1:]))) if was else "0x01"


@EVERY
@settings(max_examples=8, deadline=None)
@given(drawn=st.data())
def test_one_text_changed_or_left_out_is_found_or_changes_nothing(chain: Chain, drawn: st.DataObject) -> None:
    shown: Shown = drawn.draw(blocks(chain))
    honest = payload_from_rpc(shown.block, shown.receipts, chain_id=chain.chain_id, uncles=shown.uncles)
    whole = {"block": copy.deepcopy(shown.block), "receipts": copy.deepcopy(shown.receipts)}
    paths = [path for path in leaves(whole) if covered(path, shown)]
    path = drawn.draw(st.sampled_from(paths))
    at = whole
    for step in path[:-1]:
        at = at[step]  # type: ignore[index]  # JSON
    lie = None if drawn.draw(st.booleans()) else other(at[path[-1]])  # type: ignore[index]  # JSON
    at[path[-1]] = lie  # type: ignore[index]  # JSON
    try:
        encoded = verify(whole["block"], whole["receipts"], uncles=shown.uncles, chain=chain)
    except IntegrityError:
        return
    assert payload_of(encoded, chain_id=chain.chain_id, chain=chain) == honest


@EVERY
@settings(max_examples=8, deadline=None)
@given(drawn=st.data())
def test_a_field_that_was_not_there_is_found_or_changes_nothing(chain: Chain, drawn: st.DataObject) -> None:
    shown: Shown = drawn.draw(blocks(chain))
    honest = payload_from_rpc(shown.block, shown.receipts, chain_id=chain.chain_id, uncles=shown.uncles)
    whole = {"block": shown.block, "receipts": shown.receipts}
    part = drawn.draw(st.sampled_from(parts(whole)))
    for path, lie in with_more(whole, part, other):
        if not all(covered((*part, name), shown) for name in path[len(part) :]):
            continue
        try:
            encoded = verify(lie["block"], lie["receipts"], uncles=shown.uncles, chain=chain)
        except IntegrityError:
            continue
        assert payload_of(encoded, chain_id=chain.chain_id, chain=chain) == honest, path
