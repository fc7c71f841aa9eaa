"""Tracked entries: names and expressions of a consumer's option, and the topics that can hold what they match.

Two expressions are compared part by part, between slashes: parts of plain characters must agree, a part with a
character class agrees with any other. Of an expression with anything else (groups, dots, flags) nothing is concluded:
its topics are read, perhaps in vain, and it is not refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from cardinal.config.options import nearest
from cardinal.errors import ConfigurationError

if TYPE_CHECKING:
    from cardinal.apps import Application

_CLASS: Final = r"\[(?:\w(?:-\w)?)+\](?:[+*]|\{\d+\})?"
"""A class of letters and digits: no range between two of them holds a slash."""
_SIMPLE: Final = re.compile(rf"\^?(?:[\w/-]|{_CLASS})*", re.ASCII)
_ANY_PART: Final = "\0"


def tracked_expressions(app: Application, tracked: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The expressions behind an option's names and expressions; None for None: all that the application declares.

    ConfigurationError where a word is none of the application's names, or an expression can match none of its entries.
    """
    if tracked is None:
        return None
    found: list[str] = []
    for one in [tracked] if isinstance(tracked, str) else tracked:
        if app.names and one not in app.names:
            _check_expression(app, one)
        found += app.names.get(one, (one,))
    return tuple(dict.fromkeys(found))


def wanted_topics(app: Application, expressions: Sequence[str] | None, read: Collection[str] = ()) -> tuple[str, ...]:
    """The topics to read for these expressions, the default topic first; all of them for None.

    An application that does not declare the topics of its sub batches may have them on any: all are read. Topics that
    were ``read`` before are read on: a cursor needs its positions.
    """
    if expressions is None or app.sub_batches is None:
        return app.all_topics
    wanted = {app.default_topic, *read}
    for matched, topic in app.topics.items():
        entries = (matched, *(path for path in app.sub_batches if _may_be_found(f"^{matched}", path)))
        if any(_may_be_found(searched, entry) for searched in expressions for entry in entries):
            wanted.add(topic)
    return tuple(topic for topic in app.all_topics if topic in wanted)


def _check_expression(app: Application, searched: str) -> None:
    entries = (*app.topics, *app.prefixes, *(app.sub_batches or ()))
    named = [word for word in re.findall(r"\w+", searched) if word in app.names]
    if named and not any(named[0] in entry for entry in entries):
        raise ConfigurationError(
            f"tracked: {searched!r} would be searched as an expression, and no entry of {app.chain} contains the text "
            f"{named[0]!r}: pass names as a list, tracked={named!r}",
            setting="tracked",
        )
    is_word = searched.isidentifier()
    if not is_word and any(_may_be_found(searched, entry) for entry in entries):
        return
    what = "is no name of an entry" if is_word else "can match no entry"
    others = f"use {', '.join(sorted(app.names))}, or an expression that is found in an entry, such as {entries[0]!r}"
    raise ConfigurationError(
        f"tracked: {searched!r} {what} of {app.chain}: {nearest(searched, app.names if is_word else entries, others)}",
        setting="tracked",
    )


def _may_be_found(searched: str, entry: str) -> bool:
    """False only if ``searched`` can be found in no text that ``entry`` matches as a whole."""
    if not (_SIMPLE.fullmatch(searched) and _SIMPLE.fullmatch(entry)):
        return True
    text = "/".join(_ANY_PART if "[" in part else part for part in entry.removeprefix("^").split("/"))
    parts = searched.removeprefix("^").split("/")
    pattern = "/".join("[^/]*" if "[" in part else f"(?:{part}|{_ANY_PART})" for part in parts)
    return bool((re.match if searched.startswith("^") else re.search)(pattern, text))
