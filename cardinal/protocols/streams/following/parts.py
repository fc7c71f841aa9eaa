"""What a follower joins, made as its settings say: blocks assembled, put in order, and taken from reorg channels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cardinal.protocols.streams.assembly.contents import Contents
from cardinal.protocols.streams.assembly.reassembler import Reassembler
from cardinal.protocols.streams.cursor import CHANNELS_MAX
from cardinal.protocols.streams.ordering.orderer import Orderer
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler, parse_policy

from .reorg_channels import ChannelBounds, Reorgs

if TYPE_CHECKING:
    from cardinal.protocols.streams.assembly.assembler import Assembler

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
