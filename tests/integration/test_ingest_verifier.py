"""Verifier of an ingest node: worker processes judge blocks, and one that is killed costs its block a repetition."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ethereum_blocks import build

from cardinal.apps import get
from cardinal.errors import ApplicationError
from cardinal_ethereum import payload_from_rpc
from cardinal_ingest.body import frame, items_of
from cardinal_ingest.errors import VerifierError
from cardinal_ingest.node.blocks import blocks_of
from cardinal_ingest.node.verifier import Verifier
from cardinal_ingest.protocols.publish import BlockId
from ingesting import workers_of
from looping import on_loop

pytestmark = pytest.mark.process

DEADLINE = 60.0
BUILT = build(None, number=5_000_000)
PAYLOAD = payload_from_rpc(BUILT.block, BUILT.receipts, chain_id=1)
BLOCK, PARENT = BlockId(PAYLOAD.number, PAYLOAD.hash), BlockId(PAYLOAD.number - 1, PAYLOAD.parent)
BODY = frame(items_of(PAYLOAD, chain_id=1))
OTHER_CHAIN = frame(items_of(PAYLOAD, chain_id=2))


@contextmanager
def verifying(workers: int = 1) -> Iterator[Verifier]:
    verifier = Verifier(blocks_of(get("evm", chain_id=1)), workers)
    try:
        yield verifier
    finally:
        verifier.close()


@on_loop
async def test_verdicts_come_from_worker_processes_which_end_with_the_verifier() -> None:
    others = workers_of(os.getpid())

    def new() -> set[int]:
        return workers_of(os.getpid()) - others

    with verifying(workers=2) as verifier:
        assert not new()
        for _ in range(3):
            await verifier.verify(BLOCK, PARENT, BODY)
        (worker,) = new()
        for number in (signal.SIGINT, signal.SIGTERM):  # they may come to the whole group: the node answers them
            os.kill(worker, number)
        await verifier.verify(BLOCK, PARENT, BODY)
        assert new() == {worker}
        verdicts = await asyncio.gather(
            *[verifier.verify(BLOCK, PARENT, body) for body in (BODY, OTHER_CHAIN, BODY, OTHER_CHAIN)],
            return_exceptions=True,
        )
        assert verdicts[::2] == [None, None]
        assert all(isinstance(one, ApplicationError) and "of chain 2" in str(one) for one in verdicts[1::2])
    assert not new()


@on_loop
async def test_a_worker_that_is_killed_decides_nothing_and_is_replaced() -> None:
    others = workers_of(os.getpid())
    with verifying() as verifier:
        await verifier.verify(BLOCK, PARENT, BODY)
        (first,) = workers_of(os.getpid()) - others
        os.kill(first, signal.SIGKILL)
        with pytest.raises(VerifierError, match=f"block {PAYLOAD.number}"):
            await verifier.verify(BLOCK, PARENT, BODY)
        await verifier.verify(BLOCK, PARENT, BODY)
        assert first not in workers_of(os.getpid())


def test_a_worker_ends_with_its_node_however_that_ends() -> None:
    program = """
import asyncio, signal, sys
from cardinal.apps import get
from cardinal.errors import ApplicationError
from cardinal_ingest.protocols.publish import BlockId
from cardinal_ingest.node.blocks import blocks_of
from cardinal_ingest.node.verifier import Verifier

verifier = Verifier(blocks_of(get("evm", chain_id=1)))
try:
    asyncio.run(verifier.verify(BlockId(1), BlockId(0), b""))
except ApplicationError:
    print("refused", flush=True)
signal.pause()
"""
    node = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert node.stdout is not None
        assert node.stdout.readline() == b"refused\n"
        assert len(workers_of(node.pid)) == 1
    finally:
        node.kill()
    _, errors = node.communicate(timeout=DEADLINE)  # it ends when nobody has its standard error, which the worker has
    assert errors == b""


def test_a_worker_that_cannot_start_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with verifying() as verifier, pytest.raises(VerifierError):
        asyncio.run(verifier.verify(BLOCK, PARENT, BODY))
