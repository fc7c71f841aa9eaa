"""What a follower joins, made as its settings say: blocks assembled, put in order, and taken from reorg channels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from .contents import Contents
from .cursor import CHANNELS_MAX
from .ordering import Orderer
from .quorum import QuorumReassembler, parse_policy
from .reassembler import Reassembler
from .reorgs import ChannelBounds, Reorgs
from .types import short

if TYPE_CHECKING:
    from .assembler import Assembler
    from .settings import FollowerSettings

_EXTENSION_MAX: Final = 1_000
"""Blocks in one extension; a longer one is cut, so that a consumer far behind gets the chain in pieces."""


def assembler_of(settings: FollowerSettings, share: int = 1) -> Assembler:
    """One for the main topics, and one for every reorg channel, with a ``share``-th of the bounds each."""
    k = parse_policy(settings.policy)
    make = Reassembler if k is None else partial(QuorumReassembler, k, settings.producers)
    return make(
        settings.tracked,
        settings.reorg_threshold,
        prefixes=settings.prefixes,
        volatile=settings.volatile,
        inline=settings.inline,
        contents=Contents.VALUES,
        bounds=settings.bounds.part(share),
    )


def main_assembler_of(settings: FollowerSettings) -> Assembler:
    """The one for the main topics. It knows which blocks lie before where they are read from.

    What lies below a given start is never needed: parts of it are passed over. Of a start that is to be found nobody
    knows it: a producer that is behind may send such a block again, whole. Nor of a quorum: what one Batch says of a
    number may be a lie. Then they are held, and nobody waits for one unless a Batch of it comes.
    """
    assembler = assembler_of(settings)
    if settings.start is None or parse_policy(settings.policy) is not None:
        assembler.old(settings.old)
    else:
        assembler.ignore(map(short, settings.old))
    return assembler


def orderer_of(settings: FollowerSettings) -> Orderer:
    """The order of the delivered chain, and its bounds."""
    return Orderer(
        settings.start,
        settings.start_weight,
        settings.reorg_threshold,
        settings.whitelist,
        blacklist=settings.blacklist,
        finality_of=settings.finality_of,
        on_finality_violation=settings.on_finality_violation,
        history=settings.history,
        max_waiting=settings.max_waiting,
        max_side=settings.max_side,
        max_bytes=settings.max_bytes,
        max_extension=_EXTENSION_MAX,
        patient=settings.patient,
    )


def reorgs_of(settings: FollowerSettings, orderer: Orderer) -> Reorgs:
    """The reorg channels beside the main topics, each with an assembler of its own."""
    return Reorgs(
        settings.default_topic,
        orderer,
        partial(assembler_of, settings, CHANNELS_MAX),
        settings.reorg_threshold,
        ChannelBounds(settings.history, settings.max_bytes),
    )
