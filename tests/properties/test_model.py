"""The streams core against its model (tests/model): seeded schedules, chosen ones, the command, faulty cores."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cardinal.protocols.streams import ChainUpdate, Divergence, Event, Follower, Record, Routed
from cardinal.protocols.streams.following.follower import Step
from cardinal.protocols.streams.quorum.reassembler import QuorumReassembler
from cardinal.protocols.streams.types import PRODUCER_HEADER
from cardinal_devkit.testing.generator import SCHEMA, ChainGenerator, as_received
from examples import examples
from model.__main__ import main
from model.block_model import ModelRules
from model.chain_model import ChainModel, ChainRules
from model.lies import altered, other_place
from model.quorum_model import QuorumModel
from model.quorum_scenario import quorum_of
from model.scenario import DEEP, QUICK, Profile, make_scenario
from model.schedule import Schedule, run_schedule, run_schedules

DEFAULT = examples(600)


@pytest.mark.parametrize(
    ("profile", "seeds", "quorum"),
    [
        pytest.param(QUICK, DEFAULT, False, id="quick"),
        pytest.param(DEEP, DEFAULT // 6, False, id="deep", marks=pytest.mark.slow),
        pytest.param(QUICK, DEFAULT // 10, True, id="quorum-quick"),
        pytest.param(DEEP, DEFAULT // 50, True, id="quorum-deep"),
    ],
)
def test_no_schedule_differs_from_the_model(profile: Profile, seeds: int, *, quorum: bool) -> None:
    outcomes = list(run_schedules(seeds, profile=profile, quorum=quorum))
    assert [outcome.difference for outcome in outcomes if outcome.difference] == []
    assert all(outcome.records for outcome in outcomes)  # a schedule that reads nothing proves nothing


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("profile", [QUICK, DEEP], ids=lambda profile: profile.name)
def test_no_schedule_of_a_hundred_thousand_differs_from_the_model(profile: Profile) -> None:
    outcomes = run_schedules(100_000, first=1_000_000, profile=profile)
    assert [outcome.difference for outcome in outcomes if outcome.difference] == []


@pytest.mark.parametrize("quorum", [False, True])
def test_equal_seeds_make_equal_scenarios_and_equal_runs(*, quorum: bool) -> None:
    one, other = (make_scenario(5, DEEP, quorum=quorum) for _ in range(2))
    assert (one.records, one.payloads, one.quorum) == (other.records, other.payloads, other.quorum)
    assert one.lied == other.lied
    assert run_schedule(5, quorum=quorum) == run_schedule(5, quorum=quorum)
    assert make_scenario(6, quorum=quorum).records != make_scenario(5, quorum=quorum).records


class _Sabotaged(Follower):
    """A core with a fault: ``spoil`` changes what it returns."""

    def step(self, records: Sequence[Record], *args: object, **options: object) -> Step:  # type: ignore[override]  # as the schedule calls it
        step = super().step(records, *args, **options)  # type: ignore[arg-type]  # passed through as they came
        return replace(step, items=[item for item in map(self.spoil, step.items) if item is not None])

    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        return item


class _DropsUpdates(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        return None if isinstance(item, ChainUpdate) and item.seq > 3 else item


class _HidesLies(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        return None if isinstance(item, Divergence) else item


class _SkipsNumbers(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        if not isinstance(item, ChainUpdate):
            return item
        return ChainUpdate(item.seq + 1, item.removed, item.added, item.finality)


class _ForgetsRemovals(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        if not isinstance(item, ChainUpdate) or not item.removed:
            return item
        return ChainUpdate(item.seq, (), item.added, item.finality)


class _Raises(_Sabotaged):
    def spoil(self, item: ChainUpdate | Event) -> ChainUpdate | Event | None:
        raise KeyError(item)


@pytest.mark.parametrize("fault", [_DropsUpdates, _HidesLies, _SkipsNumbers, _ForgetsRemovals, _Raises])
def test_a_faulty_core_is_found_within_a_few_seeds_and_named(
    fault: type[_Sabotaged], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.schedule.Follower", fault)
    first = next(outcome for outcome in map(run_schedule, range(40)) if outcome.difference is not None)
    assert first.difference is not None
    assert first.difference.startswith(f"python -m tests.model --seeds 1 --first {first.seed}: step ")
    assert "\n" not in first.difference


def test_a_schedule_can_be_driven_step_by_step() -> None:
    schedule = Schedule(make_scenario(3, QUICK))
    schedule.reveal(10_000)
    assert schedule.unrevealed == 0
    unread = schedule.unread
    schedule.read(4)
    assert schedule.unread == unread - 4
    schedule.restart(0)
    schedule.finish()
    assert schedule.unread == 0


@pytest.mark.parametrize("arguments", [("--first", "10"), ("--quorum",)])
def test_the_command_reports_how_many_ran_and_how_many_differ(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, ["--seeds", "3", *arguments])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("3 schedules, ")
    assert "0 differ from the model" in result.output


def test_a_difference_is_a_line_that_repeats_it_and_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.schedule.Follower", _Raises)
    result = CliRunner().invoke(main, ["--seeds", "2", "--first", "7", "--profile", "deep"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith("python -m tests.model --seeds 1 --first 7 --profile deep: step ")
    assert lines[-1].startswith("2 schedules, ")
    assert "2 differ" in lines[-1]


# --- steps that Hypothesis chooses ---------------------------------------------------------------------------------


class ScheduleMachine(RuleBasedStateMachine):
    """Only drives the steps: the laws are checked by the schedule itself."""

    schedule: Schedule
    quorum = False

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


# --- scenarios of a quorum -----------------------------------------------------------------------------------------


def test_about_one_schedule_in_eight_is_about_a_quorum_and_its_votes_are_repeatable() -> None:
    found = {seed: quorum_of(seed, "quick") for seed in range(4000)}
    about = {seed: quorum for seed, quorum in found.items() if quorum is not None}
    assert 400 < len(about) < 600
    assert all(quorum_of(seed, "quick", always=True) == quorum for seed, quorum in about.items())


def test_a_minority_lies_too_small_to_agree_and_the_honest_are_enough() -> None:
    quorums = [quorum for seed in range(2000) if (quorum := quorum_of(seed, "deep", always=True))]
    for quorum in quorums:
        assert 2 * len(quorum.liars) < len(quorum.producers)
        assert len(quorum.liars) < quorum.k <= len(quorum.producers) - len(quorum.liars)
    assert {len(quorum.producers) for quorum in quorums} == {1, 2, 3, 4, 5}
    assert {(quorum.k, len(quorum.liars)) for quorum in quorums} >= {(1, 0), (2, 1), (3, 1), (3, 2), (5, 0)}


def test_every_honest_producer_publishes_every_block_and_liars_do_lie() -> None:
    lying = 0
    for seed in range(30):
        scenario = make_scenario(seed, quorum=True)
        assert scenario.quorum is not None
        supplied = {message.key for message in scenario.supplies}
        for name in set(scenario.quorum.producers) - scenario.quorum.liars:
            own = {r.key for r in scenario.records if r.key and dict(r.headers).get(PRODUCER_HEADER) == name.encode()}
            blocks = {key[1:] for key in own if key[:1] == b"\0" and len(key) == 33}
            assert blocks == set(scenario.payloads)
            assert not own & supplied
        assert bool(scenario.lied) <= bool(scenario.quorum.liars)
        lying += bool(scenario.lied)
    assert lying > 5


# --- the model of a quorum -------------------------------------------------------------------------------------------

CHAIN = ChainGenerator(1, size=2)
ONE = CHAIN.fork("1a")[0]
SAID = CHAIN.messages(ONE)


def _model(k: int = 2) -> QuorumModel:
    rules = ModelRules(None, tuple(SCHEMA), ChainRules(16))
    return QuorumModel(rules, ChainModel(rules.chain), k, ("a", "b", "c"))


class _Speech:
    """Offsets of what is said."""

    def __init__(self, model: QuorumModel) -> None:
        self.model = model
        self.offset = 0

    def __call__(self, who: str | None, messages: Sequence[Routed], *, partition: int = 0) -> None:
        headers = () if who is None else ((PRODUCER_HEADER, who.encode()),)
        for topic, key, value in messages:
            self.offset += 1
            self.model.receive(Record(topic, partition, self.offset, key, value, 0, headers))


def test_a_block_is_complete_when_k_say_the_same_and_not_before() -> None:
    model = _model()
    say = _Speech(model)
    say("a", SAID)
    say("x", SAID)
    say(None, SAID)
    say("a", SAID)
    assert not model.complete
    say("c", [altered(message) for message in SAID])
    assert not model.complete
    say("b", SAID[:-1])
    assert not model.complete
    say("b", SAID[-1:])
    assert model.complete == {ONE.hash: as_received(ONE)}
    altogether = {altered(message).key for message in SAID if altered(message) != message}
    assert {differing.key for differing in model.differing} == altogether


@pytest.mark.parametrize("lie", ["number", "weight"])
def test_the_same_content_in_another_place_is_another_block(lie: str) -> None:
    model = _model()
    say = _Speech(model)
    say("a", SAID)
    say("b", other_place(SAID, "parent", random.Random(3)))
    say("c", other_place(SAID, lie, random.Random(3)))
    assert not model.complete
    assert model.blocks[ONE.hash].missing().batch


def test_the_range_of_a_block_needs_k_votes_and_the_lowest_claim_is_tracked_too() -> None:
    model = _model()
    say = _Speech(model)
    say("c", other_place(SAID, "number", random.Random(3))[-1:])
    block = model.blocks[ONE.hash]
    assert block.batch is None
    say("a", SAID)
    say("b", SAID[-1:])
    assert block.batch is not None
    assert block.batch.number == ONE.number
    assert block.lowest == 0 < ONE.number
    # The second session reads a liar's Batch of a delivered block first: the block is held where it is.
    assert run_schedule(200_636, quorum=True).difference is None


def test_what_is_supplied_completes_all_that_have_begun_and_agrees_with_nobody_else() -> None:
    model = _model()
    say = _Speech(model)
    say("a", SAID[1:])
    say("b", SAID[1:])
    assert not model.complete
    say(None, SAID[:1], partition=-1)
    assert set(model.complete) == {ONE.hash}


# --- a core that is fooled -----------------------------------------------------------------------------------


def _first_difference(says: str = "") -> str | None:
    """The first difference that says this, of a few seeds."""
    outcomes = (run_schedule(seed, quorum=True) for seed in range(60))
    return next((o.difference for o in outcomes if o.difference is not None and says in o.difference), None)


def _believes_one(make: Callable[..., None]) -> Callable[..., None]:
    def init(self: QuorumReassembler, k: int, *args: object, **options: object) -> None:
        make(self, 1, *args, **options)
        del k

    return init


def _believes_everybody(make: Callable[..., None]) -> Callable[..., None]:
    def init(self: QuorumReassembler, k: int, producers: Sequence[str], *args: object, **options: object) -> None:
        make(self, min(k + 1, len(producers)), producers, *args, **options)

    return init


@pytest.mark.parametrize("fault", [_believes_one, _believes_everybody])
def test_a_core_that_believes_too_few_or_waits_for_too_many_is_found(
    fault: Callable[..., Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuorumReassembler, "__init__", fault(QuorumReassembler.__init__))
    found = _first_difference()
    assert found is not None
    assert found.startswith("python -m tests.model --seeds 1 --first ")
    assert " --quorum: step " in found
    assert "\n" not in found


def test_a_core_that_keeps_quiet_about_liars_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.schedule.Follower", _HidesLies)
    assert _first_difference("nobody reported") is not None
