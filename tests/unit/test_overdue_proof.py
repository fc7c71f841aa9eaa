"""A block is overdue for good when every partition was read past its end, not when some were."""

from __future__ import annotations

from itertools import product

from cardinal.consuming.healing import Overdue

BLOCK = b"3a".rjust(32)
ENDS = {("block", 0): 10, ("block", 1): 20, ("logs", 0): 5}


def test_a_block_is_passed_when_the_last_partition_has_reached_its_end() -> None:
    for short in product((0, 1), repeat=len(ENDS)):
        overdue = Overdue()
        overdue.add(BLOCK)
        overdue.asked()
        overdue.answered(ENDS)
        reached = {where: end - less for (where, end), less in zip(ENDS.items(), short, strict=True)}
        assert overdue.passed(reached) == ([] if any(short) else [BLOCK])
        assert overdue.passed(ENDS) == ([BLOCK] if any(short) else []), "once, and then no more"
