"""Script of heads: mined blocks, their parents, and the leading chain after each. Blocks have no content.

    for move in fork_script(ForkSettings(seed=7, blocks=40)):
        ...    # move.mined, then move.head leads; move.removed are orphans now

Rules:

1. The same settings give the same script, on every machine.
2. Each move ends with a head that is strictly heavier than every block before it, and only the last block of a move is
   heavier than the head before: a consumer that reads the blocks one by one switches chains exactly with the script.
3. The script ends with a head of number ``blocks``. Block 0 is never replaced, no move removes more than ``max_depth``
   blocks, and no head is more than ``max_depth`` below an earlier one: blocks lower than twice that may be pruned.
4. With at least 24 blocks, a depth of at least 3 and a reorg rate above 0, every seed has a reorg of depth 3 or more, a
   reorg to a shorter chain (where weights may differ), and a return to orphaned blocks.

Blocks have names: height and a letter, ``3a`` for the first block of height 3 that was mined, ``3b`` for the second.
"""

from __future__ import annotations

import random
import string
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from cardinal.errors import ConfigurationError

Kind: TypeAlias = Literal["genesis", "mine", "branch", "return"]
"""``mine``: a child of the head. ``branch``: new blocks from an ancestor on. ``return``: an orphaned branch grows and
leads again."""

_Form: TypeAlias = Literal["longer", "equal", "shorter", "return"]
_Duty: TypeAlias = Literal["deep", "shorter", "pair"]

_FORMS: Final[Mapping[_Form, int]] = MappingProxyType({"longer": 8, "equal": 4, "shorter": 2, "return": 3})
_NESTED: Final = 0.25
"""Probability that a reorg directly follows a reorg: the second-order cases on which consumers fail."""

_DEEP: Final = 3
_REMEMBERED: Final = 4
"""Orphaned branches that may return."""

_MAX_BLOCKS: Final = 1_000_000
_MAX_DEPTH: Final = 64


class PlannedBlock(NamedTuple):
    """A block of the script. ``parent`` is a name, empty for block 0; ``weight`` is its own and its ancestors'."""

    name: str
    number: int
    parent: str
    difficulty: int
    weight: int


class HeadMove(NamedTuple):
    """One step of the script.

    Attributes:
        kind: kind of the move.
        mined: the new blocks, parents first.
        head: the new head.
        removed: names of the blocks that left the chain, newest first (the order in which to undo).
        added: names of the blocks that joined it, oldest first; they are ``mined``, after a return with orphans before.

    """

    kind: Kind
    mined: tuple[PlannedBlock, ...]
    head: PlannedBlock
    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForkSettings:
    """Settings of a script.

    Attributes:
        seed: any integer.
        blocks: number of the last head: blocks above block 0 on the final chain.
        reorg_rate: probability that a step is a reorg, 0 to 1.
        max_depth: the most blocks that one reorg removes, 1 to 64.
        difficulty: the mean of a block's own weight, which varies by an eighth; 0 makes the number the weight (a
            chain after the merge): then only longer chains win.

    Raises:
        ConfigurationError: a value out of its bounds; ``setting`` names it.

    """

    seed: int = 0
    blocks: int = 64
    reorg_rate: float = 0.1
    max_depth: int = 5
    difficulty: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.blocks <= _MAX_BLOCKS:
            raise _out_of_bounds("blocks", self.blocks, f"0 to {_MAX_BLOCKS}")
        if not 0 <= self.reorg_rate <= 1:
            raise _out_of_bounds("reorg_rate", self.reorg_rate, "0 to 1")
        if not 1 <= self.max_depth <= _MAX_DEPTH:
            raise _out_of_bounds("max_depth", self.max_depth, f"1 to {_MAX_DEPTH}")
        if self.difficulty and self.difficulty < 8 * _MAX_DEPTH:
            raise _out_of_bounds("difficulty", self.difficulty, f"0, or at least {8 * _MAX_DEPTH}")


def _out_of_bounds(setting: str, value: object, bounds: str) -> ConfigurationError:
    name = setting.replace("_", "-")
    return ConfigurationError(f"{name} must be {bounds}, not {value!r}", setting=setting)


def fork_script(settings: ForkSettings) -> Iterator[HeadMove]:
    """The moves of a script, block 0 first."""
    planner = _Planner(settings)
    yield planner.genesis()
    while planner.head.number < settings.blocks:
        yield planner.next()


class _Orphans(NamedTuple):
    """An orphaned branch: the number of its ancestor in the chain, and its blocks, oldest first."""

    ancestor: PlannedBlock
    blocks: tuple[PlannedBlock, ...]


