"""Scripts of the fault kit: the order of blocks, kills and restarts, as text, so that one line repeats a failure.

    0a 1a !7 2a+2b+3b restart 3a? 4a

``1a``: block 1a is published and delivered. ``2a+2b+3b``: these are published together, so that queued blocks are
removed. ``3a?``: block 3a, delivered as a MissingPayload. ``!7``: during the next call of the handler, its process is
killed (SIGKILL) before the seventh line that it runs (``!0``: before the call), at the latest after the call.
``restart``: the handler is closed and reopened. After a kill it is always reopened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence

    from .chain import Chain

_TOKEN: Final = re.compile(r"!(?P<kill>[0-9]+)|(?P<restart>restart)|(?P<blocks>[0-9]+[a-z]+\??(\+[0-9]+[a-z]+\??)*)")
_KILLS: Final = 0.35
_RESTARTS: Final = 0.1
_MISSING: Final = 0.15
_LAST_LINES: Final = 6
"""Half of the kills are in a handler's last lines, which commit transactions."""


@dataclass(frozen=True, slots=True)
class Read:
    """Blocks that are published together, and delivered."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill before the handler runs this many more lines."""

    lines: int


@dataclass(frozen=True, slots=True)
class Restart:
    """A close of the handler, and a reopening in a new process."""


Step: TypeAlias = Read | Kill | Restart


@dataclass(frozen=True, slots=True)
class Script:
    """Steps, and the names of the blocks that are delivered as MissingPayload."""

    steps: tuple[Step, ...]
    missing: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """Every block, in order."""
        return [name for step in self.steps if isinstance(step, Read) for name in step.names]

    @property
    def faults(self) -> int:
        """The number of kills and restarts."""
        return sum(not isinstance(step, Read) for step in self.steps)

    def __str__(self) -> str:
        return " ".join(self._text(step) for step in self.steps)

    def _text(self, step: Step) -> str:
        match step:
            case Read(names):
                return "+".join(f"{name}?" if name in self.missing else name for name in names)
            case Kill(lines):
                return f"!{lines}"
            case Restart():
                return "restart"

    def final(self, chain: Chain) -> tuple[str, ...]:
        """The blocks of the chain after this script, block 0 first; empty where the script does not decide it."""
        names = self.names
        final = chain.heaviest(names)
        linked = all((parent := chain.parent(name)) is None or parent in names for name in names)
        return final if linked else ()


def parse(text: str, chain: Chain) -> Script:
    """Read a script.

    Raises:
        ConfigurationError: no such step, no such block in this chain, or a chain that is not linked or has two heads.

    """
    steps: list[Step] = []
    missing = set()
    for token in text.split():
        if (found := _TOKEN.fullmatch(token)) is None:
            raise _refused(f"{token!r} is no step: write blocks such as 1a or 2a+2b, !LINES, or restart")
        if found["kill"]:
            steps.append(Kill(int(found["kill"])))
        elif found["restart"]:
            steps.append(Restart())
        else:
            blocks = found["blocks"].split("+")
            missing |= {block.rstrip("?") for block in blocks if block.endswith("?")}
            steps.append(Read(tuple(block.rstrip("?") for block in blocks)))
    script = Script(tuple(steps), frozenset(missing))
    if unknown := [name for name in script.names if name not in chain.payloads]:
        raise _refused(
            f"there is no block {unknown[0]} in the chain of seed {chain.seed}: take its seed and length too"
        )
    if not script.final(chain):
        raise _refused("the blocks of the script must include every parent, and one of them must be the heaviest")
    return script


def _refused(sentence: str) -> ConfigurationError:
    return ConfigurationError(sentence, setting="script")


def _script(steps: Iterable[Step], missing: frozenset[str]) -> Script:
    """A script of these steps, with only their missing blocks."""
    script = Script(tuple(steps))
    return Script(script.steps, missing.intersection(script.names))


def plain(names: Sequence[str], missing: frozenset[str] = frozenset(), *, together: bool = False) -> Script:
    """A script without faults: blocks one by one, or all together."""
    steps = (Read(tuple(names)),) if together else tuple(Read((name,)) for name in names)
    return _script(steps, missing)


def random_script(chain: Chain, source: random.Random, lines: Sequence[int], *, missing: bool) -> Script:
    """A script of forks, kills and restarts over the first blocks of a chain.

    Arguments:
        chain: the chain.
        source: the source of randomness.
        lines: numbers of lines that the handler ran for earlier updates.
        missing: deliver some blocks as MissingPayload.

    """
    names = list(chain.payloads)
    end = source.choice(_ends(chain, names, reorgs=source.random() < 0.5))  # noqa: PLR2004 - probability
    steps: list[Step] = []
    at = 0
    while at < end:
        if source.random() < _KILLS:
            most = source.choice(lines) + 1
            few = source.random() < 0.5  # noqa: PLR2004 - probability
            steps.append(Kill(source.randint(max(0, most - _LAST_LINES) if few else 0, most)))
        elif source.random() < _RESTARTS:
            steps.append(Restart())
        count = source.choice((1, 1, 1, 2, 3, 5))
        steps.append(Read(tuple(names[at : min(at + count, end)])))
        at += count
    gone = frozenset(name for name in names[1:end] if missing and source.random() < _MISSING)
    return _script(steps, gone)


def _ends(chain: Chain, names: list[str], *, reorgs: bool) -> list[int]:
    """Numbers of blocks that a script may have; with ``reorgs`` the last one causes a reorg, visible to the handler."""
    heads = [chain.heaviest(names[:end]) for end in range(len(names) + 1)]
    ends = [end for end in range(min(3, len(names)), len(names) + 1) if heads[end]]
    return [end for end in ends if reorgs and heads[end][:-1] != heads[end - 1]] or ends


def one_kill(script: Script, lines: Sequence[int]) -> Iterator[Script]:
    """Scripts that end with a kill in the last lines of handling a block, the shortest first.

    Arguments:
        script: blocks one by one.
        lines: number of lines that the handler runs for each of them.

    """
    for at, count in enumerate(lines[: len(script.steps)]):
        for line in range(count, max(0, count - _LAST_LINES), -1):
            yield _script((*script.steps[:at], Kill(line), script.steps[at]), script.missing)


def smaller(script: Script, chain: Chain) -> Iterator[Script]:
    """Scripts with one reduction, the largest reductions first."""
    steps = script.steps
    for part in (2, 4):
        if cut := len(steps) // part:
            yield _script(steps[:-cut], script.missing)
    for at in range(len(steps) - 1, -1, -1):
        if not isinstance(steps[at], Read):
            yield _script((*steps[:at], *steps[at + 1 :]), script.missing)
    for name in reversed(script.names):
        yield _without(script, chain, name)
    for name in sorted(script.missing):
        yield _script(steps, script.missing - {name})
    for at, step in enumerate(steps):
        if isinstance(step, Read) and len(step.names) > 1:
            yield _script((*steps[:at], *(Read((name,)) for name in step.names), *steps[at + 1 :]), script.missing)


def _without(script: Script, chain: Chain, root: str) -> Script:
    """The script without a block and its descendants."""
    gone = {root}
    for name in script.names:
        if chain.parent(name) in gone:
            gone.add(name)
    kept = [
        Read(tuple(name for name in step.names if name not in gone)) if isinstance(step, Read) else step
        for step in script.steps
    ]
    return _script(tuple(step for step in kept if step != Read(())), script.missing)
