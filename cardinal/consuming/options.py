"""What a consumer's options are to the follower behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardinal.consuming.again import Room
from cardinal.protocols.streams.following.follower import FollowerSettings
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.quorum.voters import share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.apps import Application
    from cardinal.protocols.streams.assembly.window import Bounds
    from cardinal.protocols.streams.events import Header
    from cardinal.protocols.streams.types import Finality


def room_of(settings: FollowerSettings) -> int:
    """How many blocks may be open; of a quorum, of one producer."""
    return _each(settings).open_blocks


def room_again(settings: FollowerSettings) -> Room:
    """What blocks that are read again may take of the room for open blocks; the rest is for those that are new."""
    each = _each(settings)
    return Room(each.again, each.open_bytes // 4)


def _each(settings: FollowerSettings) -> Bounds:
    """The bounds of each reassembler."""
    bounds = settings.bounds
    return bounds if settings.policy == "first" else share_of(bounds, max(1, len(settings.producers)))


def settings_of(app: Application, tracked: Sequence[str] | None) -> FollowerSettings:
    """What an application says, with the entries to follow: those given, else those that it counts under."""

    def finality(block: Header) -> Finality | None:
        return app.finality(block) if isinstance(block, Payload) else None

    return FollowerSettings(
        app=app.name,
        chain=app.chain,
        # An application without counted prefixes has everything inside its Batches.
        tracked=(tuple(app.prefixes) or None) if tracked is None else tuple(tracked),
        inline=tracked is None,
        prefixes=tuple(app.prefixes),
        reorg_threshold=app.reorg_threshold,
        finality_of=finality,
        volatile=tuple(app.volatile_paths),
        default_topic=app.default_topic,
    )
