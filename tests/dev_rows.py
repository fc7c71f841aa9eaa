"""The updates of a development chain as raw rows of the lake, and what its node has in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal_devkit.devchain import DevChain
from cardinal_ethereum import payload_from_rpc
from cardinal_spark.rows import AppSpec
from cardinal_spark.testing import payload_row

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload
    from cardinal_devkit.devchain import DevSettings
    from cardinal_devkit.devchain.blocks import DevBlock
    from cardinal_spark.rows import RawRow


class DevRows:
    """Rows of each update; ``mined`` are all blocks by hash, and ``payloads`` what was published of them."""

    def __init__(self, settings: DevSettings, **options: int) -> None:
        app = AppSpec("evm", {"chain_id": settings.chain_id, **options}).text()
        self.updates: list[list[RawRow]] = []
        self.chain: list[DevBlock] = []
        self.mined: dict[bytes, DevBlock] = {}
        self.payloads: dict[bytes, Payload] = {}
        self.reorgs = 0
        names: dict[str, DevBlock] = {}
        seq = 0
        for step in DevChain(settings):
            for block in step.mined:
                names[block.plan.name] = self.mined[block.hash] = block
                payload = payload_from_rpc(block.block, block.receipts, chain_id=settings.chain_id)
                self.payloads[block.hash] = payload
            removed, added = step.move.removed, step.move.added
            moves = [*((name, -1) for name in removed), *((name, 1) for name in added)]
            self.updates.append(
                [
                    payload_row(self.payloads[names[name].hash], app, seq + index, change, seq + 1)
                    for index, (name, change) in enumerate(moves, 1)
                ]
            )
            seq += len(moves)
            self.reorgs += bool(removed)
            self.chain = [*self.chain[: len(self.chain) - len(removed)], *(names[name] for name in added)]
