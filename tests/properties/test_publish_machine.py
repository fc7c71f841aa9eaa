"""Hypothesis chooses the steps of a network of publishers and nodes, and of an arbiter's inputs."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from examples import examples
from model.publish_network import Network, Node, Publisher, Wire


class NetworkMachine(RuleBasedStateMachine):
    """Only drives the steps: the network checks its invariants at every effect, and settles in the end."""

    network: Network
    forks = False

    @initialize(seed=st.integers(0, 1 << 20), publishers=st.integers(1, 3), nodes=st.integers(1, 2))
    def begin(self, seed: int, publishers: int, nodes: int) -> None:
        self.network = Network(seed, forks=self.forks, publishers=publishers, nodes=nodes)

    def publisher(self, number: int) -> Publisher:
        return self.network.publishers[number % len(self.network.publishers)]

    def node(self, number: int) -> Node:
        return self.network.nodes[number % len(self.network.nodes)]

    def wire(self, number: int) -> Wire:
        return self.network.wires[number % len(self.network.wires)]

    @rule(number=st.integers(0, 2), sealed=st.booleans())
    def a_feed_grows(self, number: int, *, sealed: bool) -> None:
        self.network.grow(self.publisher(number), sealed=sealed)

    @precondition(lambda self: self.forks)
    @rule(number=st.integers(0, 2), depth=st.integers(1, 4))
    def a_feed_changes_its_branch(self, number: int, depth: int) -> None:
        self.network.reorg(self.publisher(number), depth)

    @rule(number=st.integers(0, 2), count=st.integers(1, 4))
    def a_session_sends(self, number: int, count: int) -> None:
        for _ in range(count):
            self.network.pull(self.publisher(number))

    @precondition(lambda self: self.network.wires)
    @rule(number=st.integers(0, 4), up=st.booleans(), count=st.integers(1, 4))
    def messages_arrive(self, number: int, count: int, *, up: bool) -> None:
        wire = self.wire(number)
        for _ in range(count):
            (self.network.deliver_up if up else self.network.deliver_down)(wire)

    @rule(number=st.integers(0, 1), count=st.integers(1, 4))
    def a_node_decides(self, number: int, count: int) -> None:
        for _ in range(count):
            self.network.verdict(self.node(number))

    @rule(seconds=st.sampled_from((0.05, 0.25, 1, 3, 9, 33)))
    def time_passes(self, seconds: float) -> None:
        self.network.tick(seconds)

    @rule(number=st.integers(0, 1))
    def a_block_is_fetched(self, number: int) -> None:
        self.network.store(self.node(number))

    @precondition(lambda self: self.network.wires)
    @rule(number=st.integers(0, 4))
    def a_stream_is_lost(self, number: int) -> None:
        self.network.lose(self.wire(number))

    @rule(number=st.integers(0, 1))
    def a_node_is_restarted(self, number: int) -> None:
        self.network.restart(self.node(number))

    @rule()
    def a_false_publisher_acts(self) -> None:
        self.network.lie()

    def teardown(self) -> None:
        if hasattr(self, "network"):
            self.network.settle()


class ForkMachine(NetworkMachine):
    """The same with branches."""

    forks = True


TestLine = NetworkMachine.TestCase
TestForks = ForkMachine.TestCase
TestLine.settings = settings(
    max_examples=examples(60),
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestForks.settings = TestLine.settings
