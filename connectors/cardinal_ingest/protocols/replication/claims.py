"""Claim log: one order of batches for all members, as a pure function of the log's records.

The log has no conditional append, so validity does its work: the first valid claim of a number wins, for every reader
the same one. Claims that are doubled, late or of a leader that lost a duel are refused by number.

Rules:

1. :meth:`ClaimLog.read` takes the records in the order of their offsets. A refused record moves the position, too.
2. Reasons of refusal are checked in the order of :class:`~.types.Refusal`; the first one counts.
3. A claim that passed every check and names another state than the reader's proves the reader wrong: a majority signed
   it. The reader stops.
4. After a restart :meth:`ClaimLog.confirm` compares the last record that was read: a log with other content, or one
   that ends before, is another log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from cardinal_ingest.errors import ClaimLogDivergedError, StateDivergedError, ViolationError

from .codec import claim_bytes, decode_record, record_bytes, saved_bytes
from .state import Rules, State
from .types import NO_HASH, Checkpoint, Claim, Close, Epoch, Membership, Refusal, Verify, digest


@dataclass(frozen=True, slots=True)
class Position:
    """Place in the claim log, and what the records before it mean. It is stored in one commit with their effects.

    Attributes:
        offset: of the next record.
        record: hash of the record before it.
        skips: highest number of skipped turns in valid claims.
        closed: the last record of the epoch was read.
        rules, state: None before the first record.

    """

    offset: int = 0
    record: bytes = NO_HASH
    skips: int = 0
    closed: bool = False
    rules: Rules | None = None
    state: State | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The first record was valid: the log has a state."""

    state: State


@dataclass(frozen=True, slots=True)
class Applied:
    """A claim won its number; ``state`` follows it."""

    claim: Claim
    state: State


