"""Replica: one member's part in the agreement on one stream.

Rules:

1. Every input is one step: what must be committed (rows), then what is done after the commit (actions). Nothing is sent
   that does not follow from committed facts; a crash between the two loses messages, which the snapshots repeat.
2. What is remembered of a peer (blocks, signatures, held messages) is cleared when a session of it begins: its snapshot
   replaces it.
3. A member signs a candidate only for the number after its own, over its own state, with every body stored.
4. The outcome of a claim is read from the log alone, by its leader, too.
5. A signer deletes no body before its number is decided, and no winner's body before it is promoted: blocks are deleted
   when a number is decided and when a marker is read, and promoted ones also where another block needs the capacity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from cardinal.errors import LocalProtocolError
from cardinal_ingest.errors import ViolationError
from cardinal_ingest.protocols.cbor import DECODER_FAILURE
from cardinal_ingest.protocols.replication.leader_schedule import Turns

from .candidates import Candidates
from .claims import Applied, ClaimLog, Noted, Opened
from .codec import claim_bytes, encode, record_bytes, saved_bytes, seal_header
from .effects import (
    Acknowledged,
    Action,
    Agreed,
    Append,
    Broadcast,
    CheckpointRead,
    ClaimRefused,
    DeleteBlock,
    DeleteCandidates,
    DeleteWinner,
    Denial,
    Denied,
    Divergence,
    EpochClosed,
    PutBlock,
    PutCandidate,
    PutPosition,
    PutPromoted,
    PutWinner,
    Row,
    Send,
    StateDivergence,
    Step,
    Stored,
    Want,
)
from .observers import Observers
from .pool import Pool
from .rounds import Round, cut
from .settings import ReplicationSettings
from .state import State
from .types import (
    NO_HASH,
    Answer,
    Block,
    Candidate,
    Checkpoint,
    Claim,
    Close,
    Header,
    Item,
    Marker,
    Membership,
    Message,
    Observed,
    Proposal,
    Propose,
    Ref,
    Saved,
    Sign,
    Verify,
)

_BLOCKS_PER_MESSAGE: Final = 4096
"""Blocks of one Observed in a snapshot: about half of the largest frame."""


class Replica:
    """State of one member.

    Args:
        node: its id.
        membership: all members, this one included.
        sign, verify: this node's signature, and the verdict on others.
        settings: limits and times.
        rows: rows that earlier steps stored, in any order.

    """

    def __init__(
        self,
        node: str,
        membership: Membership,
        sign: Sign,
        verify: Verify,
        settings: ReplicationSettings | None = None,
        *,
        rows: Iterable[Stored] = (),
    ) -> None:
        self.node = node
        self.membership = membership
        self.settings = settings = settings or ReplicationSettings()
        self.pool = Pool()
        self.winners: dict[int, Header] = {}
        """Agreed batches by number, while their bodies are stored or needed."""
        self.promoted = (0, 0)
        """Position of the last marker."""
        self.deadline = inf
        """Time of the next :meth:`tick` that changes something; infinite if none."""
        self._sign = sign
        self._verify = verify
        self._candidates = Candidates(settings.max_candidates)
        self._observers = Observers(self.pool, membership.quorum, settings.max_observed)
        self._agreed: dict[bytes, int] = {}
        """Blocks of winners, and the number of their batch."""
        self._wanted: dict[bytes, Item] = {}
        """Blocks of winners whose bodies are missing."""
        self._round: Round | None = None
        self._rounds = 0
        self._proposal: tuple[str, Proposal] | None = None
        """The last vote, and the leader that it was sent to."""
        self._held: defaultdict[str, list[Propose | Candidate]] = defaultdict(list)
        """Messages about numbers that this node's reader has not reached."""
        self._claimed: tuple[bytes, float] | None = None
        """The batch that was claimed last, and when."""
        self._since: float | None = None
        self._full = False
        """Blocks were denied for lack of capacity."""
        self._rows: list[Row] = []
        self._actions: list[Action] = []
        self.log = ClaimLog(membership, verify)
        self._restore(rows)
        self._turns = Turns(settings, self.log.position.skips)

    def _restore(self, rows: Iterable[Stored]) -> None:
        for row in rows:
            match row:
                case PutBlock(block):
                    self.pool.add(block)
                case PutCandidate(header, signature):
                    self._candidates.store(header)
                    if signature:
                        self._candidates.sign(self.node, header, signature)
                case PutWinner(header):
                    self.winners[header.num] = header
                case PutPosition(position):
                    self.log.position = position
                case _:
                    self.promoted = row.num, row.index
        if self.state is not None:
            self.pool.relink(self.state)
            self._candidates.decided(self.state.num)
        for header in self.winners.values():
            self._agreed.update((item.hash, header.num) for item in header.items)
            self._wanted.update(self._missing(header))
        self._acknowledge(self.pool.blocks.values())

    # --- queries ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        """Agreement state; None before the log's first record was read."""
        return self.log.state

    @property
    def leader(self) -> str | None:
        """The member that this one takes for the leader."""
        return None if self.state is None else self.membership.leader(self._turns.clock(self.state.highest))

    @property
    def wanted(self) -> list[Ref]:
        """Blocks of agreed batches whose bodies are missing."""
        return [item.ref for item in self._wanted.values()]

    @property
    def unagreed(self) -> int:
        """Number of acknowledged blocks that no batch has."""
        return len(self._observers.acknowledged)

    def needs(self, ref: Ref) -> bool:
        """The body is to be fetched: it is not stored, and may still be agreed or must be promoted."""
        if ref.hash in self._wanted:
            return True
        if ref.hash in self.pool.blocks or self.state is None or ref.hash in self.state.ring:
            return False
        return ref.number >= self.state.floor

    def snapshot(self, peer: str) -> list[Message]:
        """Messages for a peer to which a session begins: everything that this node has committed and that is open."""
        state, stream = self.state, self.membership.stream
        if state is None:
            return []
        blocks = [block for block in self.pool.blocks.values() if block.hash not in self._agreed]
        messages: list[Message] = [
            Observed(stream, tuple(blocks[at : at + _BLOCKS_PER_MESSAGE]))
            for at in range(0, len(blocks), _BLOCKS_PER_MESSAGE)
        ]
        for batch, signature in self._candidates.own.items():
            header = self._candidates.headers[batch]
            if header.num > state.num:
                messages.append(Candidate(stream, header))
            messages.append(Saved(stream, header.num, batch, signature))
        if self._round is not None:
            messages.append(Propose(stream, state.num + 1, state.hash, self._round.number, self._turns.skips))
        if self._proposal is not None and self._proposal[0] == peer and self._proposal[1].num == state.num + 1:
            messages.append(self._proposal[1])
        return messages

    # --- inputs -------------------------------------------------------------------------------------------------------

    def admit(self, blocks: Sequence[Block], now: float) -> Step:
        """Blocks whose bodies are here and verified, of publishers or of peers."""
        stored = [block for block in blocks if self._admit(block)]
        if stored:
            fresh = tuple(block for block in stored if block.hash not in self._agreed)
            if fresh:
                self._actions.append(Broadcast(Observed(self.membership.stream, fresh)))
            self._acknowledge(fresh)
            for header in list(self._candidates.headers.values()):
                self._save(header)
        return self._step(now)

    def begin(self, peer: str, now: float) -> Step:
        """A session of the peer begins; its snapshot follows."""
        self._observers.forget(peer)
        self._candidates.forget(peer)
        self._held.pop(peer, None)
        return self._step(now)

    def receive(self, peer: str, message: Message, now: float) -> Step:
        """A message of a member.

        Raises:
            ViolationError: a signature is not the peer's, or the message is of another cluster or stream.

        """
        if message.stream != self.membership.stream:
            raise ViolationError(DECODER_FAILURE, f"stream {message.stream!r}")
        self._receive(peer, message, now)
        return self._step(now)

    def read(self, offset: int, value: bytes, now: float) -> Step:
        """The next record of the claim log.

        Raises:
            StateDivergedError: this node's state is not the majority's.
            ClaimLogDivergedError: the record was read before.

        """
        verdict = self.log.read(offset, value)
        self._rows.append(PutPosition(self.log.position))
        match verdict:
            case Opened(state):
                self._opened(state)
            case Applied(claim, state):
                self._apply(claim, state)
            case Noted(Checkpoint(), num):
                self._actions.append(CheckpointRead(offset, num))
            case Noted(_, num):
                self._actions.append(EpochClosed(num))
            case _:
                self._actions.append(ClaimRefused(offset, verdict.reason))
        return self._step(now)

    def marker(self, marker: Marker, now: float) -> Step:
        """A committed marker of this epoch; one that does not rise is ignored."""
        if marker.position > self.promoted:
            self.promoted = marker.position
            self._rows.append(PutPromoted(*marker.position))
            self._wanted = {one: item for one, item in self._wanted.items() if not self._is_promoted(self._agreed[one])}
            if self.state is not None:
                self._prune(self.state)
        return self._step(now)

    def tick(self, now: float) -> Step:
        """Time has passed."""
        return self._step(now)

    def record(self, kind: type[Checkpoint | Close]) -> bytes:
        """A checkpoint or a close with the current state, for the claim log."""
        if self.state is None:
            raise LocalProtocolError("read the claim log before writing a checkpoint")
        unsigned = kind(self.state.raw, self.node, b"")
        signature = self._sign(record_bytes(self.membership.cluster, unsigned))
        return encode(replace(unsigned, signature=signature))

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _admit(self, block: Block) -> bool:
        """Store a block, or put out why not."""
        state = self.state
        if state is None:
            return self._deny(block, Denial.NOT_OPEN)
        here, wanted = self.pool.blocks.get(block.hash), self._wanted.get(block.hash)
        ours = here.content if here is not None else block.content if wanted is None else wanted.content
        if block.content != ours:
            self._actions.append(Divergence(block.ref, ours, block.content))
            return self._deny(block, Denial.OTHER_CONTENT)
        if wanted is None:
            agreed = block.hash in self._agreed or block.hash in state.ring
            if agreed or block.hash in self._observers.acknowledged:
                self._actions.append(Acknowledged((block.ref,)))
            if agreed or here is not None:
                return False
            if block.number < state.floor:
                return self._deny(block, Denial.FORK_TOO_DEEP)
            if not self._has_room(block, state) and not self._candidate(block):
                self._full = True
                return self._deny(block, Denial.POOL_FULL)
        self._wanted.pop(block.hash, None)
        self.pool.add(block)
        self._rows.append(PutBlock(block))
        for peer, content in self._observers.others(block):
            self._actions.append(Divergence(block.ref, block.content, content, peer))
        return True

    def _has_room(self, block: Block, state: State) -> bool:
        """The pool has capacity for the block, if need be in place of promoted ones."""
        if not self._fits(block):
            self._drop_promoted(state)
        return self._fits(block)

    def _fits(self, block: Block) -> bool:
        """The block fits as things are; those that wait for an ancestor, which must fit too, take half at most."""
        size, capacity = self.pool.size + block.size, self.settings.pool_bytes
        return size <= capacity // 2 or (size <= capacity and self.pool.links(block))

    def _deny(self, block: Block, reason: Denial) -> bool:
        self._actions.append(Denied(block.ref, reason))
        return False

    def _candidate(self, block: Block) -> bool:
        """A candidate of the open number contains the block."""
        return any(block.item in header.items for header in self._candidates.headers.values())

    def _acknowledge(self, blocks: Iterable[Block]) -> None:
        refs = [] if self.state is None else self._observers.acknowledge(blocks, self.state)
        if refs:
            self._actions.append(Acknowledged(tuple(refs)))

    def _is_promoted(self, num: int) -> bool:
        """All of an agreed batch is on the topics."""
        return self.promoted >= (num, len(self.winners[num].items))

    def _missing(self, header: Header) -> dict[bytes, Item]:
        """Blocks of a winner that must be promoted and whose bodies are missing."""
        if self._is_promoted(header.num):
            return {}
        return {item.hash: item for item in header.items if not self.pool.holds(item)}

    def _prune(self, state: State) -> None:
        """Delete what is neither open, nor to be promoted, nor near the head (rule 5)."""
        for block in list(self.pool.blocks.values()):
            if block.hash not in self._agreed and block.number < state.floor:
                self._delete(block)
        self._drop_promoted(state)
        self._observers.prune(state)
        if self._full:
            self._full = False
            self._want_observed()

    def _drop_promoted(self, state: State) -> None:
        """Delete promoted batches: those far below the head, and the oldest while the pool is more than half full."""
        for num, header in sorted(self.winners.items()):
            deep = header.items[-1].number + self.settings.retain_blocks <= state.highest
            if not self._is_promoted(num) or not (deep or self.pool.size > self.settings.pool_bytes // 2):
                break
            self._rows.append(DeleteWinner(num))
            del self.winners[num]
            for item in header.items:
                del self._agreed[item.hash]
                if item.hash in self.pool.blocks:
                    self._delete(self.pool.blocks[item.hash])

    def _want_observed(self) -> None:
        """Request what peers announced when this node could not store it: they do not announce it again."""
        missing = self._observers.missing()
        if missing:
            self._actions.append(Want(missing))

    def _delete(self, block: Block) -> None:
        self.pool.remove(block)
        self._rows.append(DeleteBlock(block.ref))

    # --- messages -----------------------------------------------------------------------------------------------------

    def _receive(self, peer: str, message: Message, now: float) -> None:
        match message:
            case Observed(_, blocks):
                self._observe(peer, blocks)
            case Propose():
                self._vote(peer, message)
            case Proposal(_, num, number, answer, refs):
                turn = self._round
                if turn is not None and (turn.num, turn.number, Answer.VOTE) == (num, number, answer):
                    turn.vote(peer, refs, self.membership.quorum, now)
            case Candidate(_, header):
                if (header.cluster, header.stream) != (self.membership.cluster, self.membership.stream):
                    raise ViolationError(DECODER_FAILURE, "a candidate of another cluster or stream")
                self._consider(peer, message)
            case _:
                self._countersign(peer, message)

    def _countersign(self, peer: str, message: Saved) -> None:
        """Count a signature."""
        signed = saved_bytes(self.membership.cluster, message.stream, message.num, message.batch)
        if not self._verify(self.membership.members[peer], signed, message.signature):
            raise ViolationError("BadSignature", f"a signature of {peer} that is not its own")
        if self.state is None or message.num > self.state.num:
            self._candidates.signed(peer, message.num, message.batch, message.signature)

    def _observe(self, peer: str, blocks: Iterable[Block]) -> None:
        state = self.state
        stored: list[Block] = []
        for block in blocks:
            if state is not None and (block.hash in state.ring or block.number < state.floor):
                continue
            self._observers.observe(peer, block)
            here = self.pool.blocks.get(block.hash)
            if here is not None:
                stored.append(here)
                if here.content != block.content:
                    self._actions.append(Divergence(here.ref, here.content, block.content, peer))
        self._acknowledge(stored)

    def _vote(self, peer: str, message: Propose) -> None:
        """Answer a round of a leader."""
        state = self.state
        if state is None or message.num > state.num + 1:
            self._hold(peer, message)
            return
        self._turns.adopt(message.skips)
        refs: tuple[Ref, ...] = ()
        answer = Answer.BEHIND
        if message.num == state.num + 1:
            if message.prev != state.hash:
                self._actions.append(StateDivergence(peer, message.num))
                return
            answer, refs = Answer.VOTE, tuple(block.ref for block in self.pool.suffix(state.rules.max_blocks))
        proposal = Proposal(message.stream, message.num, message.round, answer, refs)
        self._proposal = peer, proposal
        self._actions.append(Send(peer, proposal))

    def _consider(self, peer: str, message: Candidate) -> None:
        """Store a candidate that could be the next batch, and sign it as soon as its bodies are here."""
        header, state = message.header, self.state
        if state is None or header.num > state.num + 1:
            self._hold(peer, message)
            return
        if header.hash in self._candidates.headers or state.refusal(header) is not None:
            return
        if header.state != state.digest:
            self._actions.append(StateDivergence(peer, header.num))
            return
        if not self._candidates.accept(peer, header):
            return
        self._candidates.store(header)
        self._rows.append(PutCandidate(header, b""))
        missing = tuple(item.ref for item in header.items if item.hash not in self.pool.blocks)
        if missing:
            self._actions.append(Want(missing))
        for item in header.items:
            here = self.pool.blocks.get(item.hash)
            if here is not None and here.content != item.content:
                self._actions.append(Divergence(here.ref, here.content, item.content, peer))
        self._save(header)

    def _hold(self, peer: str, message: Propose | Candidate) -> None:
        held = self._held[peer]
        held.append(message)
        del held[: -self.settings.max_candidates]

    def _save(self, header: Header) -> None:
        """Sign a stored candidate, if this member can vouch for it (rule 3)."""
        state = self.state
        if state is None or header.num != state.num + 1 or header.hash in self._candidates.own:
            return
        if not all(map(self.pool.holds, header.items)):
            return
        run = [self.pool.blocks[item.hash] for item in header.items]
        parents = [header.parent, *(block.hash for block in run[:-1])]
        if (
            run[-1].weight != header.weight
            or [block.parent for block in run] != parents
            or not self._counts(run, state)
        ):
            return
        membership = self.membership
        signature = self._sign(saved_bytes(membership.cluster, membership.stream, header.num, header.hash))
        self._candidates.sign(self.node, header, signature)
        self._rows.append(PutCandidate(header, signature))
        self._actions.append(Broadcast(Saved(membership.stream, header.num, header.hash, signature)))

    def _counts(self, run: list[Block], state: State) -> bool:
        """A consumer's head moves to the run, or to what this member's suffix has above it.

        A limit may cut a heavier branch where it is not heavier yet: without the second half it would never be agreed.
        """
        return state.extends(run[0].parent, run[-1].weight) or self.pool.suffix(len(run)) == run

    # --- the log ------------------------------------------------------------------------------------------------------

    def _opened(self, state: State) -> None:
        self.promoted = max(self.promoted, (state.num, 0))
        self._rows.append(PutPromoted(*self.promoted))
        self.pool.relink(state)
        self._observers.prune(state)
        self._want_observed()
        self._replay()

    def _apply(self, claim: Claim, state: State) -> None:
        """A batch is agreed: ``state`` is what follows it."""
        header = claim.header
        self.winners[header.num] = header
        self._agreed.update((item.hash, header.num) for item in header.items)
        self._rows += [PutWinner(header), DeleteCandidates(header.num)]
        self._actions.append(Agreed(header))
        self._candidates.decided(header.num)
        fresh = tuple(item.ref for item in header.items if item.hash not in self._observers.acknowledged)
        if fresh:
            self._actions.append(Acknowledged(fresh))
        for item in header.items:
            here = self.pool.blocks.get(item.hash)
            if here is not None and not self.pool.holds(item):  # the majority's content counts
                self._actions.append(Divergence(here.ref, here.content, item.content))
                self._delete(here)
        missing = self._missing(header)
        if missing:
            self._wanted.update(missing)
            self._actions.append(Want(tuple(item.ref for item in missing.values())))
        self._prune(state)
        self.pool.relink(state)
        self._acknowledge([child for item in header.items for child in self.pool.children(item.hash)])
        self._turns.decided(self.log.position.skips)
        self._round = self._claimed = self._since = None
        if claim.claimer == self.node and header.num % self.settings.checkpoint_every == 0:
            self._actions.append(Append(self.record(Checkpoint)))
        self._replay()

    def _replay(self) -> None:
        """Take up the messages that waited for this node's reader."""
        held = [(peer, message) for peer, messages in self._held.items() for message in messages]
        self._held.clear()
        for peer, message in held:
            if isinstance(message, Propose):
                self._vote(peer, message)
            else:
                self._consider(peer, message)

    # --- leading ------------------------------------------------------------------------------------------------------

    def _step(self, now: float) -> Step:
        """Everything that came of an input, the leader's next move included."""
        self.deadline = inf
        if self.state is not None and not self.log.position.closed:
            self._lead(self.state, now)
        step = Step(tuple(self._rows), tuple(self._actions))
        self._rows.clear()
        self._actions.clear()
        return step

    def _due(self, at: float, now: float) -> bool:
        """The time has come; else it is a deadline."""
        if now >= at:
            return True
        self.deadline = min(self.deadline, at)
        return False

    def _lead(self, state: State, now: float) -> None:
        first = self.pool.first
        ready = first is not None and self._observers.majority(first)
        certified = self._candidates.certified(state.num + 1, self.membership.quorum)
        full = state.num - self.promoted[0] > self.settings.max_unpromoted
        work = (ready or certified is not None) and not full
        while self._due(self._turns.deadline(work=work, now=now), now):
            self._turns.skip(now)
            self._round = None
        if full or self.membership.leader(self._turns.clock(state.highest)) != self.node:
            return
        if certified is None:
            self._propose(state, now, ready=ready)
            self._combine(state, now)
            certified = self._candidates.certified(state.num + 1, self.membership.quorum)
        if certified is not None:
            self._claim(*certified, now)

    def _propose(self, state: State, now: float, *, ready: bool) -> None:
        """Open a round: when a majority observed the first block, or at the retry."""
        suffix_first = self.pool.first
        if suffix_first is None:
            return
        if self._since is None:
            self._since = now
        wait = self.settings.batch_wait if ready and self._round is None else self._turns.retry
        began = self._since if self._round is None else self._round.began
        if not self._due(began + wait, now):
            return
        self._rounds += 1
        self._round = Round(self._rounds, state.num + 1, now)
        self._turns.proposed()
        self._due(now + self._turns.retry, now)
        vote = tuple(block.ref for block in self.pool.suffix(state.rules.max_blocks))
        self._round.vote(self.node, vote, self.membership.quorum, now)
        message = Propose(self.membership.stream, state.num + 1, state.hash, self._rounds, self._turns.skips)
        self._actions.append(Broadcast(message))

    def _combine(self, state: State, now: float) -> None:
        """Make a candidate of the votes."""
        turn = self._round
        if turn is None:
            return
        path = turn.result(self.node, self.membership, self.settings.gather_grace, now)
        if path is None:
            if turn.full_since is not None and not turn.combined:
                self._due(turn.full_since + self.settings.gather_grace, now)
            return
        run = cut(path, self.pool.blocks, state.rules.max_blocks, self.settings.batch_bytes)
        if not run or not self._counts(run, state):
            return
        membership = self.membership
        header = seal_header(
            membership.cluster, membership.stream, state.num + 1, state.hash, state.digest,
            run[0].parent, run[-1].weight, (block.item for block in run),
        )  # fmt: skip
        if header.hash not in self._candidates.own and state.refusal(header) is None:
            self._candidates.store(header)
            self._actions.append(Broadcast(Candidate(membership.stream, header)))
            self._save(header)

    def _claim(self, header: Header, signatures: dict[str, bytes], now: float) -> None:
        """Claim a certified candidate; the same again until a claim is read."""
        batch, at = self._claimed or (NO_HASH, 0.0)
        if batch == header.hash and not self._due(at + self.settings.claim_timeout, now):
            return
        self._claimed = header.hash, now
        self._due(now + self.settings.claim_timeout, now)
        claim = Claim(header, self.node, self._turns.skips, tuple(sorted(signatures.items())), b"")
        signature = self._sign(claim_bytes(self.membership.cluster, claim))
        self._actions.append(Append(encode(Claim(header, self.node, claim.skips, claim.certificate, signature))))
