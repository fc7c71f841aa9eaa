"""Laws of the publish protocol: bytes, the arbiter against its model, sessions against arbiters in a network."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict

import pytest
from click.testing import CliRunner
from google.protobuf.message import DecodeError
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cardinal.errors import EncodeError, RemoteProtocolError
from cardinal_ingest.body import frame
from cardinal_ingest.protocols.publish import (
    NONE,
    Acknowledgement,
    ArbiterSettings,
    BehindPublisher,
    BlockEnd,
    BlockItemSet,
    EndOfStream,
    EndStream,
    Header,
    Kind,
    Request,
    ResendBlock,
    Response,
    SkipBlock,
    Start,
    decode_request,
    decode_response,
    encode,
    publish_pb2,
    read_item,
    read_set,
)
from examples import examples
from model.__main__ import main
from model.publish_model import NaiveArbiter
from model.publish_network import Network, Node, Publisher, Wire, run_network
from model.publish_scenario import (
    Scenario,
    block_of,
    by_recipient,
    bytes_field,
    header_item,
    number_field,
    other_item,
    proof_item,
    varint,
)
from model.publish_schedule import Inputs, run_inputs
from vectors import Case, load

NUMBERS = st.integers(0, NONE) | st.sampled_from((0, 127, 128, 2**32, 2**63, NONE))
CODES = st.integers(-(2**31), 2**31 - 1)
ITEMS = st.one_of(
    st.builds(header_item, st.integers(0, NONE - 1)),
    st.builds(proof_item, NUMBERS),
    st.builds(other_item, st.integers(10, 2**29 - 1), st.integers(0, 40)),
)
REQUESTS = st.one_of(
    st.builds(BlockItemSet, st.lists(st.binary(max_size=30), max_size=8).map(tuple)),
    st.builds(BlockEnd, NUMBERS),
    st.builds(EndStream, CODES, NUMBERS, NUMBERS),
)
RESPONSES = st.one_of(
    *(st.builds(kind, NUMBERS) for kind in (Acknowledgement, SkipBlock, ResendBlock, BehindPublisher)),
    st.builds(EndOfStream, CODES, NUMBERS, NUMBERS),
)


@given(REQUESTS)
def test_every_request_comes_back(request: Request) -> None:
    assert decode_request(encode(request)) == request


@given(RESPONSES)
def test_every_response_comes_back(response: Response) -> None:
    assert decode_response(encode(response)) == response


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (decode_request, decode_response):
        with contextlib.suppress(RemoteProtocolError):
            message = read(data)
            assert message is None or read(encode(message)) == message
    assert isinstance(read_item(data), Header | Kind)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (BlockEnd(-1), "block_number"),
        (Acknowledgement(NONE + 1), "block_number"),
        (EndStream(1, 0, -1), "latest_block_number"),
        (EndStream(2**31), "end_code"),
        (EndOfStream(-(2**31) - 1, 0), "status"),
        (BlockItemSet(("item",)), "block_items"),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_place_on_the_wire_is_refused(message: Request | Response, field: str) -> None:
    with pytest.raises(EncodeError) as refused:
        encode(message)
    assert refused.value.field == field


def is_one_field(item: bytes) -> bool:
    """Whether protobuf reads these bytes as a message of exactly one field."""
    message = publish_pb2.BlockEnd()  # it has no field but 1
    try:
        message.ParseFromString(bytes_field(15, b"") + item)
    except DecodeError:
        return False
    return True


@given(st.binary(max_size=12) | ITEMS)
@example(b"\x53\x08\x01\x54")  # a group, ended
@example(b"\x53\x53\x54\x08\x01\x54")  # a group inside
@example(b"\x53\x5b\x54\x5c")  # ended crosswise
@example(b"\x53\x08\x01")
@example(b"\x51" + bytes(8))
@example(b"\x51" + bytes(7))
@example(b"\x55" + bytes(4))
@example(b"\x50\x01")
@example(b"\x54")
@example(b"\x07")
@example(b"\x80\x80\x80\x80\x80\x01")
@example(b"\xfa\xff\xff\xff\x1f\x00")
@example(b"\x50" + b"\xff" * 10)
def test_an_item_that_protobuf_refuses_is_malformed(item: bytes) -> None:
    if read_item(item) is Kind.OTHER:
        assert is_one_field(item)
    elif not is_one_field(item):
        assert read_item(item) is Kind.MALFORMED


@given(NUMBERS, st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(max_size=9))
def test_a_header_is_read_among_other_fields(number: int, block: bytes, parent: bytes, other: bytes) -> None:
    inside = bytes_field(7, other) + number_field(3, 1) + b"\x53\x54" + varint(3 << 3) + varint(number)
    inside += bytes_field(1001, block) + varint(1002 << 3) + b"\x05" + bytes_field(1002, parent)
    assert read_item(bytes_field(1, inside)) == Header(number, block, parent)


@pytest.mark.parametrize("inside", [b"\x18", b"\x1a\x01\x05", b"\x08\x80", b"\x22\x09ab", b"\x21ab"])
def test_a_header_that_cannot_be_read_is_malformed(inside: bytes) -> None:
    assert read_item(bytes_field(1, inside)) is Kind.MALFORMED


@pytest.mark.parametrize("tag", [b"\x53", b"\x0a"])
def test_what_is_read_field_by_field_is_bounded(tag: bytes) -> None:
    def read(size: int) -> Header | Kind:
        inside = b"\x20\x01" * size
        return read_item(tag + inside + b"\x54" if tag == b"\x53" else bytes_field(1, inside))

    assert read(32_700) in (Kind.OTHER, Header(0))
    assert read(32_800) is Kind.MALFORMED


@given(st.lists(ITEMS, max_size=6))
def test_a_set_is_a_header_then_content_then_proofs(items: list[bytes]) -> None:
    kinds = "".join("h" if isinstance(kind := read_item(item), Header) else kind.name[0] for item in items)
    allowed = bool(items) and re.fullmatch("h?O*P*", kinds) is not None
    found = read_set(items)
    assert (found is not None) is allowed
    if found is not None:
        assert found.size == len(frame(items))
        assert (found.proven, found.content) == (kinds.endswith("P"), "O" in kinds)


# --- models ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(120)),
        pytest.param(range(120, 2_240), marks=pytest.mark.slow),
        pytest.param(range(2_240, 10_240), marks=pytest.mark.soak),
    ],
    ids=len,
)
def test_the_arbiter_puts_out_what_its_model_does(seeds: range) -> None:
    assert [difference for seed in seeds if (difference := run_inputs(seed))] == []


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(50)),
        pytest.param(range(50, 1_050), marks=pytest.mark.slow),
        pytest.param(range(1_050, 5_050), marks=pytest.mark.soak),
    ],
    ids=len,
)
def test_a_network_keeps_its_promises(seeds: range) -> None:
    assert [broken for seed in seeds if (broken := run_network(seed))] == []


@pytest.mark.parametrize("case", load("publish-arbiter.json", "scenarios"), ids=lambda case: str(case["name"]))
def test_the_model_has_the_output_of_the_scenario(case: Case) -> None:
    settings = ArbiterSettings(**{name: value for name, value in case["config"].items() if name != "stored_blocks"})
    scenario, model = Scenario(case), NaiveArbiter(settings, case["config"].get("stored_blocks", []))
    expected = defaultdict(list)
    for out in case["expect"]:
        expected[out["step"]].append((out["to"], out["send"]))
    for i, step in enumerate(case["steps"]):
        for effect in scenario.step(step):
            if isinstance(effect, Start):
                scenario.attempts[effect.block] = effect.attempt
        if "restart" in step:
            model = NaiveArbiter(settings, step["restart"], scenario.now)
            continue
        number = next((step[kind] for kind in ("verified", "persisted", "failed") if kind in step), None)
        current = {} if number is None else {"attempt": scenario.attempts.get(block_of(step, number), 0)}
        assert by_recipient(model.feed(current | step, scenario.now)) == by_recipient(expected[i]), f"step {i}: {step}"


def test_a_faulty_arbiter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal_ingest.protocols.publish.blocks.Line.holds", lambda *_: True)
    monkeypatch.setattr("cardinal_ingest.protocols.publish.blocks.Tree.holds", lambda *_: True)
    assert [difference for seed in range(40) if (difference := run_inputs(seed))]


def test_equal_seeds_choose_equal_inputs() -> None:
    one, other = Inputs(7), Inputs(7)
    assert [one.step() for _ in range(60)] == [other.step() for _ in range(60)]
    assert one.last_step == other.last_step


def test_the_command_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cardinal_ingest.protocols.publish.blocks.Tree.holds", lambda *_: True)
    result = CliRunner().invoke(main, ["--publish", "--seeds", "20"])
    assert result.exit_code == 1
    assert "publish seed " in result.output


# --- a network whose steps Hypothesis chooses -----------------------------------------------------------------------


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