@dataclass(frozen=True, slots=True)
class Noted:
    """A checkpoint or a close with the reader's own state."""

    record: Checkpoint | Close
    num: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that counts for nothing."""

    reason: Refusal


Verdict: TypeAlias = Opened | Applied | Noted | Refused


class ClaimLog:
    """Reader of one claim log.

    Args:
        membership: whose signatures count.
        verify: of signatures.
        position: where an earlier reader stopped. An empty node whose log begins with a checkpoint takes the rules
            from elsewhere: from a position without a state.

    """

    __slots__ = ("_membership", "_verify", "position")

    def __init__(self, membership: Membership, verify: Verify, position: Position | None = None) -> None:
        self._membership = membership
        self._verify = verify
        self.position = position or Position()

    @property
    def state(self) -> State | None:
        """State after the records that were read; None before the first valid one."""
        return self.position.state

    def confirm(self, begin: int, end: int, record: bytes | None) -> None:
        """Compare the log with the one that was read before a restart.

        Args:
            begin: offset of the log's first record.
            end: offset after its last record.
            record: value at ``position.offset`` - 1; None where it was trimmed, or nothing was read.

        Raises:
            ClaimLogDivergedError: it is another log, or lacks records that were not read.

        """
        here = self.position
        if here.state is not None and begin > here.offset:
            raise ClaimLogDivergedError(
                f"remove this node's data and restart it: records {here.offset} to {begin - 1} are trimmed",
                offset=here.offset,
            )
        if end < here.offset:
            raise ClaimLogDivergedError(
                f"restore the claim log: it ends at {end}, {here.offset} records were read of it", offset=here.offset
            )
        if record is not None and digest(record) != here.record:
            raise ClaimLogDivergedError(
                f"restore the claim log: record {here.offset - 1} is not the one that was read", offset=here.offset
            )

    def read(self, offset: int, value: bytes) -> Verdict:
        """The next record.

        Raises:
            ClaimLogDivergedError: the offset is below the position.
            StateDivergedError: a valid claim is over another state.

        """
        here = self.position
        if offset < here.offset:
            raise ClaimLogDivergedError(f"record {offset} was read before", offset=offset)
        verdict = self._verdict(value)
        self.position = replace(self.position, offset=offset + 1, record=digest(value))
        return verdict

    def _verdict(self, value: bytes) -> Verdict:
        try:
            record = decode_record(value)
            if not isinstance(record, Claim):
                return self._other(record, *State.read(record.state, self._rules(record)))
        except ViolationError:
            return Refused(Refusal.MALFORMED)
        here, header = self.position, record.header
        state = here.state
        reason = self._refusal(record, state)
        if state is None or reason is not None:
            return Refused(reason or Refusal.BAD_NUMBER)
        if header.state != state.digest:
            raise StateDivergedError(
                f"remove this node's data and restart it: its state before batch {header.num} is not the majority's",
                num=header.num, expected=header.state, found=state.digest,
            )  # fmt: skip
        after = state.after(header)
        self.position = replace(here, skips=max(here.skips, record.skips), state=after)
        return Applied(record, after)

    def _rules(self, record: Epoch | Checkpoint | Close) -> Rules:
        if isinstance(record, Epoch):
            return Rules(record.start, record.window, record.max_blocks)
        return self.position.rules or Rules(0, 0, 0)

    def _refusal(self, claim: Claim, state: State | None) -> Refusal | None:  # noqa: PLR0911 - one for each rule
        """First reason why a claim counts for nothing."""
        header, members = claim.header, self._membership.members
        if (header.cluster, header.stream) != (self._membership.cluster, self._membership.stream):
            return Refusal.OTHER_CLUSTER
        signers = [one for one, _ in claim.certificate]
        if claim.claimer not in members or not members.keys() >= set(signers):
            return Refusal.NOT_MEMBER
        if self.position.closed:
            return Refusal.CLOSED
        reason = Refusal.BAD_NUMBER if state is None else state.refusal(header)
        if reason is not None:
            return reason
        if not self._signed(claim.claimer, claim_bytes(header.cluster, claim), claim.signature):
            return Refusal.BAD_SIGNATURE
        saved = saved_bytes(header.cluster, header.stream, header.num, header.hash)
        if not all(self._signed(one, saved, signature) for one, signature in claim.certificate):
            return Refusal.BAD_SIGNATURE
        if len(set(signers)) < self._membership.quorum:
            return Refusal.NO_QUORUM
        return None

    def _other(self, record: Epoch | Checkpoint | Close, cluster: bytes, stream: str, state: State) -> Verdict:  # noqa: PLR0911 - one for each rule
        """The verdict on a record that holds a state."""
        membership, here = self._membership, self.position
        if (cluster, stream) != (membership.cluster, membership.stream):
            return Refused(Refusal.OTHER_CLUSTER)
        if isinstance(record, Epoch) and (record.stream, dict(record.members)) != (stream, membership.members):
            return Refused(Refusal.OTHER_CLUSTER)
        if record.id not in membership.members:
            return Refused(Refusal.NOT_MEMBER)
        if here.closed:
            return Refused(Refusal.CLOSED)
        first = here.state is None and (isinstance(record, Epoch) or here.rules is not None)
        if not first and (here.state is None or isinstance(record, Epoch) or state.num != here.state.num):
            return Refused(Refusal.BAD_NUMBER)
        if not self._signed(record.id, record_bytes(cluster, record), record.signature):
            return Refused(Refusal.BAD_SIGNATURE)
        if isinstance(record, Epoch):
            self.position = replace(here, rules=state.rules, state=state)
            return Opened(state)
        if first:
            self.position = replace(here, closed=isinstance(record, Close), state=state)
            return Opened(state)
        if here.state is not None and state.digest != here.state.digest:
            return Refused(Refusal.OTHER_STATE)
        self.position = replace(here, closed=isinstance(record, Close))
        return Noted(record, state.num)

    def _signed(self, member: str, data: bytes, signature: bytes) -> bool:
        return self._verify(self._membership.members[member], data, signature)
