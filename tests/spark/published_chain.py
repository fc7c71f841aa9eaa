"""A development chain published by redundant producers, and what the lake must hold of it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from cardinal import apps
from cardinal.producer import Producer
from cardinal_devkit.devchain import DevChain, DevSettings
from cardinal_ethereum import payload_from_rpc

if TYPE_CHECKING:
    from cardinal.protocols.streams import Payload

CHAIN_IDS = 1 << 32
"""Drawn at random: several processes share a broker."""


class PublishedChain:
    """Steps of a development chain on a broker's topics, under a chain id of its own.

    ``chain`` is the node's chain after the steps published: the payloads, lowest first. ``mined`` are all of them.
    """

    def __init__(
        self, url: str, *, blocks: int = 40, seed: int = 5, producers: int = 2, reorg_threshold: int = 128
    ) -> None:
        self.url = url
        self.chain_id = CHAIN_IDS + secrets.randbelow(CHAIN_IDS)
        self.app = apps.get("evm", chain_id=self.chain_id, reorg_threshold=reorg_threshold)
        self._steps = DevChain(
            DevSettings(seed=seed, blocks=blocks, reorg_rate=0.3, transactions=2, chain_id=self.chain_id)
        )
        self._producers = [Producer(url, self.app, producer_id=f"p{number}") for number in range(producers)]
        self._payloads: dict[str, Payload] = {}
        self.chain: list[Payload] = []
        self.depths: list[int] = []
        self.shorter = 0

    def publish(self, steps: int | None = None) -> int:
        """Publish so many steps, or all that are left; returns how many there were."""
        done = 0
        while steps is None or done < steps:
            step = next(self._steps, None)
            if step is None:
                break
            for block in step.mined:
                payload = payload_from_rpc(block.block, block.receipts, chain_id=self.chain_id)
                self._payloads[block.plan.name] = payload
                for producer in self._producers:
                    producer.add(payload)
            removed, added = step.move.removed, step.move.added
            if removed:
                self.depths.append(len(removed))
                self.shorter += len(added) < len(removed)
                del self.chain[-len(removed) :]
            self.chain += [self._payloads[name] for name in added]
            done += 1
        for producer in self._producers:
            producer.flush()
        return done

    @property
    def mined(self) -> list[Payload]:
        """Every block that was published, orphans too."""
        return list(self._payloads.values())

    def publish_to_next_reorg(self) -> int:
        """Publish some blocks and then, as the last step, one that removes what was there; 0 at the end."""
        steps = self.publish(2)
        before = len(self.depths)
        while len(self.depths) == before and (done := self.publish(1)):
            steps += done
        return steps

    def close(self) -> None:
        for producer in self._producers:
            producer.close()