class _Planner:
    """The current chain as deep as a reorg can reach, and the reorgs that are still due."""

    def __init__(self, settings: ForkSettings) -> None:
        self._settings = settings
        self._random = random.Random(f"forks/{settings.seed}")  # noqa: S311 - repeatable, no secret
        self._siblings: dict[int, int] = {}
        self._highest = 0
        self._chain: list[PlannedBlock] = []
        self._orphans: deque[_Orphans] = deque(maxlen=_REMEMBERED)
        self._after_reorg = False
        duties: list[_Duty] = ["deep", "shorter", "pair"] if settings.reorg_rate else []
        self._random.shuffle(duties)
        self._duties = deque((settings.blocks * (at + 1) // 4, duty) for at, duty in enumerate(duties))
        self._return_due = False

    @property
    def head(self) -> PlannedBlock:
        """The current head."""
        return self._chain[-1]

    def genesis(self) -> HeadMove:
        """The first move: block 0."""
        block = self._mined(None, self._natural())
        self._chain.append(block)
        return HeadMove("genesis", (block,), block, (), (block.name,))

    def next(self) -> HeadMove:
        """The next move: one that is due, or a random one."""
        move = self._due()
        rate = self._settings.reorg_rate
        chance = max(rate, _NESTED) if self._after_reorg and rate else rate
        if move is None and self._random.random() < chance:
            move = self._reorg(self._form(), self._depth(1))
        self._after_reorg = move is not None
        return move or self._mine()

    def _due(self) -> HeadMove | None:
        """The reorg that rule 4 guarantees at this height; None where none is due, or where it does not fit."""
        if self._return_due:
            self._return_due = False
            return self._return()
        if not self._duties or self.head.number < self._duties[0][0]:
            return None
        match self._duties.popleft()[1]:
            case "deep":
                return self._reorg("longer", self._depth(_DEEP))
            case "shorter":
                return self._reorg("shorter", self._depth(2))
            case "pair":
                self._return_due = True
                # One block: its branch has two, and the return must not remove more than the bound.
                return self._reorg("longer", 1)

    def _form(self) -> _Form:
        return self._random.choices(list(_FORMS), list(_FORMS.values()))[0]

    def _depth(self, least: int) -> int:
        """Number of removed blocks: ``least``, or more with halving probability, within the bounds."""
        depth = least
        while self._random.random() < 0.5:  # noqa: PLR2004 - halving
            depth += 1
        return min(depth, self._settings.max_depth, self.head.number)

    def _mine(self) -> HeadMove:
        block = self._mined(self.head, self._natural())
        self._chain.append(block)
        return HeadMove("mine", (block,), block, (), (block.name,))

    def _reorg(self, form: _Form, depth: int) -> HeadMove | None:
        """A reorg; None where the chain is too short, the end too near, or weights cannot differ."""
        if form == "return":
            return self._return()
        by_number = self._settings.difficulty == 0
        length = depth + 1
        if not by_number and form == "equal":
            length = depth
        elif not by_number and form == "shorter":
            length = depth - self._random.randint(1, max(1, (depth - 1) // 2))
        number = self.head.number - depth + length
        fits = self._highest - self._settings.max_depth <= number <= self._settings.blocks
        if not fits or not 1 <= depth <= self.head.number or length < 1 or (by_number and form == "shorter"):
            return None
        return self._switch("branch", self._chain[-1 - depth], (), length)

    def _return(self) -> HeadMove | None:
        """A return: the newest orphaned branch of the chain grows until it leads."""
        for orphans in reversed(self._orphans):
            tip = orphans.blocks[-1]
            length = 1 if self._settings.difficulty else self.head.number + 1 - tip.number
            depth = self.head.number - orphans.ancestor.number
            hangs = 1 <= depth <= self._settings.max_depth and self._chain[orphans.ancestor.number] == orphans.ancestor
            number = tip.number + length
            if hangs and self._highest - self._settings.max_depth <= number <= self._settings.blocks:
                self._orphans.remove(orphans)
                return self._switch("return", orphans.ancestor, orphans.blocks, length)
        return None

    def _switch(self, kind: Kind, ancestor: PlannedBlock, revived: tuple[PlannedBlock, ...], length: int) -> HeadMove:
        """Leave the chain above ``ancestor`` for another branch: existing blocks, and ``length`` new ones."""
        removed = tuple(self._chain[ancestor.number + 1 :])
        tip = revived[-1] if revived else ancestor
        mined: list[PlannedBlock] = []
        for difficulty in self._winning(self.head.weight - tip.weight, length):
            tip = self._mined(tip, difficulty)
            mined.append(tip)
        added = (*revived, *mined)
        self._chain[ancestor.number + 1 :] = added
        self._orphans.append(_Orphans(ancestor, removed))
        names = tuple(block.name for block in reversed(removed))
        return HeadMove(kind, tuple(mined), tip, names, tuple(block.name for block in added))

    def _winning(self, gap: int, length: int) -> list[int]:
        """Difficulties whose sum exceeds ``gap`` with the last of them and not before.

        The head's own difficulty is never below the natural range, and ``gap`` includes it for more than one block, so
        the scaled values stay positive.
        """
        if self._settings.difficulty == 0:
            return [0] * length
        drawn = [self._natural() for _ in range(length)]
        first, last = drawn[:-1], drawn[-1]
        if (total := sum(first)) >= gap:
            first = [value * (gap - 1) // total for value in first]
        margin = self._random.randint(1, self._settings.difficulty // 8)
        return [*first, max(last, gap - sum(first) + margin)]

    def _natural(self) -> int:
        mean = self._settings.difficulty
        return self._random.randint(mean - mean // 8, mean + mean // 8)

    def _mined(self, parent: PlannedBlock | None, difficulty: int) -> PlannedBlock:
        number = 0 if parent is None else parent.number + 1
        before = 0 if parent is None else parent.weight
        self._siblings[number] = self._siblings.get(number, 0) + 1
        self._highest = max(self._highest, number)
        name = f"{number}{letters(self._siblings[number])}"
        weight = before + difficulty if self._settings.difficulty else number
        return PlannedBlock(name, number, "" if parent is None else parent.name, difficulty, weight)


def letters(count: int) -> str:
    """Column name of a number: a for 1, z for 26, aa for 27."""
    text = ""
    while count:
        count, digit = divmod(count - 1, len(string.ascii_lowercase))
        text = string.ascii_lowercase[digit] + text
    return text
