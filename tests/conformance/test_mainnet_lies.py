"""Every text of a recorded block is changed in turn: either a check finds it, or what is published stays the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cardinal.errors import IntegrityError
from cardinal.protocols.streams.payload import Payload
from cardinal_ethereum import verify
from cardinal_ethereum.from_rpc.payload import payload_of
from evm_extra_fields import TOTAL, parts, with_more
from recorded_blocks import RecordedBlock, mainnet, own, real

SMALL = [own("geth-prague-42"), *[one for one in mainnet() if one.number == 14_000_010]]
"""Blocks of a few transactions."""
EVERY_KIND = [own("geth-frontier-2"), own("geth-osaka-44"), *SMALL]
"""Blocks with, together, every kind of transaction and receipt: each of their texts is changed."""
WITH_FAILED = [own("geth-london-29"), *mainnet()[:1]]
"""Blocks some of whose transactions failed."""
COMMON = {"hash", "transaction hashes", "receipts", "receipts root", "log indexes", "gas", "contracts"}
ELSEWHERE = "0x" + "77" * 20
small = pytest.mark.parametrize("recorded", real(SMALL))


def load(recorded: RecordedBlock) -> dict[str, Any]:
    # No header holds the total: whether it adds up is the feed's business.
    return copy.deepcopy({"block": recorded.block | {TOTAL: hex(recorded.total)}, "receipts": recorded.receipts})


def published(case: dict[str, Any], recorded: RecordedBlock) -> Payload:
    written = verify(case["block"], case["receipts"], chain=recorded.chain)
    return payload_of(written, chain_id=recorded.chain.chain_id, chain=recorded.chain)


def withdrawals(recorded: RecordedBlock) -> set[str]:
    return {"withdrawals root"} if recorded.block.get("withdrawals") else set()


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:  # noqa: ANN401 -- JSON
    if isinstance(value, dict):
        for name, part in value.items():
            yield from places(part, (*path, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from places(part, (*path, index))
    else:
        yield path


@contextmanager
def changed(case: dict[str, Any], path: tuple[str | int, ...], change: Callable[[Any], Any]) -> Iterator[None]:
    """The case with one text changed, for a while: a copy for each of them costs more than the checks."""
    at: Any = case
    for step in path[:-1]:
        at = at[step]
    was = at[path[-1]]
    at[path[-1]] = change(was)
    try:
        yield
    finally:
        at[path[-1]] = was


def another(value: Any) -> Any:  # noqa: ANN401 -- JSON
    if value is None:
        return ELSEWHERE
    if not isinstance(value, str):
        return value
    return "0x01" if value == "0x" else value[:-1] + ("2" if value.endswith("1") else "1")


@pytest.mark.parametrize("recorded", real(EVERY_KIND))
def test_no_change_of_one_text_is_published(recorded: RecordedBlock) -> None:
    # Some texts become ones of another form in some blocks.
    assert checks_met(recorded, another) - {"form"} == COMMON | withdrawals(recorded)


@pytest.mark.parametrize("recorded", real(EVERY_KIND))
def test_no_text_that_becomes_null_is_published(recorded: RecordedBlock) -> None:
    # A typed transaction's receipt without its type is a legacy one; a header may do without its later fields.
    typed = any(one["type"] != "0x0" for one in recorded.block["transactions"])
    later = "baseFeePerGas" in recorded.block
    met = {"form", "transaction hashes", "receipts"}
    met |= ({"receipts root"} if typed else set()) | ({"hash"} if later else set())
    assert checks_met(recorded, lambda _: None) == met


def checks_met(recorded: RecordedBlock, change: Callable[[Any], Any]) -> set[str]:
    """The checks that changes of one text meet; what passes all of them is published as before."""
    case = load(recorded)
    honest = published(case, recorded)
    found: set[str] = set()
    for path in [path for path in places(case) if path != ("block", TOTAL)]:
        with changed(case, path, change):
            try:
                written = published(case, recorded)
            except IntegrityError as error:
                found.add(error.check)
            else:
                assert written == honest, path
    assert published(case, recorded) == honest
    return found


@small
def test_no_field_that_was_not_there_is_published(recorded: RecordedBlock) -> None:
    case = load(recorded)
    honest = published(case, recorded)
    found: set[str] = set()
    for part in parts(case):
        for path, lie in with_more(case, part, another):
            try:
                written = published(lie, recorded)
            except IntegrityError as error:
                found.add(error.check)
            else:
                assert written == honest, path
    assert found == (COMMON | {"form", "withdrawals root"}) - {"log indexes"} - withdrawals(recorded)


@pytest.mark.parametrize("recorded", real([*WITH_FAILED, *SMALL]))
@pytest.mark.parametrize("root", ["0x", "0x00", "0x01", "0x1"])
def test_a_status_is_verified_against_its_root_whatever_else_the_receipt_holds(
    root: str, recorded: RecordedBlock
) -> None:
    case = load(recorded)
    honest = published(case, recorded)
    for status in {receipt["status"] for receipt in case["receipts"]}:
        lie = copy.deepcopy(case)
        receipt = next(one for one in lie["receipts"] if one["status"] == status)
        receipt["root"] = root
        assert published(lie, recorded) == honest
        receipt["status"] = "0x1" if status == "0x0" else "0x0"
        with pytest.raises(IntegrityError) as caught:
            published(lie, recorded)
        assert caught.value.check == "receipts root"


@small
def test_a_call_creates_no_contract(recorded: RecordedBlock) -> None:
    case = load(recorded)
    case["receipts"][0]["contractAddress"] = ELSEWHERE
    with pytest.raises(IntegrityError) as caught:
        published(case, recorded)
    assert caught.value.check == "contracts"
