"""Every text of a real block is changed in turn: either a check finds it, or what is published stays the same."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cardinal.apps.evm import payload_from_rpc, verify
from cardinal.apps.evm.rpc.payload import payload_of
from cardinal.errors import IntegrityError
from evm_extra_fields import parts, with_more

FIXTURES = Path(__file__).parents[3] / "shared/fixtures/mainnet"
pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the mainnet fixtures are not beside the project")

SMALL = 14_000_010
"""A block of 11 transactions: every one of its texts is changed."""
WITH_FAILED = 14_000_000
"""A block some of whose transactions failed."""
FLIPS = [(WITH_FAILED, "0x0", "0x"), (WITH_FAILED, "0x0", "0x00"), (SMALL, "0x1", "0x01"), (SMALL, "0x1", "0x1")]
TOTAL = "0x1"
ELSEWHERE = "0x" + "77" * 20


def load(number: int) -> dict[str, Any]:
    case = json.loads(gzip.decompress((FIXTURES / f"{number}.json.gz").read_bytes()))
    # No header holds it: whether it adds up is the feed's business.
    return {"block": case["block"] | {"totalDifficulty": TOTAL}, "receipts": case["receipts"]}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:  # noqa: ANN401 -- JSON
    if isinstance(value, dict):
        for name, part in value.items():
            yield from places(part, (*path, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from places(part, (*path, index))
    else:
        yield path


def changed(case: dict[str, Any], path: tuple[str | int, ...], change: Callable[[Any], Any]) -> dict[str, Any]:
    lie = copy.deepcopy(case)
    at: Any = lie
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = change(at[path[-1]])
    return lie


def another(value: Any) -> Any:  # noqa: ANN401 -- JSON
    if value is None:
        return ELSEWHERE
    if not isinstance(value, str):
        return value
    return "0x01" if value == "0x" else value[:-1] + ("2" if value.endswith("1") else "1")


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (another, {"hash", "transaction hashes", "receipts", "receipts root", "log indexes", "gas", "contracts"}),
        (lambda _: None, {"form", "hash", "transaction hashes", "receipts", "receipts root"}),
    ],
    ids=["another", "null"],
)
def test_no_change_of_one_text_is_published(change: Callable[[Any], Any], checks: set[str]) -> None:
    case = load(SMALL)
    honest = payload_from_rpc(case["block"], case["receipts"], chain_id=1)
    found: set[str] = set()
    for path in places(case):
        if path == ("block", "totalDifficulty"):
            continue
        lie = changed(case, path, change)
        try:
            written = verify(lie["block"], lie["receipts"])
        except IntegrityError as error:
            found.add(error.check)
        else:
            assert payload_of(written, chain_id=1) == honest, path
    assert found == checks


def test_no_field_that_was_not_there_is_published() -> None:
    case = load(SMALL)
    honest = payload_from_rpc(case["block"], case["receipts"], chain_id=1)
    found: set[str] = set()
    for part in parts(case):
        for path, lie in with_more(case, part, another):
            try:
                written = verify(lie["block"], lie["receipts"])
            except IntegrityError as error:
                found.add(error.check)
            else:
                assert payload_of(written, chain_id=1) == honest, path
    assert found == {
        *("form", "hash", "transaction hashes", "receipts", "receipts root", "gas", "contracts", "withdrawals root"),
    }


@pytest.mark.parametrize(("number", "status", "root"), FLIPS)
def test_a_status_is_verified_against_its_root_whatever_else_the_receipt_holds(
    number: int, status: str, root: str
) -> None:
    case = load(number)
    honest = payload_from_rpc(case["block"], case["receipts"], chain_id=1)
    receipt = next(one for one in case["receipts"] if one["status"] == status)
    receipt["root"] = root
    assert payload_of(verify(case["block"], case["receipts"]), chain_id=1) == honest
    receipt["status"] = "0x1" if status == "0x0" else "0x0"
    with pytest.raises(IntegrityError) as caught:
        verify(case["block"], case["receipts"])
    assert caught.value.check == "receipts root"


def test_a_call_creates_no_contract() -> None:
    case = load(SMALL)
    case["receipts"][0]["contractAddress"] = ELSEWHERE
    with pytest.raises(IntegrityError) as caught:
        verify(case["block"], case["receipts"])
    assert caught.value.check == "contracts"
