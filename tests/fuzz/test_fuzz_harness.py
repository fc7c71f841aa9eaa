"""The fuzzer's own function over a corpus: what was found once stays found, and the harness does not rot."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import fuzz_streams
import pytest

from cardinal.protocols.streams import Follower

HERE = Path(__file__).parent
CORPUS = [bytes.fromhex(line) for line in (HERE / "corpus.txt").read_text().split()]


@pytest.mark.parametrize("target", fuzz_streams.TARGETS[1:], ids=lambda target: target.__name__)
def test_every_input_of_the_corpus_has_a_documented_outcome(target: object) -> None:
    """Each input on every target, not only on the one that its first byte chooses."""
    assert len(CORPUS) > 50
    index = fuzz_streams.TARGETS.index(target)  # type: ignore[arg-type]  # one of them
    for data in CORPUS:
        fuzz_streams.one(bytes((index,)) + data[1:])


def test_the_corpus_reaches_what_there_is_to_reach() -> None:
    """Updates, reorgs among them, and most kinds of reports: else the fuzzer would fuzz the first check only."""
    seen: Counter[str] = Counter()
    for data in CORPUS:
        follower = Follower(fuzz_streams.SETTINGS)
        for record in fuzz_streams.records(data[1:]):
            at = {record[:2]: record.offset + 1}
            for value in follower.step([record], at, at).items:
                seen[type(value).__name__] += 1
                seen["removed"] += len(getattr(value, "removed", ()))
    assert seen.keys() >= {"ChainUpdate", "Divergence", "Surplus", "Rejected", "Quarantined", "PingSeen", "ReorgBegan"}
    assert seen["removed"]


@pytest.mark.parametrize("seed", range(3))
def test_altered_inputs_have_a_documented_outcome(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        data = bytearray(rng.choice(CORPUS))
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        fuzz_streams.one(bytes(data))
