"""The promise of sealing over any course of events: a sealed Batch that can be read means that its block is complete.

A machine plays a producer with blocks of several messages on a broker that acknowledges, loses, and makes readable in
any order. Whatever was handed over may be readable from then on, acknowledged or not: so it is at the moment of handing
a Batch over that everything else must have been acknowledged.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cardinal.errors import LocalProtocolError
from cardinal.protocols.streams import SealQueue
from examples import examples, few
from streams import h
from work_counter import lines

ROOT = "root"


class Block:
    """One block as its producer and its broker know it."""

    def __init__(self, name: str, parent: Block | None, announced: frozenset[str]) -> None:
        self.name = name
        self.parent = parent
        self.announced = announced
        self.messages: set[str] = set()
        """Of the present attempt, sent and not acknowledged."""
        self.owed: set[str] = set()
        """Sub batches of the present attempt whose content is not acknowledged."""
        self.sending: set[str] = set()
        """Sub batches whose content was sent."""
        self.on_topics: set[str] = set()
        self.failed = False
        self.handed = 0
        self.in_flight = False
        self.sealed = False

    def ancestors(self) -> list[Block]:
        found, at = [], self.parent
        while at is not None:
            found.append(at)
            at = at.parent
        return found


class Sealing(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = SealQueue()
        self.blocks: list[Block] = []
        self.log: list[str] = []
        """Blocks in the order in which their Batches were handed over."""
        self.first_sealed = False

    def named(self, name: str) -> Block:
        return next(block for block in self.blocks if block.name == name)

    # --- the producer ----------------------------------------------------------------------------------------

    @rule(data=st.data(), announced=st.frozensets(st.sampled_from("st"), max_size=2))
    def add(self, data: st.DataObject, announced: frozenset[str]) -> None:
        if len(self.blocks) > 12:
            return
        above = data.draw(st.sampled_from([None, *self.blocks[-4:]]))
        block = Block(f"b{len(self.blocks)}", above, announced)
        self.blocks.append(block)
        self.begin(block)

    @precondition(lambda self: any(block.failed for block in self.blocks))
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        self.begin(data.draw(st.sampled_from([block for block in self.blocks if block.failed])))

    def begin(self, block: Block) -> None:
        block.failed = False
        block.messages = {"one", "two"}
        block.owed = set(block.announced)
        block.sending = set()
        parent = h(ROOT) if block.parent is None else h(block.parent.name)
        self.queue.add(h(block.name), parent, [h(one) for one in block.announced])

    @precondition(lambda self: any(block.owed - block.sending for block in self.blocks))
    @rule(data=st.data())
    def send_sub_batch(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([block for block in self.blocks if block.owed - block.sending]))
        block.sending.add(data.draw(st.sampled_from(sorted(block.owed - block.sending))))

    @precondition(lambda self: self.queue.next_free() is not None)
    @rule()
    def hand_over(self) -> None:
        """The law, at the moment when a Batch may become readable."""
        free = self.queue.next_free()
        assert free is not None
        block = self.named(free.lstrip(b"\0").decode())
        self.queue.hand_over(free)
        assert block.on_topics >= {"one", "two"} | block.announced
        assert not block.messages
        assert not block.owed
        assert not block.failed
        assert not block.in_flight
        for ancestor in block.ancestors():
            assert ancestor.handed
            assert not ancestor.failed
            assert ancestor.in_flight or ancestor.sealed
        assert self.first_sealed or not any(other.in_flight for other in self.blocks)
        block.handed += 1
        block.in_flight = True
        self.log.append(block.name)

    # --- the broker ------------------------------------------------------------------------------------------

    @precondition(lambda self: any(block.messages and not block.failed for block in self.blocks))
    @rule(data=st.data())
    def acknowledge_a_message(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([one for one in self.blocks if one.messages and not one.failed]))
        message = data.draw(st.sampled_from(sorted(block.messages)))
        block.messages.discard(message)
        block.on_topics.add(message)
        if not block.messages:
            self.queue.acknowledged(h(block.name))

    @precondition(lambda self: any(block.sending & block.owed for block in self.blocks))
    @rule(data=st.data(), lost=st.booleans())
    def answer_a_sub_batch(self, data: st.DataObject, lost: bool) -> None:  # noqa: FBT001 - Hypothesis passes it by name
        block = data.draw(st.sampled_from([one for one in self.blocks if one.sending & one.owed]))
        batch_id = data.draw(st.sampled_from(sorted(block.sending & block.owed)))
        block.sending.discard(batch_id)
        if not lost:
            block.owed.discard(batch_id)
            block.on_topics.add(batch_id)
            self.queue.sub_batch_acknowledged(h(block.name), h(batch_id))

    @precondition(lambda self: any(block.in_flight for block in self.blocks))
    @rule(data=st.data())
    def acknowledge_a_batch(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([one for one in self.blocks if one.in_flight]))
        block.in_flight, block.sealed = False, True
        self.first_sealed = True
        self.queue.sealed(h(block.name))

    @rule(data=st.data())
    @precondition(lambda self: any(not block.sealed and not block.failed for block in self.blocks))
    def lose(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([one for one in self.blocks if not one.sealed and not one.failed]))
        block.failed, block.in_flight = True, False
        self.queue.failed(h(block.name))

    @rule(data=st.data())
    def hear_what_is_not_asked_for(self, data: st.DataObject) -> None:
        """Answers to what nobody waits for change nothing."""
        for name in [block.name for block in self.blocks if block.sealed] + ["unknown"]:
            before = self.queue.next_free(), len(self.queue)
            getattr(self.queue, data.draw(st.sampled_from(["acknowledged", "sealed", "failed"])))(h(name))
            self.queue.sub_batch_acknowledged(h(name), h("s"))
            assert (self.queue.next_free(), len(self.queue)) == before

    # --- what always holds -----------------------------------------------------------------------------------

    @invariant()
    def the_queue_knows_what_is_under_way(self) -> None:
        assert len(self.queue) == sum(not block.sealed for block in self.blocks)
        assert all((h(block.name) in self.queue) == (not block.sealed) for block in self.blocks)

    @invariant()
    def what_may_go_is_in_the_line(self) -> None:
        """Nothing waits that need not: whatever the rules allow to go stands in the line."""
        if not self.first_sealed and (self.queue.next_free() or any(block.in_flight for block in self.blocks)):
            return
        for block in self.blocks:
            ready = not (block.messages or block.owed or block.failed or block.in_flight or block.sealed)
            if ready and all(one.in_flight or one.sealed for one in block.ancestors()):
                assert h(block.name) in self.queue._line

    def teardown(self) -> None:
        """In the end everything is sent, and nothing is remembered."""
        for _ in range(20 * len(self.blocks) + 20):
            for block in self.blocks:
                if block.failed:
                    self.begin(block)
                if block.messages:
                    block.on_topics |= block.messages
                    block.messages = set()
                    self.queue.acknowledged(h(block.name))
                for batch_id in sorted(block.owed):
                    block.owed.discard(batch_id)
                    block.on_topics.add(batch_id)
                    self.queue.sub_batch_acknowledged(h(block.name), h(batch_id))
            while self.queue.next_free() is not None:
                self.hand_over()
            for block in self.blocks:
                if block.in_flight:
                    block.in_flight, block.sealed, self.first_sealed = False, True, True
                    self.queue.sealed(h(block.name))
        assert len(self.queue) == 0
        assert not self.queue._entries
        assert not self.queue._children
        assert not self.queue._behind_first


TestSealing = Sealing.TestCase
TestSealing.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)

# --- cases -------------------------------------------------------------------------------------------------


def ready(queue: SealQueue, names: str) -> None:
    """Add a chain, on the first of these, and acknowledge its content."""
    parent, *rest = names.split()
    for name in rest:
        queue.add(h(name), h(parent))
        queue.acknowledged(h(name))
        parent = name


def go(queue: SealQueue, names: str, *, sealed: bool = True) -> None:
    """Hand these Batches over, the next ones in the line, and acknowledge them."""
    for name in names.split():
        assert queue.next_free() == h(name)
        queue.hand_over(h(name))
    for name in names.split() if sealed else ():
        queue.sealed(h(name))


def begun() -> SealQueue:
    """A queue whose first Batch is acknowledged."""
    queue = SealQueue()
    ready(queue, "none 0a")
    go(queue, "0a")
    return queue


def test_a_failed_grandparent_holds_a_block_whose_parent_is_sealed() -> None:
    queue = begun()
    ready(queue, "0a 1a 2a")
    go(queue, "1a", sealed=False)
    go(queue, "2a")
    queue.failed(h("1a"))
    ready(queue, "2a 3a 4a")
    assert queue.next_free() is None
    assert h("2a") not in queue
    ready(queue, "0a 1a")
    go(queue, "1a 3a 4a")
    assert len(queue) == 0


def test_a_first_block_that_fails_lets_another_be_the_first() -> None:
    queue = SealQueue()
    for name in ("0a", "0b", "0c"):
        ready(queue, f"none{name} {name}")
    queue.failed(h("0b"))
    queue.failed(h("0a"))
    go(queue, "0c")
    assert queue.next_free() is None
    assert len(queue) == 2


def test_a_sealed_block_that_waits_for_its_ancestors_can_be_sent_again() -> None:
    queue = begun()
    ready(queue, "0a 1a 2a 3a")
    go(queue, "1a 2a", sealed=False)
    queue.sealed(h("2a"))
    queue.add(h("2a"), h("1a"))
    assert len(queue) == 3
    assert queue.next_free() is None
    queue.failed(h("2a"))
    queue.failed(h("2a"))
    queue.add(h("2a"), h("1a"))
    queue.sealed(h("1a"))
    queue.acknowledged(h("2a"))
    go(queue, "2a 3a")
    assert len(queue) == 0


def test_what_a_producer_must_not_do_is_refused() -> None:
    queue = begun()
    with pytest.raises(KeyError):
        queue.hand_over(h("9z"))
    ready(queue, "1a 2a 3a")
    for parent in ("1a", "2a", "3a"):
        with pytest.raises(LocalProtocolError, match="its own ancestor"):
            queue.add(h("1a"), h(parent))
    queue.add(h("1a"), h("0a"))
    with pytest.raises(LocalProtocolError, match="already being sent"):
        queue.add(h("1a"), h("0a"))
    queue.failed(h("1a"))
    with pytest.raises(LocalProtocolError, match="another parent"):
        queue.add(h("1a"), h("0b"))


@pytest.mark.parametrize("shape", few(1, ["chain", "chain backwards", "fan", "failed root", "failed blocks"]))
def test_ten_thousand_blocks_in_flight_cost_no_more_each_than_a_thousand(shape: str) -> None:
    small = lines(lambda: many_in_flight(shape, 1_000))
    assert lines(lambda: many_in_flight(shape, 10_000)) < 11 * small


def many_in_flight(shape: str, count: int) -> None:
    queue = begun()
    names = [b"%032d" % index for index in range(count)]
    parents = [h("0a"), *names] if shape != "fan" else [h("0a")] * count
    for name, parent in zip(names, parents, strict=False):
        queue.add(name, parent)
    for name in names if shape != "chain backwards" else reversed(names):
        queue.acknowledged(name)
    if shape == "failed root":
        queue.hand_over(names[0])
        queue.failed(names[0])
        queue.add(names[0], parents[0])
        queue.acknowledged(names[0])
    if shape == "failed blocks":
        for name, parent in zip(reversed(names), reversed(parents[:-1]), strict=True):
            queue.failed(name)
            queue.add(name, parent)
        for name in names:
            queue.acknowledged(name)
    handed = []
    while (free := queue.next_free()) is not None:
        queue.hand_over(free)
        handed.append(free)
    assert handed == names
    for name in names:
        queue.sealed(name)
    assert len(queue) == 0
