"""Partitions that are added while a source is read: they are read from their beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.transports.pace import Unasked

if TYPE_CHECKING:
    from cardinal.transports import Source


def add_partitions(source: Source) -> bool:
    """Read partitions that there are by now, too; whether there are some.

    Where they begin is asked of whoever has them: of several places read as one another one may be away just then.

    Raises:
        UnreachableError: the server is away.

    """
    positions = source.positions()
    added = set(source.partitions()) - positions.keys()
    if not added:
        return False
    marks = source.watermarks_later(look=False).result() if isinstance(source, Unasked) else source.watermarks()
    begin = {where: marks[where][0] for where in added if where in marks}
    if begin:
        source.assign(positions | begin)
    return bool(begin)
