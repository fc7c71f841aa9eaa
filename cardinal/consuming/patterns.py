"""Whether a text can be matched by one expression while another one is found in it.

Both become automata over characters, and the pair of them is searched for a text that leads both to their ends. Known
are plain characters, classes, groups, alternatives and quantifiers, and ``^`` and ``$`` at either end; of any other
expression the answer is that it can. So "no" is certain, and "yes" may be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

_SPECIAL: Final = frozenset("\\^$.|?*+()[]{}")
_ESCAPED: Final = frozenset("dws")
_REPEATS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class _Chars:
    """These characters, or all but these."""

    chars: frozenset[str]
    negated: bool = False

    def meets(self, other: _Chars) -> bool:
        """Whether some character is in both."""
        if self.negated and other.negated:
            return True
        if self.negated:
            return not other.chars <= self.chars
        return not self.chars <= other.chars if other.negated else not self.chars.isdisjoint(other.chars)


_ANY: Final = _Chars(frozenset(), negated=True)

_Ends: TypeAlias = tuple[int, int]


class _UnknownError(Exception):
    """An expression of a kind that is not looked into."""


@dataclass(slots=True)
class _Automaton:
    """States by number; ``steps`` take a character, ``leaps`` none."""

    steps: list[list[tuple[_Chars, int]]] = field(default_factory=list)
    leaps: list[list[int]] = field(default_factory=list)

    def state(self) -> int:
        self.steps.append([])
        self.leaps.append([])
        return len(self.steps) - 1

    def one(self, chars: _Chars) -> _Ends:
        """One character."""
        begin, end = self.state(), self.state()
        self.steps[begin].append((chars, end))
        return begin, end

    def either(self, parts: list[_Ends]) -> _Ends:
        """One of these."""
        begin, end = self.state(), self.state()
        for first, last in parts:
            self.leaps[begin].append(first)
            self.leaps[last].append(end)
        return begin, end

    def after_each_other(self, parts: list[_Ends]) -> _Ends:
        """All of these in turn."""
        begin = end = self.state()
        for first, last in parts:
            self.leaps[end].append(first)
            end = last
        return begin, end

    def reached(self, states: frozenset[int]) -> frozenset[int]:
        """These and all that leaps lead to."""
        found, pending = set(states), list(states)
        while pending:
            fresh = [state for state in self.leaps[pending.pop()] if state not in found]
            found.update(fresh)
            pending += fresh
        return frozenset(found)


class _Parser:
    """Reads an expression into an automaton, which may match more than the expression."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self.made = _Automaton()

    def whole(self, text: str) -> _Ends:
        self._text, self._at = text, 0
        ends = self._alternatives()
        if self._at < len(self._text):
            raise _UnknownError
        return ends

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise _UnknownError
        self._at += 1
        return char

    def _took(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _alternatives(self) -> _Ends:
        parts = [self._sequence()]
        while self._took("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else self.made.either(parts)

    def _sequence(self) -> _Ends:
        parts: list[_Ends] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated())
        return self.made.after_each_other(parts)

    def _repeated(self) -> _Ends:
        begun = self._at
        ends = self._atom()
        after = self._at
        least, most = self._quantifier()
        parts, stop = [ends], self._at
        for _ in range(max(least, most or 0) - 1):
            self._at = begun
            parts.append(self._atom())
        self._at = after if stop == after else stop
        made = self.made
        if most is None:  # the last one as often as one likes
            first, last = parts[-1]
            made.leaps[last].append(first)
        for first, last in parts[least:] if most is not None else parts if least == 0 else []:
            made.leaps[first].append(last)
        return made.after_each_other(parts)

    def _quantifier(self) -> tuple[int, int | None]:
        """How often at least and at most."""
        found: tuple[int, int | None] = (1, 1)
        if self._took("*"):
            found = (0, None)
        elif self._took("+"):
            found = (1, None)
        elif self._took("?"):
            found = (0, 1)
        elif self._took("{"):
            least, comma, most = self._until("}").partition(",")
            try:
                found = int(least or 0), int(most) if most else None if comma else int(least)
            except ValueError:
                raise _UnknownError from None
            if max(found[0], found[1] or 0) > _REPEATS_MAX or found[1] == 0:
                raise _UnknownError
        else:
            return found
        if not self._took("?"):  # whether it prefers less or gives nothing back: the texts are the same, or fewer
            self._took("+")
        if self._peek() in ("*", "+", "?", "{"):
            raise _UnknownError
        return found

    def _until(self, end: str) -> str:
        text = ""
        while (char := self._next()) != end:
            text += char
        return text

    def _atom(self) -> _Ends:
        char = self._next()
        if char == "(":
            if self._took("?") and not self._took(":"):
                raise _UnknownError
            ends = self._alternatives()
            if not self._took(")"):
                raise _UnknownError
            return ends
        if char == "[":
            return self.made.one(self._class())
        if char == ".":
            return self.made.one(_ANY)
        if char == "\\":
            return self.made.one(self._escape())
        if char in _SPECIAL:
            raise _UnknownError
        return self.made.one(_Chars(frozenset(char)))

    def _escape(self) -> _Chars:
        char = self._next()
        if char in _ESCAPED:
            return _ANY  # more than it matches
        if char.isalnum():
            raise _UnknownError
        return _Chars(frozenset(char))

    def _class(self) -> _Chars:
        negated = self._took("^")
        chars: set[str] = set()
        while not self._took("]") or not chars:
            first = self._next()
            if first in "[\\]":
                raise _UnknownError
            if self._took("-"):
                last = self._next()
                if last in "[\\]" or last < first:
                    raise _UnknownError
                chars.update(map(chr, range(ord(first), ord(last) + 1)))
            else:
                chars.add(first)
        return _Chars(frozenset(chars), negated)


def may_be_found(searched: str, matched: str) -> bool:
    """Whether ``searched`` may be found in some text that ``matched`` matches as a whole."""
    at_begin, at_end = searched.startswith("^"), searched.endswith("$") and not searched.endswith("\\$")
    inner = searched[at_begin : len(searched) - at_end]
    try:
        left, right = _Parser(matched), _Parser(inner)
        (left_begin, left_end), (right_begin, right_end) = left.whole(matched), right.whole(inner)
    except _UnknownError:
        return True
    if "|" in inner and (at_begin or at_end):
        return True  # the anchor belongs to one of the alternatives
    if not at_begin:
        right.made.steps[right_begin].append((_ANY, right_begin))
    if not at_end:
        right.made.steps[right_end].append((_ANY, right_end))
    return _meet(left.made, (left_begin, left_end), right.made, (right_begin, right_end))


def _meet(left: _Automaton, left_ends: _Ends, right: _Automaton, right_ends: _Ends) -> bool:
    pending = [(left_ends[0], right_ends[0])]
    known = set(pending)
    while pending:
        one, other = pending.pop()
        ours, theirs = left.reached(frozenset({one})), right.reached(frozenset({other}))
        if left_ends[1] in ours and right_ends[1] in theirs:
            return True
        for chars, target in (step for state in ours for step in left.steps[state]):
            for others, further in (step for state in theirs for step in right.steps[state]):
                pair = (target, further)
                if pair not in known and chars.meets(others):
                    known.add(pair)
                    pending.append(pair)
    return False
