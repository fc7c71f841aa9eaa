"""Settings of both sides: limits and times, with the defaults of the protocol. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from cardinal.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ArbiterSettings:
    """Limits and times of an arbiter; times are seconds, and one that is reached is over.

    Attributes:
        duplicate_window: blocks below the last one of which an offer is skipped, not an error.
        max_open_blocks: blocks above the acknowledged ones.
        stall_distance: blocks that may be completed above one that is being sent.
        block_time: of the chain; both time-outs are at least twice as long.
        idle_timeout: since the last set of a block.
        block_timeout: since the first header of a block.
        proof_grace: since the last proof of a block whose publisher sends no BlockEnd.
        resend_grace: until a requested block is requested from everybody.
        unavailable_after: without a publisher, until subscribers are notified.
        max_block_bytes, max_block_items: of one block; bytes are those of its body, in which items are framed.
        first: the first block of an empty node; None: the first header says.
        last_stored: the highest block stored at start-up, without forks.
        reorg_threshold: depth of forks that are accepted; None: blocks are numbers.
        side_branches: blocks of one number that one identity may send.

    """

    duplicate_window: int = 5
    max_open_blocks: int = 64
    stall_distance: int = 3
    block_time: float = 2.0
    idle_timeout: float = 8.0
    block_timeout: float = 32.0
    proof_grace: float = 0.25
    resend_grace: float = 8.0
    unavailable_after: float = 300.0
    max_block_bytes: int = 131_072_000
    max_block_items: int = 1_000_000
    first: int | None = None
    last_stored: int | None = None
    reorg_threshold: int | None = None
    side_branches: int = 4

    def __post_init__(self) -> None:
        """Refuse times that would end a stream before a block can be complete.

        Raises:
            ConfigurationError: a time-out is below two block times, or ``stall_distance`` below 1.

        """
        for name in ("idle_timeout", "block_timeout"):
            if getattr(self, name) < 2 * self.block_time:
                raise ConfigurationError(f"{name} must be at least two block times", setting=name)
        if self.stall_distance < 1:
            raise ConfigurationError("stall_distance must be at least 1", setting="stall_distance")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Limits and times of a session, in blocks, bytes and seconds.

    Attributes:
        forks: whether headers carry hashes, and the feed reports reorgs.
        buffer_blocks, buffer_bytes: bounds of what is held.
        switch_at, drained_at: parts of a bound at which another node is tried, and at which the host may resume.
        switch_grace: that a node has, before a filling buffer makes the session leave it.
        late_after, late_blocks: time until an acknowledgement is late, late ones until the session leaves.
        cooling: of a node that failed.
        backoff, backoff_most: first and longest wait before the same node is tried again.
        behind_wait, behind_wait_most: the same for an offer that a node is not ready for.
        behind_cooling_most: longest cooling of a node that is too far behind.
        storm_ends, storm_window, storm_pause: number of ends within a time that is followed by a pause.
        reset_period: after which a stream is ended in good order, for another node.

    """

    forks: bool = False
    buffer_blocks: int = 150
    buffer_bytes: int = 256 * 1024 * 1024
    switch_at: float = 0.5
    drained_at: float = 0.85
    switch_grace: float = 20.0
    late_after: float = 30.0
    late_blocks: int = 5
    cooling: float = 30.0
    backoff: float = 1.0
    backoff_most: float = 10.0
    behind_wait: float = 0.25
    behind_wait_most: float = 2.0
    behind_cooling_most: float = 300.0
    storm_ends: int = 6
    storm_window: float = 30.0
    storm_pause: float = 30.0
    reset_period: float = 86_400.0
