"""Settings of a replica and of its promotion: limits and times (seconds), with the defaults of the protocol."""

from __future__ import annotations

from dataclasses import dataclass

from cardinal.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Limits and times of one member. None of them decides validity: members may differ.

    Attributes:
        leader_interval: agreed blocks per leader.
        turn_timeout, turn_timeout_most: wait for a claim before the turn is skipped; doubled until the next claim.
        propose_retry, propose_retry_most: wait before a round is repeated; doubled until the next claim.
        batch_wait: from the first block that a majority observed to the round, so that others join it.
        gather_grace: for the votes beyond a majority.
        claim_timeout: until a claim that was not read is sent again.
        batch_bytes: bytes of the bodies of a batch.
        pool_bytes: bytes of the bodies that are stored.
        retain_blocks: depth below the highest agreed number to which promoted bodies are retained for peers, while
            the pool is not half full.
        max_observed: blocks remembered of one peer.
        max_candidates: candidates of one number that one member may send.
        max_unpromoted: batches agreed and not promoted, above which nothing is claimed.
        checkpoint_every: batches between checkpoints.
        promote_wait, promote_wait_most: wait for the promoter before it is replaced; doubled per own failure.
        transaction_bytes: bytes of the bodies of a transaction.

    """

    leader_interval: int = 10
    turn_timeout: float = 2.0
    turn_timeout_most: float = 60.0
    propose_retry: float = 0.5
    propose_retry_most: float = 60.0
    batch_wait: float = 0.005
    gather_grace: float = 0.05
    claim_timeout: float = 5.0
    batch_bytes: int = 64 * 1024 * 1024
    pool_bytes: int = 1024 * 1024 * 1024
    retain_blocks: int = 128
    max_observed: int = 65_536
    max_candidates: int = 16
    max_unpromoted: int = 1024
    checkpoint_every: int = 1024
    promote_wait: float = 2.0
    promote_wait_most: float = 60.0
    transaction_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        """Refuse numbers with which nothing would be agreed.

        Raises:
            ConfigurationError: a count or a time is not positive.

        """
        for name in ("leader_interval", "max_candidates", "max_unpromoted", "checkpoint_every", "turn_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"set {name} above 0", setting=name)
