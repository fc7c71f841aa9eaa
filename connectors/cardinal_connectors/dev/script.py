"""What happens on a development chain: which block is built on which, and what the node's head is after each step.

Rules:

1. The script is a pure function of its settings.
2. A head is only ever replaced by a strictly heavier one, so the end is strictly heaviest.
3. With ``reorg_rate`` above 0 and ``blocks`` of 24 or more, there is a reorg of depth 3, one to a shorter but heavier
   branch and one of depth 1 or 2, whatever the seed; others come at the rate.
4. A branch is taken up whole: its blocks appear together, and only its last one is announced.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from cardinal.errors import ConfigurationError

_DIFFICULTY: Final = 1_000_000
_SPREAD: Final = 50_000
_DEEP: Final = 3
_GUARANTEED_FROM: Final = 24
_LONGEST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ScriptSettings:
    """A development chain's script.

    Attributes:
        seed: any integer; everything random comes from it.
        blocks: the number of the last block of the final chain.
        reorg_rate: the chance that a step is a reorg, 0 to 0.5.
        max_depth: blocks that a reorg removes at most.

    """

    seed: int = 1
    blocks: int = 48
    reorg_rate: float = 0.15
    max_depth: int = 6

    def __post_init__(self) -> None:
        """ConfigurationError for a setting out of its range."""
        for name, value, low, high in (
            ("blocks", self.blocks, 1, _LONGEST),
            ("reorg-rate", self.reorg_rate, 0, 0.5),
            ("max-depth", self.max_depth, _DEEP, 64),
        ):
            if not low <= value <= high:
                raise ConfigurationError(f"{name} must lie between {low} and {high}, not {value}", setting=name)


@dataclass(frozen=True, slots=True)
class Plan:
    """A block before it is built. ``index`` counts plans from 0 (genesis); ``weight`` is its total difficulty."""

    index: int
    parent: int
    number: int
    difficulty: int
    weight: int


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens: new blocks, oldest first; the last one becomes the head."""

    blocks: tuple[Plan, ...]
    depth: int
    """Blocks that leave the chain; 0 where the chain only grows."""


GENESIS: Final = Plan(0, -1, 0, _DIFFICULTY, _DIFFICULTY)


def script(settings: ScriptSettings) -> list[Step]:
    """Everything that happens, the genesis block first."""
    return _Writer(settings).write()


class _Writer:
    def __init__(self, settings: ScriptSettings) -> None:
        self._settings = settings
        self._random = random.Random(f"cardinal-dev-{settings.seed}")  # noqa: S311 - a repeatable chain, no secret
        self._chain: list[Plan] = [GENESIS]
        self._count = 1

    def write(self) -> list[Step]:
        steps = [Step((GENESIS,), 0)]
        forced = self._forced()
        while (height := self._chain[-1].number) < self._settings.blocks:
            if forced and height >= forced[0][0]:
                _, depth, added = forced.pop(0)
                steps.append(self._branch(depth, added))
            elif self._wants_reorg(height):
                depth = self._random.randint(1, min(self._settings.max_depth, height - 1))
                shorter = depth > 1 and self._random.random() < 0.25  # noqa: PLR2004 - a quarter, for variety
                steps.append(self._branch(depth, depth - 1 if shorter else depth + 1))
            else:
                steps.append(self._branch(0, 1))
        return steps

    def _forced(self) -> list[tuple[int, int, int]]:
        """(height from which on, depth, blocks of the branch) of the reorgs that every script has."""
        blocks = self._settings.blocks
        if not self._settings.reorg_rate or blocks < _GUARANTEED_FROM:
            return []
        return [
            (blocks // 4, _DEEP, _DEEP + 1),
            (blocks // 2, _DEEP, _DEEP - 1),
            (3 * blocks // 4, self._random.randint(1, 2), 3),
        ]

    def _wants_reorg(self, height: int) -> bool:
        # The last blocks only grow the chain: the end is the same for everybody who has seen it.
        early_enough = height < self._settings.blocks - 1
        return height > 1 and early_enough and self._random.random() < self._settings.reorg_rate

    def _branch(self, depth: int, added: int) -> Step:
        """Leave the chain ``depth`` blocks down and go on with ``added`` new ones that are heavier together."""
        old = self._chain[-1].weight
        del self._chain[len(self._chain) - depth :]
        plans = []
        for left in range(added, 0, -1):
            parent = self._chain[-1]
            difficulty = _DIFFICULTY + self._random.randint(-_SPREAD, _SPREAD)
            missing = old + 1 - parent.weight - difficulty
            if left == 1 and missing > 0:
                difficulty += missing + self._random.randint(0, _SPREAD)
            plan = Plan(self._count, parent.index, parent.number + 1, difficulty, parent.weight + difficulty)
            self._count += 1
            self._chain.append(plan)
            plans.append(plan)
        return Step(tuple(plans), depth)
