"""Hypothesis chooses the steps of a schedule, and names them where core and model differ."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from examples import examples
from model.scenario import QUICK, make_scenario
from model.schedule import Schedule


class ScheduleMachine(RuleBasedStateMachine):
    """Only drives the steps: the laws are checked by the schedule itself."""

    schedule: Schedule
    quorum = False
    """Whether every schedule is about a quorum, not one in eight."""

    @initialize(seed=st.integers(0, 1 << 20))
    def begin(self, seed: int) -> None:
        self.schedule = Schedule(make_scenario(seed, QUICK, quorum=self.quorum))

    @precondition(lambda self: self.schedule.unrevealed)
    @rule(count=st.integers(1, 200))
    def more_is_published(self, count: int) -> None:
        self.schedule.reveal(count)

    @precondition(lambda self: self.schedule.unread)
    @rule(count=st.integers(1, 60))
    def the_consumer_reads(self, count: int) -> None:
        self.schedule.read(count)

    @rule()
    def a_node_supplies_what_it_has(self) -> None:
        self.schedule.supply()

    @rule(back=st.integers(0, 20))
    def the_consumer_is_restarted(self, back: int) -> None:
        self.schedule.restart(back)

    def teardown(self) -> None:
        if hasattr(self, "schedule"):
            self.schedule.finish()


class QuorumMachine(ScheduleMachine):
    """The same where a quorum decides, and a minority of it lies."""

    quorum = True


TestSchedules = ScheduleMachine.TestCase
TestQuorums = QuorumMachine.TestCase
# Shrinking a schedule takes minutes: take Phase.shrink in when there is something to find.
TestSchedules.settings = settings(
    max_examples=examples(150),
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestQuorums.settings = settings(TestSchedules.settings, max_examples=examples(40))
